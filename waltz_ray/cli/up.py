"""``waltz up`` and ``waltz down``."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from waltz_ray import cluster_file
from waltz_ray.cli.common import AddressOption, ClusterOption, DirOption, JsonOption, find, print_json, progress_line
from waltz_ray.config import ClusterConfig

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Register this module's commands on ``app``."""
    app.command()(up)
    app.command()(down)


def up(
    directory: Annotated[str, typer.Option("--dir", help="Where everything is stored; made if it is not there.")],
    cluster: ClusterOption = "",
    partitions: Annotated[int | None, typer.Option(help="Partitions; fixed for ever. [default: 4]")] = None,
    replicas: Annotated[int | None, typer.Option(help="Storage replicas. [default: 3]")] = None,
    servers: Annotated[int | None, typer.Option(help="Partition servers. [default: 2]")] = None,
    zookeeper: Annotated[str, typer.Option(help="host:port,... of an ensemble [default: an embedded one]")] = "",
    address: AddressOption = "",
    timeout: Annotated[float, typer.Option(help="Seconds to wait until every partition is ready.")] = 120.0,
    as_json: JsonOption = False,
) -> None:
    """Start a cluster, or the one that DIR holds. Without --address a Ray of its own is started on this machine."""
    from waltz_ray.bring_up import bring_up

    directory = str(Path(directory).resolve())
    known = cluster_file.read(directory)
    default = ClusterConfig()
    config = ClusterConfig(
        name=cluster or (known.name if known else default.name),
        directory=directory,
        partitions=partitions if partitions is not None else (known or default).partitions,
        replicas=replicas if replicas is not None else (known or default).replicas,
        servers=servers if servers is not None else (known or default).servers,
        zookeeper=zookeeper or (known.zookeeper if known and not known.embedded else ""),
    )
    with progress_line(as_json) as progress:
        running = bring_up(config, address, progress=progress, deadline_s=timeout)
    if as_json:
        print_json(asdict(running))
        return
    for warning in running.warnings:
        typer.echo(f"warning: {warning}", err=True)
    what = "was running already, nothing was changed" if running.was_running else "is up"
    typer.echo(
        f"cluster {running.name} {what}: {running.partitions} partitions, {running.replicas} replicas, "
        f"{running.servers} servers in {running.directory}"
    )
    typer.echo(f"Ray {running.address}   ZooKeeper {running.zookeeper}   dashboard {running.dashboard or '-'}")


def down(
    directory: DirOption = "", cluster: ClusterOption = "", address: AddressOption = "", as_json: JsonOption = False
) -> None:
    """Stop a cluster: its servers, replicas and manager, and the ZooKeeper and Ray that were started for it."""
    from waltz_ray.bring_up import take_down

    known = cluster_file.read(directory) if directory and not cluster else None
    # A cluster whose head was killed is not running, and there may still be something to end.
    found = known if known is not None and known.ray is not None else find(directory, cluster, address)
    with progress_line(as_json) as progress:
        take_down(found, progress)
    if as_json:
        print_json({"cluster": found.name, "directory": found.directory, "running": False})
    else:
        typer.echo(f"cluster {found.name} is down; its data stays in {found.directory}")
