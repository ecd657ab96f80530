"""``waltz status``."""

from __future__ import annotations

from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from waltz_ray.cli.common import AddressOption, ClusterOption, DirOption, JsonOption, find, print_json

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(status)


def status(
    directory: DirOption = "", cluster: ClusterOption = "", address: AddressOption = "", as_json: JsonOption = False
) -> None:
    """Show partitions, servers, replicas and ZooKeeper. Exit code 1 if a partition is not ready."""
    from waltz_ray.bring_up import cluster_status, missing
    from waltz_ray.client import ray_lookup

    found = find(directory, cluster, address)
    ray_lookup.join(found.address)
    view = cluster_status(found.name)
    if as_json:
        print_json(view)
    else:
        console = Console()
        console.print(
            f"cluster {view['cluster']}   Ray {found.address}   ZooKeeper {view['zookeeper']}", soft_wrap=True
        )
        console.print(_partitions(view))
        console.print(_servers(view))
        console.print(_replicas(view))
        for line in _trouble(view):
            console.print(line, style="yellow", soft_wrap=True)
    if any(what.startswith("partition") for what in missing(view)):
        raise typer.Exit(1)


def _partitions(view: dict[str, Any]) -> Table:
    table = Table("partition", "server", "generation", "session", "state", "high-water mark", "members")
    for partition in view["partitions"]:
        server = view["servers"].get(str(partition["server"]), {})
        now = server.get("partitions", {}).get(str(partition["partition"]), {})
        table.add_row(
            str(partition["partition"]),
            _text(partition["server"]),
            str(partition["generation"]),
            str(now.get("session") or partition["session"]),
            now.get("state", "NOT_READY"),
            _text(now.get("high_water_mark")),
            " ".join(map(str, partition["members"])) or "-",
        )
    return table


def _servers(view: dict[str, Any]) -> Table:
    table = Table("server", "state", "endpoint", "partitions", "connections")
    for server_id, server in view["servers"].items():
        partitions = " ".join(server.get("partitions", {})) or "-"
        row = (server["state"], server.get("endpoint"), partitions, server.get("connections"))
        table.add_row(server_id, *map(_text, row))
    return table


def _replicas(view: dict[str, Any]) -> Table:
    table = Table("replica", "state", "endpoint", "last IDs", "low-water marks", "disk use")
    for replica_id, replica in view["replicas"].items():
        partitions = replica.get("partitions", {}).values()
        table.add_row(
            replica_id,
            replica["state"],
            _text(replica.get("endpoint")),
            " ".join(str(partition["last_id"]) for partition in partitions) or "-",
            " ".join(str(partition["low_water_mark"]) for partition in partitions) or "-",
            _size(replica.get("disk_use_bytes")),
        )
    return table


def _trouble(view: dict[str, Any]) -> list[str]:
    lines = [
        f"{kind} {number}: {actor['reason']}"
        for kind in ("server", "replica")
        for number, actor in view[f"{kind}s"].items()
        if actor.get("reason")
    ]
    lines += [
        f"replica {number}, partition {partition_id}: {partition['damaged']}"
        for number, replica in view["replicas"].items()
        for partition_id, partition in replica.get("partitions", {}).items()
        if partition["damaged"]
    ]
    if view["manager"]["supervision_error"]:
        lines.append(f"manager: {view['manager']['supervision_error']}")
    return lines


def _text(value: Any) -> str:
    return "-" if value is None else str(value)


def _size(count: int | None) -> str:
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
