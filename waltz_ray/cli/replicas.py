"""``waltz replace-replica``."""

from __future__ import annotations

from typing import Annotated

import typer

from waltz_ray.cli.common import AddressOption, ClusterOption, DirOption, find

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replace-replica")(replace)


def replace(
    replica: Annotated[int, typer.Argument(help="The replica whose disk is lost.")],
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
) -> None:
    """Let a replica that lost its disk come back empty and be copied from its peers."""
    from waltz_ray.bring_up import replace_replica
    from waltz_ray.client import ray_lookup

    found = find(directory, cluster, address)
    ray_lookup.join(found.address)
    replace_replica(found.name, found.zookeeper, replica)
    typer.echo(f"replica {replica} of cluster {found.name} is being rebuilt from its peers; see waltz status")
