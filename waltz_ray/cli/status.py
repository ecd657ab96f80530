"""``waltz status``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from waltz_ray.cli.common import AddressOption, ClusterOption, DirOption, JsonOption, print_json, table_of
from waltz_ray.errors import ClusterNotFound

__all__ = ["register", "troubles"]

_MANAGER_TIMEOUT_S = 5.0
_SILENT_S = 6.0  # three requests of the pulse


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(status)


def status(
    directory: DirOption = "", cluster: ClusterOption = "", address: AddressOption = "", as_json: JsonOption = False
) -> None:
    """Show partitions, servers, replicas and ZooKeeper, within 10 seconds whoever hangs.

    Exit code 1 if something does not serve: a partition, server, replica, ZooKeeper or the manager, or a full disk.
    """
    from waltz_ray.finding.find import find_on_ray

    name, joined = find_on_ray(cluster, directory, address)
    view = _view(name)
    trouble = troubles(view)
    if as_json:
        print_json(view)
    else:
        console = Console()
        zookeeper = f"{view.get('zookeeper', '?')} ({_zookeeper_state(view)})"
        console.print(f"cluster {view['cluster']}   Ray {joined}   ZooKeeper {zookeeper}", soft_wrap=True)
        console.print(_partitions(view))
        console.print(_servers(view))
        console.print(_replicas(view))
        for line in trouble:
            console.print(line, style="yellow", soft_wrap=True, markup=False)
    if trouble:
        raise typer.Exit(1)


def _view(name: str) -> dict[str, Any]:
    """What the manager says, or what can be learned without it. ClusterNotFound if there is no such cluster."""
    from waltz_ray.actors.supervision import running_actors
    from waltz_ray.bring_up import cluster_status, status_without_manager

    try:
        return cluster_status(name, _MANAGER_TIMEOUT_S)
    except ClusterNotFound as error:
        if not running_actors(name):
            raise
        return status_without_manager(name, str(error))


def _partitions(view: dict[str, Any]) -> Table:
    table = table_of("partition", "server", "generation", "session", "state", "high-water mark", "members")
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
    table = table_of("server", "state", "endpoint", "partitions", "connections")
    for server_id, server in view["servers"].items():
        partitions = " ".join(server.get("partitions", {})) or "-"
        row = (server["state"], server.get("endpoint"), partitions, server.get("connections"))
        table.add_row(server_id, *map(_text, row))
    return table


def _replicas(view: dict[str, Any]) -> Table:
    table = table_of("replica", "state", "endpoint", "last IDs", "low-water marks", "disk use")
    for replica_id, replica in view["replicas"].items():
        partitions = replica.get("partitions", {}).values()
        table.add_row(
            replica_id,
            replica["state"],
            _text(replica.get("endpoint")),
            " ".join(_text(partition["last_id"]) for partition in partitions) or "-",
            " ".join(_text(partition["low_water_mark"]) for partition in partitions) or "-",
            _size(replica.get("disk_use_bytes")),
        )
    return table


def troubles(view: dict[str, Any]) -> list[str]:
    """A line for everything that does not serve as it should."""
    lines = [f"manager: {view['manager']['reason']}"] if view["manager"].get("reason") else []
    lines += _zookeeper_trouble("ZooKeeper", view.get("zookeeper_state"))
    if view.get("zookeeper_server"):  # ours, on one of the cluster's disks
        lines += _actor_trouble("ZooKeeper's server", view["zookeeper_server"])
    for kind in ("server", "replica"):
        for number, actor in view[f"{kind}s"].items():
            lines += _actor_trouble(f"{kind} {number}", actor)
    for partition in view["partitions"]:
        now = view["servers"].get(str(partition["server"]), {}).get("partitions", {}).get(str(partition["partition"]))
        if now is None or now["state"] != "READY":
            where = "no server has it" if partition["server"] is None else f"server {partition['server']} has it"
            lines.append(f"partition {partition['partition']}: not ready, {where}")
    if view["manager"]["supervision_error"]:
        lines.append(f"manager: {view['manager']['supervision_error']}")
    return lines


def _actor_trouble(who: str, actor: dict[str, Any]) -> list[str]:
    lines = []
    if actor["state"] != "SERVING":
        silent_s = actor.get("silent_s")
        silence = "" if silent_s is None else f"does not answer for {silent_s:.0f} s: "
        lines.append(f"{who}: {actor['state']}{_since(actor)}: {silence}{actor.get('reason') or 'it gives no reason'}")
    if actor.get("problem"):
        lines.append(f"{who}: {actor['problem']}")
    lines += _zookeeper_trouble(f"{who}: ZooKeeper", actor.get("zookeeper"))
    lines += [
        f"{who}, partition {partition_id}: {partition['damaged']}"
        for partition_id, partition in actor.get("partitions", {}).items()
        if partition.get("damaged")
    ]
    return lines


def _zookeeper_trouble(who: str, state: dict[str, Any] | None) -> list[str]:
    if state is None or (state["state"] == "connected" and state["silent_s"] < _SILENT_S):
        return []
    age_s = state.get("view_age_s")
    old = "" if age_s is None else f"; what is shown of it was read {age_s:.0f} s ago"
    why = f": {state['error']}" if state["error"] else ""
    return [f"{who}: does not answer for {state['silent_s']:.0f} s ({state['state']}{why}){old}"]


def _zookeeper_state(view: dict[str, Any]) -> str:
    state = view.get("zookeeper_state")
    if state is None:
        return "unknown"
    return "no answer" if state["state"] == "connected" and state["silent_s"] >= _SILENT_S else str(state["state"])


def _since(actor: dict[str, Any]) -> str:
    since_ms = actor.get("since_ms")
    return "" if since_ms is None else f" since {datetime.fromtimestamp(since_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


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
