"""The command ``waltz replace-replica``: a replica is rebuilt from its peers."""

from __future__ import annotations

from typing import Annotated

import typer

from waltz_ray.cli.common import AddressOption, ClusterOption, DirOption, YesOption, confirmed, find, progress_line

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Register this module's command on ``app``."""
    app.command("replace-replica")(replace)


def replace(
    replica: Annotated[int, typer.Argument(help="The replica whose disk is lost.")],
    yes: YesOption = False,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    partition: Annotated[
        list[int] | None, typer.Option("--partition", help="Only what it has of this one.", show_default=False)
    ] = None,
    files_aside: Annotated[
        bool, typer.Option("--set-files-aside", help="Rename what the replica cannot serve; nothing is deleted.")
    ] = False,
) -> None:
    """Let a replica that lost its disk come back empty and be copied from its peers; returns when it serves.

    Exit code 1, with the reason, if it does not: a damaged control file, another cluster's files.
    """
    from waltz_ray.finding import ray_lookup
    from waltz_ray.replacement import replace_replica

    found = find(directory, cluster, address)
    what = f"partitions {', '.join(map(str, partition))}" if partition else "all its partitions"
    confirmed(
        f"replica {replica} of cluster {found.name} counts for {what} no more until it is copied from its peers", yes
    )
    ray_lookup.join(found.ray)
    with progress_line(quiet=False) as progress:
        replace_replica(
            found.name,
            found.zookeeper,
            replica,
            partitions=partition or None,
            files_aside=files_aside,
            progress=progress,
        )
    typer.echo(f"replica {replica} of cluster {found.name} serves and is copied from its peers; see waltz status")
