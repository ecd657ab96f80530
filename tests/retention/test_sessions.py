"""Sessions and servers that know of a trim mark: who begins anew, who is told what."""

from __future__ import annotations

from tests.protocol.model_client import append_batch
from tests.protocol.test_partition import Bench as ServerBench
from tests.protocol.test_partition import free
from tests.protocol.test_session import ALL, MEMBER, Bench, S, closed, only
from waltz_ray.config import ServerConfig
from waltz_ray.protocol.messages.client import FROM_NOW, FeedMode, Mounted, NotReady
from waltz_ray.protocol.messages.original import MountState
from waltz_ray.protocol.partition.events import AppendReceived, FeedReadFailed, ReadFeed, TrimMarkRaised, TurnEnded
from waltz_ray.protocol.roster import UNRESOLVED, ReplicaEntry
from waltz_ray.protocol.session_replica import Phase
from waltz_ray.protocol.session_types import (
    BeginReplica,
    ReadRange,
    ReplicaTruncated,
    SessionFailed,
    TruncateReplica,
    WriteRoster,
)

NEVER = ReplicaEntry(-1, UNRESOLVED)


def begun(bench: Bench) -> list[tuple[int, int]]:
    return [(order.replica_id, order.first_id) for order in bench.orders if isinstance(order, BeginReplica)]


# ---- replicas -----------------------------------------------------------------------------------------------------


def test_a_replica_that_never_joined_begins_at_the_mark_and_is_copied_from_there() -> None:
    bench = Bench({0: MEMBER, 1: MEMBER, 2: NEVER}, trim_mark=7)
    bench.opened(2, -1)
    bench.opened(0, 9)
    bench.opened(1, 9)
    assert begun(bench) == [(2, 7)]
    bench.truncated(2, 6)
    read = bench.last_read()
    assert (read.target_id, read.first_id, read.end_id) == (2, 7, 10)


def test_a_member_that_ends_below_the_mark_begins_anew_before_the_session_is_published() -> None:
    bench = Bench(ALL, trim_mark=7)
    bench.opened(0, 3)
    bench.opened(1, 9)
    assert begun(bench) == [(0, 7)]
    assert not [order for order in bench.orders if isinstance(order, WriteRoster)]


def test_one_that_ends_just_before_the_mark_goes_on_as_it_is() -> None:
    bench = Bench(ALL, trim_mark=7)
    bench.opened(0, 6)
    bench.opened(1, 9)
    assert begun(bench) == []
    assert bench.last_read().first_id == 7


def test_what_counts_is_how_far_a_log_is_right() -> None:
    """Behind its closing mark a non-member may have anything, also above the trim mark."""
    bench = Bench({0: MEMBER, 1: MEMBER, 2: closed(3)}, trim_mark=7)
    bench.opened(2, 20)
    bench.opened(0, 9)
    bench.opened(1, 9)
    assert begun(bench) == [(2, 7)]
    assert not [order for order in bench.orders if isinstance(order, TruncateReplica)]


def test_a_damaged_replica_begins_anew_once_a_session_is_published_without_it() -> None:
    bench = Bench(ALL, trim_mark=7)
    bench.opened(2, 4, damaged=True)
    bench.opened(0, 9)
    bench.opened(1, 9)
    bench.grace()
    assert begun(bench) == []
    bench.written()
    assert begun(bench) == [(2, 7)]
    bench.truncated(2, 6)
    assert bench.phase(2) in (Phase.COPYING, Phase.LIVE)


def test_a_late_joiner_that_is_overtaken_by_the_mark_begins_again() -> None:
    bench = Bench({0: MEMBER, 1: MEMBER, 2: closed(3)})
    bench.opened(0, 9)
    bench.opened(1, 9)
    bench.grace()
    bench.written()
    bench.opened(2, 3)
    read = bench.last_read()
    assert (read.target_id, read.first_id) == (2, 4)
    effects = bench.session.trim(8)
    assert not [effect for effect in effects if isinstance(effect, BeginReplica)], "a piece is on its way"
    bench.orders += effects
    bench.copied(ReadRange(S, read.source_id, 2, 4, 6, 100))
    assert begun(bench) == [(2, 8)]


def test_a_log_that_ends_below_the_mark_is_not_opened() -> None:
    bench = Bench(ALL, trim_mark=12)
    bench.opened(0, 9)
    effects = bench.opened(1, 9)
    assert "ends with transaction 9, and everything below 12 was committed" in only(effects, SessionFailed).reason
    assert begun(bench) == []


def test_a_log_of_which_everything_was_trimmed_is_opened() -> None:
    bench = Bench(ALL, trim_mark=10)
    bench.opened(0, 9)
    bench.opened(1, 2)
    assert begun(bench) == [(1, 10)]
    effects = bench.step(ReplicaTruncated(S, 1, 9))
    assert bench.phase(1) is Phase.HOLDING
    assert not [effect for effect in effects if isinstance(effect, ReadRange)]


# ---- clients ------------------------------------------------------------------------------------------------------


def trimmed_server(mark: int = 5) -> ServerBench:
    """Ten transactions are committed, none is in memory any more."""
    bench = ServerBench(ServerConfig(lock_table_size=1000, join_grace_ms=0, retained_bytes=0)).open()
    bench.mount(connection_id=9, client_id=9, feed=FeedMode.NONE)
    bench.step(AppendReceived(9, append_batch(9, 3, 0, [free()] * 10)))
    bench.step(TurnEnded())
    bench.settle()
    bench.step(TrimMarkRaised(mark))
    bench.sent.clear()
    return bench


def test_a_client_that_needs_what_may_be_gone_is_told_from_where_it_can_mount() -> None:
    bench = trimmed_server()
    for mark, feed in [(-1, FeedMode.RECORDS), (3, FeedMode.HEADERS), (2, FeedMode.OWN)]:
        [mounted] = bench.mount(mark=mark, feed=feed)
        assert (mounted.state, mounted.high_water_mark) == (MountState.TRIMMED, 4)
    assert bench.mount(mark=4) == []
    (read,) = [effect for effect in bench.effects if isinstance(effect, ReadFeed)][-1:]
    assert read.first_id == 5


def test_who_needs_nothing_of_the_past_is_not_hindered() -> None:
    bench = trimmed_server()
    for client_id, (mark, feed) in enumerate([(FROM_NOW, FeedMode.OWN), (-1, FeedMode.NONE), (4, FeedMode.OWN)]):
        told = bench.mount(connection_id=client_id + 1, client_id=client_id + 1, mark=mark, feed=feed)
        assert MountState.TRIMMED not in [mounted.state for mounted in told]


def test_a_mark_never_falls() -> None:
    bench = trimmed_server()
    bench.step(TrimMarkRaised(2))
    assert bench.partition.trim_mark == 5
    [mounted] = bench.mount(mark=3)
    assert mounted.state is MountState.TRIMMED


def test_a_subscriber_whose_next_transaction_goes_while_it_is_read_is_told() -> None:
    bench = trimmed_server(mark=0)
    assert bench.mount(mark=1) == []
    bench.step(TrimMarkRaised(5))
    bench.step(FeedReadFailed(1, 1, "the log begins with transaction 5"))
    [mounted] = bench.told(Mounted, 1)
    assert (mounted.state, mounted.high_water_mark) == (MountState.TRIMMED, 4)
    assert bench.partition.subscribers == 1, "the one that appends is still there"


def test_one_that_was_served_already_mounts_again_and_is_told_then() -> None:
    bench = trimmed_server(mark=0)
    bench.mount(mark=9, credit=0)
    assert [m.state for m in bench.told(Mounted, 1)] == [MountState.READY]
    bench.step(AppendReceived(9, append_batch(9, 3, 10, [free()] * 10)))
    bench.step(TurnEnded())
    bench.settle()
    bench.step(TrimMarkRaised(15))
    bench.step(FeedReadFailed(1, 1, "the log begins with transaction 15"))
    assert len(bench.told(NotReady, 1)) == 1
    [mounted] = bench.mount(mark=9)
    assert (mounted.state, mounted.high_water_mark) == (MountState.TRIMMED, 14)


def test_a_read_that_fails_for_another_reason_is_tried_again() -> None:
    bench = trimmed_server()
    assert bench.mount(mark=4) == []
    bench.step(FeedReadFailed(1, 1, "no replica answers"))
    assert bench.told(Mounted, 1) == []
    assert bench.told(NotReady, 1) == []
