"""``waltz top``: rates and lags of a cluster, live; the busiest partitions first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from waltz_ray.cli.common import AddressOption, ClusterOption, DirOption, table_of
from waltz_ray.cli.live import IntervalOption, show_live, views
from waltz_ray.cli.status import look, size_text
from waltz_ray.runtime.findings import what_does_not_serve
from waltz_ray.runtime.histogram import HistogramView
from waltz_ray.runtime.status import ClusterStatus, PartitionAssignment, Readiness

__all__ = ["TwoLooks", "in_pairs", "register"]


def register(app: typer.Typer) -> None:
    """Register this module's command on ``app``."""
    app.command()(top)


def top(
    directory: DirOption = "",
    cluster: ClusterOption = "",
    address: AddressOption = "",
    interval: IntervalOption = 2.0,
    count: Annotated[int, typer.Option(min=0, help="End after so many looks; 0 = never.")] = 0,
    partitions: Annotated[int, typer.Option(min=1, help="Show so many partitions, the busiest.")] = 20,
) -> None:
    """Show how much is appended and committed, how long it takes, and who is behind, until Ctrl-C.

    Rates are those between two looks: there are none with the first one.
    """
    from waltz_ray.finding.find import find_on_ray

    name, _ = find_on_ray(cluster, directory, address)
    seen = views(lambda: look(name), interval, count)
    show_live(_page(each, partitions) for each in in_pairs(seen))


@dataclass(frozen=True, slots=True)
class TwoLooks:
    """A look at the cluster and the one before it; ``seconds`` between them, 0 = there was none before."""

    now: ClusterStatus
    before: ClusterStatus | None
    seconds: float

    def rate(self, now: int | None, before: int | None) -> float | None:
        """What a count has risen a second; None where that is not known, as of one that began anew."""
        if now is None or before is None or not self.seconds or now < before:
            return None
        return (now - before) / self.seconds

    def transactions(self, partition: PartitionAssignment) -> float | None:
        """Committed a second."""
        now, before = self.now.served(partition), None
        if self.before is not None:
            found = [each for each in self.before.partitions if each.partition == partition.partition]
            before = self.before.served(found[0]) if found else None
        if now is None or before is None:
            return None
        return self.rate(now.known_mark, before.known_mark)


def in_pairs(seen: Iterable[ClusterStatus]) -> Iterator[TwoLooks]:
    """Each of ``seen`` with the one before it. Times are the manager's; without one no rates are known."""
    before: ClusterStatus | None = None
    for view in seen:
        known = before is not None and before.at_ms is not None and view.at_ms is not None
        seconds = (view.at_ms - before.at_ms) / 1000 if known else 0.0  # type: ignore[operator, union-attr]
        yield TwoLooks(view, before, max(0.0, seconds))
        before = view


def _page(seen: TwoLooks, most: int) -> Iterator[Table | Text]:
    view = seen.now
    rates = {each.partition: seen.transactions(each) for each in view.partitions}
    known = [rate for rate in rates.values() if rate is not None]
    problems = what_does_not_serve(view)
    ready = sum((now := view.served(each)) is not None and now.state is Readiness.READY for each in view.partitions)
    total = f"{_number(sum(known))} transactions a second" if known else "rates with the next look"
    state = f"{len(problems)} problems: waltz doctor" if problems else "everything serves"
    yield Text(f"cluster {view.cluster}: {total}, {ready} of {len(view.partitions)} partitions ready, {state}")
    yield _servers(seen)
    yield _replicas(seen)
    busiest = sorted(view.partitions, key=lambda each: (-(rates[each.partition] or 0.0), each.partition))
    yield _partitions(view, busiest[:most], rates)
    if view.cursors:
        yield _cursors(view)


def _servers(seen: TwoLooks) -> Table:
    table = table_of("server", "state", "appends/s", "bytes/s", "99 % commit in", "lock failures/s", "clients")
    for number, server in seen.now.servers.items():
        now = server.measures
        past = seen.before.servers.get(number) if seen.before is not None else None
        then = past.measures if past is not None else None
        cells: list[str] = ["-"] * 4
        if now is not None:
            commit = now.stages["commit"].since(then.stages["commit"] if then is not None else None)
            cells = [
                _number(seen.rate(now.records, then.records if then else None)),
                _bytes(seen.rate(now.record_bytes, then.record_bytes if then else None)),
                _within(commit),
                _number(seen.rate(now.lock_failures, then.lock_failures if then else None)),
            ]
        table.add_row(str(number), server.state, *cells, _number(server.connections))
    return table


def _replicas(seen: TwoLooks) -> Table:
    table = table_of("replica", "state", "records/s", "bytes/s", "99 % sync in", "behind", "in use", "free")
    for number, replica in seen.now.replicas.items():
        past = seen.before.replicas.get(number) if seen.before is not None else None
        now, then = replica.traffic, past.traffic if past is not None else None
        sync = None if replica.sync is None else replica.sync.since(past.sync if past is not None else None)
        table.add_row(
            str(number),
            replica.state,
            _number(seen.rate(now.records if now else None, then.records if then else None)),
            _bytes(seen.rate(now.record_bytes if now else None, then.record_bytes if then else None)),
            _within(sync),
            _number(_behind(seen.now, number)),
            size_text(replica.disk_use_bytes),
            size_text(replica.disk_free_bytes),
        )
    return table


def _behind(view: ClusterStatus, replica: int) -> int | None:
    """Transactions that a replica lacks in sessions, in all."""
    served = [partition for server in view.servers.values() for partition in server.partitions.values()]
    lags = [
        max(0, partition.high_water_mark - partition.replicas[replica].last_id)
        for partition in served
        if replica in partition.replicas
    ]
    return sum(lags) if lags else None


def _partitions(view: ClusterStatus, shown: Iterable[PartitionAssignment], rates: dict[int, float | None]) -> Table:
    columns = ("partition", "space", "server", "state", "transactions/s", "in flight", "members", "clients", "behind")
    table = table_of(*columns)
    for each in shown:
        now = view.served(each)
        spaces = [space.name for space in view.spaces if each.partition in space.partitions]
        table.add_row(
            str(each.partition),
            spaces[0] if spaces else "-",
            "-" if each.server is None else str(each.server),
            Readiness.NOT_READY if now is None else now.state,
            _number(rates[each.partition]),
            "-" if now is None else size_text(now.in_flight_bytes),
            "-" if now is None else str(len(now.members)),
            "-" if now is None else str(now.subscribers),
            "-" if now is None or not now.lags else _number(max(now.lags.values())),
        )
    return table


def _cursors(view: ClusterStatus) -> Table:
    table = table_of("cursor", "space", "behind", "owner")
    for cursor in sorted(view.cursors, key=lambda each: -(each.lag or 0)):
        table.add_row(cursor.name, cursor.space, _number(cursor.lag), cursor.owner or "-")
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _bytes(value: float | None) -> str:
    return "-" if value is None else size_text(int(value))


def _within(view: HistogramView | None) -> str:
    bound = None if view is None else view.below(0.99)
    if bound is None:
        return "-"
    return f"{bound * 1000:g} ms" if bound < 1 else f"{bound:g} s"
