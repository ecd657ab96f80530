"""``waltz restart``: the processes of a running cluster, one after the other."""

from __future__ import annotations

from typing import Annotated

import typer

from waltz_ray.cli.common import AddressOption, ClusterOption, DirOption, JsonOption, find, print_json, progress_line

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Register this module's command on ``app``."""
    app.command()(restart)


def restart(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Only these: server/0, replica/2, kv/0, topic/0, cluster-manager.", show_default=False),
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for each of them.")] = 120.0,
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    as_json: JsonOption = False,
) -> None:
    """End the cluster's processes and have them started again, one after the other, while everybody goes on working.

    Each next one is ended when every partition is open and has all of its replicas; exit code 1, with the reason, if
    that does not come to be in time. ZooKeeper goes on. A command that is killed while a server is drained leaves it
    so: waltz server drain N --cancel.
    """
    from waltz_ray.finding import ray_lookup
    from waltz_ray.members import Members
    from waltz_ray.rolling import RollingRestart

    found = find(directory, cluster, address)
    ray_lookup.join(found.ray)
    with (
        Members(found.name, zookeeper=found.zookeeper) as members,
        progress_line(as_json) as progress,
    ):
        restarted = RollingRestart(members, progress, timeout).run(names or ())
    if as_json:
        print_json({"cluster": found.name, "restarted": restarted})
    else:
        typer.echo(f"cluster {found.name}: {len(restarted)} processes were restarted: {', '.join(restarted)}")
