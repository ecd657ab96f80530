"""The command ``waltz status``: who has what, and a line for everything that does not serve as it should."""

from __future__ import annotations

from datetime import datetime, timezone

import typer
from rich.console import Console
from rich.table import Table

from waltz_ray.cli.common import AddressOption, ClusterOption, DirOption, JsonOption, print_json, table_of
from waltz_ray.errors import ClusterNotFound
from waltz_ray.runtime.status import ActorStatus, ClusterStatus, Readiness, ReplicaStatus, ZooKeeperStatus, to_json

__all__ = ["register", "troubles"]

_MANAGER_TIMEOUT_S = 5.0
_SILENT_S = 6.0  # three requests of the pulse


def register(app: typer.Typer) -> None:
    """Register this module's command on ``app``."""
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
        print_json(to_json(view))
    else:
        console = Console()
        zookeeper = f"{view.zookeeper or '?'} ({_zookeeper_state(view.zookeeper_state)})"
        console.print(f"cluster {view.cluster}   Ray {joined}   ZooKeeper {zookeeper}", soft_wrap=True)
        console.print(_partitions(view))
        console.print(_servers(view))
        console.print(_replicas(view))
        for line in trouble:
            console.print(line, style="yellow", soft_wrap=True, markup=False)
    if trouble:
        raise typer.Exit(1)


def _view(name: str) -> ClusterStatus:
    """What the manager says, or what can be learned without it. ClusterNotFound if there is no such cluster."""
    from waltz_ray.actors.supervision import running_actors
    from waltz_ray.bring_up import cluster_status, status_without_manager

    try:
        return cluster_status(name, _MANAGER_TIMEOUT_S)
    except ClusterNotFound as error:
        if not running_actors(name):
            raise
        return status_without_manager(name, str(error))


def _partitions(view: ClusterStatus) -> Table:
    table = table_of("partition", "server", "generation", "session", "state", "high-water mark", "members")
    for each in view.partitions:
        now = view.served(each)
        table.add_row(
            str(each.partition),
            _text(each.server),
            str(each.generation),
            _text(each.session if now is None or now.session is None else now.session),
            Readiness.NOT_READY if now is None else now.state,
            _text(None if now is None else now.high_water_mark),
            " ".join(map(str, each.members)) or "-",
        )
    return table


def _servers(view: ClusterStatus) -> Table:
    table = table_of("server", "state", "endpoint", "partitions", "connections")
    for server_id, server in view.servers.items():
        partitions = " ".join(map(str, server.partitions)) or "-"
        table.add_row(str(server_id), server.state, _text(server.endpoint), partitions, _text(server.connections))
    return table


def _replicas(view: ClusterStatus) -> Table:
    table = table_of("replica", "state", "endpoint", "last IDs", "low-water marks", "disk use")
    for replica_id, replica in view.replicas.items():
        partitions = replica.partitions.values()
        table.add_row(
            str(replica_id),
            replica.state,
            _text(replica.endpoint),
            " ".join(_text(stored.last_id) for stored in partitions) or "-",
            " ".join(_text(stored.low_water_mark) for stored in partitions) or "-",
            _size(replica.disk_use_bytes),
        )
    return table


def troubles(view: ClusterStatus) -> list[str]:
    """A line for everything that does not serve as it should."""
    lines = [f"manager: {view.manager.reason}"] if view.manager.reason else []
    seen = view.zookeeper_state
    if seen is not None:
        lines += _zookeeper_trouble("ZooKeeper", seen, seen.view_age_s)
    if view.zookeeper_server is not None:  # ours, on one of the cluster's disks
        lines += _not_serving("ZooKeeper's server", view.zookeeper_server)
        lines += [f"ZooKeeper's server: {problem}"] if (problem := view.zookeeper_server.problem) else []
    for number, server in view.servers.items():
        lines += _not_serving(f"server {number}", server)
        if server.zookeeper is not None:
            lines += _zookeeper_trouble(f"server {number}: ZooKeeper", server.zookeeper)
    for number, replica in view.replicas.items():
        lines += _replica_trouble(f"replica {number}", replica)
    for each in view.partitions:
        now = view.served(each)
        if now is None or now.state is not Readiness.READY:
            where = "no server has it" if each.server is None else f"server {each.server} has it"
            lines.append(f"partition {each.partition}: not ready, {where}")
    if view.manager.supervision_error:
        lines.append(f"manager: {view.manager.supervision_error}")
    return lines


def _not_serving(who: str, actor: ActorStatus, since: str = "") -> list[str]:
    if actor.serving:
        return []
    silence = "" if actor.silent_s is None else f"does not answer for {actor.silent_s:.0f} s: "
    return [f"{who}: {actor.state}{since}: {silence}{actor.reason or 'it gives no reason'}"]


def _replica_trouble(who: str, replica: ReplicaStatus) -> list[str]:
    lines = _not_serving(who, replica, _since(replica.since_ms))
    if replica.problem:
        lines.append(f"{who}: {replica.problem}")
    damaged = {p: stored.damaged for p, stored in replica.partitions.items() if stored.damaged}
    return lines + [f"{who}, partition {partition_id}: {damage}" for partition_id, damage in damaged.items()]


def _zookeeper_trouble(who: str, seen: ZooKeeperStatus, view_age_s: float | None = None) -> list[str]:
    if seen.answers(_SILENT_S):
        return []
    old = "" if view_age_s is None else f"; what is shown of it was read {view_age_s:.0f} s ago"
    why = f": {seen.error}" if seen.error else ""
    return [f"{who}: does not answer for {seen.silent_s:.0f} s ({seen.state}{why}){old}"]


def _zookeeper_state(seen: ZooKeeperStatus | None) -> str:
    if seen is None:
        return "unknown"
    return "no answer" if seen.connected and not seen.answers(_SILENT_S) else seen.state


def _since(since_ms: int | None) -> str:
    if since_ms is None:
        return ""
    return f" since {datetime.fromtimestamp(since_ms / 1000, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def _text(value: object) -> str:
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
