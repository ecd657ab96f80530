"""The command ``waltz status``: who has what, and a line for everything that does not serve as it should."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from waltz_ray.cli.common import (
    AddressOption,
    ClusterOption,
    DirOption,
    JsonOption,
    console,
    print_data,
    print_item,
    table_of,
)
from waltz_ray.cli.cursor import cursor_table
from waltz_ray.cli.live import IntervalOption, show_live, views
from waltz_ray.errors import ClusterNotFound
from waltz_ray.runtime.findings import SILENT_S, what_does_not_serve
from waltz_ray.runtime.status import ClusterStatus, Readiness, ScrubStatus, ZooKeeperStatus, to_json

__all__ = ["look", "register", "size_text"]

_MANAGER_TIMEOUT_S = 5.0


def register(app: typer.Typer) -> None:
    """Register this module's command on ``app``."""
    app.command()(status)


def status(
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    as_json: JsonOption = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on showing it until Ctrl-C.")] = False,
    interval: IntervalOption = 2.0,
) -> None:
    """Show partitions, servers, replicas and ZooKeeper, within 10 seconds whoever hangs.

    Exit code 1 if something does not serve: a partition, server, replica, ZooKeeper or the manager, or a full disk.
    With --watch and --json a line each time.
    """
    from waltz_ray.finding.find import find_on_ray

    name, joined = find_on_ray(cluster, directory, address)
    if watch and as_json:
        with suppress(KeyboardInterrupt):
            for view in views(lambda: look(name), interval):
                print_item(to_json(view))
    elif watch:
        show_live(_pages(view, joined) for view in views(lambda: look(name), interval))
    else:
        view = look(name)
        if as_json:
            print_data(to_json(view))
        else:
            screen = console()
            for page in _pages(view, joined):
                screen.print(page, soft_wrap=isinstance(page, Text))
        if what_does_not_serve(view):
            raise typer.Exit(1)


def _pages(view: ClusterStatus, joined: str) -> Iterator[Table | Text]:
    """What is shown, from the top; a line of text is never cut."""
    zookeeper = f"{view.zookeeper or '?'} ({_zookeeper_state(view.zookeeper_state)})"
    scheme = "http" if view.config is None else view.config.http.scheme
    http = f"   {scheme}://{view.manager.http}/" if view.manager.http else ""
    yield Text(f"cluster {view.cluster}   Ray {joined}   ZooKeeper {zookeeper}{http}")
    if len(view.spaces) > 1:
        yield _spaces(view)
    yield _partitions(view)
    yield _servers(view)
    yield _replicas(view)
    if view.moves:
        yield _moves(view)
    if view.kv:
        yield _kv(view)
    if view.topics:
        yield _topics(view)
    if view.cursors:
        yield cursor_table(view.cursors)
    for line in what_does_not_serve(view):
        yield Text(str(line), style="yellow")


def look(name: str) -> ClusterStatus:
    """What the manager says, or what can be learned without it. ClusterNotFound if there is no such cluster."""
    from waltz_ray.actors.supervision import running_actors
    from waltz_ray.readiness import cluster_status, status_without_manager

    try:
        return cluster_status(name, _MANAGER_TIMEOUT_S)
    except ClusterNotFound as error:
        if not running_actors(name):
            raise
        return status_without_manager(name, str(error))


def _spaces(view: ClusterStatus) -> Table:
    table = table_of("space", "kind", "state", "partitions")
    for space in view.spaces:
        table.add_row(space.name, space.kind, space.state.value, f"{space.first} to {space.partitions.stop - 1}")
    return table


def _partitions(view: ClusterStatus) -> Table:
    table = table_of("partition", "server", "generation", "session", "state", "trim mark", "high-water mark", "members")
    for each in view.partitions:
        now = view.served(each)
        table.add_row(
            str(each.partition),
            _text(each.server),
            str(each.generation),
            _text(each.session if now is None or now.session is None else now.session),
            Readiness.NOT_READY if now is None else now.state,
            _text(None if now is None else now.trim_mark),
            _text(None if now is None else now.known_mark),
            " ".join(map(str, each.members)) or "-",
        )
    return table


def _servers(view: ClusterStatus) -> Table:
    table = table_of("server", "state", "endpoint", "partitions", "connections")
    for server_id, server in view.servers.items():
        partitions = " ".join(map(str, server.partitions)) or "-"
        drained = view.members is not None and server_id in view.members.draining_servers
        state = f"{server.state}, draining" if drained else str(server.state)
        table.add_row(str(server_id), state, _text(server.endpoint), partitions, _text(server.connections))
    return table


def _replicas(view: ClusterStatus) -> Table:
    columns = "state", "endpoint", "first IDs", "last IDs", "low-water marks", "disk use", "checked"
    table = table_of("replica", *columns)
    for replica_id, replica in view.replicas.items():
        partitions = replica.partitions.values()
        drained = view.members is not None and replica_id in view.members.draining_replicas
        table.add_row(
            str(replica_id),
            f"{replica.state}, draining" if drained else str(replica.state),
            _text(replica.endpoint),
            " ".join(_text(stored.first_id) for stored in partitions) or "-",
            " ".join(_text(stored.last_id) for stored in partitions) or "-",
            " ".join(_text(stored.low_water_mark) for stored in partitions) or "-",
            size_text(replica.disk_use_bytes),
            _checked(replica.scrub),
        )
    return table


def _moves(view: ClusterStatus) -> Table:
    """Partitions that are to be on other replicas."""
    table = table_of("partition", "is on", "is to be on", "waits for")
    on = {each.partition: each.replicas for each in view.partitions}
    for p, move in view.moves.items():
        replicas = [" ".join(map(str, one)) or "-" for one in (on.get(p, ()), move.wanted)]
        table.add_row(str(p), *replicas, move.waits_for or "its turn")
    return table


def _kv(view: ClusterStatus) -> Table:
    table = table_of("kv", "state", "space", "endpoint", "mask", "primaries", "secondaries", "lease", "connections")
    for actor_id, actor in view.kv.items():
        for space, said in actor.spaces.items():
            figures = (f"{said.mask:X}", said.primaries, said.secondaries, "yes" if said.lease else "no")
            row = map(str, (actor_id, actor.state, space, said.endpoint, *figures, said.connections))
            table.add_row(*row)
        if not actor.spaces:
            table.add_row(str(actor_id), actor.state, *["-"] * 7)
    return table


def _topics(view: ClusterStatus) -> Table:
    table = table_of("topic actor", "state", "master", "slots", "connections", "produced", "delivered")
    for actor_id, actor in view.topics.items():
        master = f"{_text(actor.master)}{', leads' if actor.leads else ''}"
        slots = " ".join(f"{slot}:{port}" for slot, port in sorted(actor.slots.items())) or "-"
        figures = (actor.connections, actor.produced, actor.delivered)
        table.add_row(str(actor_id), actor.state, master, slots, *map(str, figures))
    return table


def _checked(scrub: ScrubStatus | None) -> str:
    """The last full pass of the scrub, or how far the first one is; and what is damaged."""
    if scrub is None:
        return "-"
    if scrub.last_pass_ms is not None:
        text = f"{datetime.fromtimestamp(scrub.last_pass_ms / 1000, timezone.utc):%Y-%m-%d %H:%M} UTC"
    else:
        text = "never" if scrub.began_ms is None else f"{100 * scrub.done_bytes // max(1, scrub.total_bytes)} %"
    return f"{text}, {len(scrub.unrepaired)} damaged" if scrub.unrepaired else text


def _zookeeper_state(seen: ZooKeeperStatus | None) -> str:
    if seen is None:
        return "unknown"
    return "no answer" if seen.connected and not seen.answers(SILENT_S) else seen.state


def _text(value: object) -> str:
    return "-" if value is None else str(value)


def size_text(count: int | None) -> str:
    """Bytes for people; "-" = not known."""
    if count is None:
        return "-"
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
