"""``waltz import``: the transactions of a storage directory of Waltz 0.13 become a space of a running cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from waltz_ray.cli.common import AddressOption, ClusterOption, DirOption, JsonOption
from waltz_ray.cli.connecting import ZooKeeperOption

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Register this module's command on ``app``."""
    app.command("import")(import_original)


def import_original(
    original: Annotated[
        str,
        typer.Argument(metavar="DIR", help="The storage directory of a replica of Waltz 0.13.", show_default=False),
    ],
    space: Annotated[str, typer.Option("--space", help="Into which space: one with as many partitions, and empty.")],
    create: Annotated[bool, typer.Option("--create", help="Make the space, unless it is there.")] = False,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    zookeeper: ZooKeeperOption = "",
    as_json: JsonOption = False,
) -> None:
    """Append the transactions in DIR to a space: partition by partition, in their order, under their IDs.

    DIR is read, twice, and never changed; one that is damaged is refused before anything is appended. What was
    interrupted goes on with the same command: what is in the space already is compared, and each transaction is in it
    exactly once. Nobody else may append to the space meanwhile.
    """
    from waltz_ray.cli.import_run import ImportJob, run_import  # with the client, which `waltz --help` has no need of

    run_import(ImportJob(original, space, create, as_json), directory, cluster, address, zookeeper)
