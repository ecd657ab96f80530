"""A late joiner keeps what it was copied when the session ends before it is a member."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.protocol.test_session import MEMBER, Bench, S, closed, records
from tests.simulation.break_rule import break_rule
from tests.simulation.mutations import WALKED
from waltz_ray.protocol import session_rules
from waltz_ray.protocol.ids import NO_TRANSACTION
from waltz_ray.protocol.roster import ReplicaEntry
from waltz_ray.protocol.session_replica import Phase
from waltz_ray.protocol.session_types import (
    AppendToReplicas,
    RangeRead,
    ReadRange,
    SessionEffect,
    SetReplicaMark,
    TruncateReplica,
)

LAST = 99  # of the members, and committed
PIECE = 7  # records


@dataclass
class Joiner:
    """Replica 2 from session to session: what it has, its mark, and every record that it was ever sent."""

    entry: ReplicaEntry
    last_id: int
    mark: int = NO_TRANSACTION
    sent: list[int] = field(default_factory=list)

    def in_a_session(self, pieces: int, progress_bytes: int = 1) -> Bench:
        """A new server opens the partition, copies so many pieces, and is gone."""
        bench = Bench({0: MEMBER, 1: MEMBER, 2: self.entry}, progress_bytes=progress_bytes)
        bench.opened(0, LAST)
        bench.opened(1, LAST)
        bench.grace()
        bench.marked(bench.written())
        effects = bench.opened(2, self.last_id, low=self.mark)
        for order in effects:
            if isinstance(order, TruncateReplica):
                self.last_id, self.mark = order.last_id, min(self.mark, order.last_id)
                effects = bench.truncated(2, order.last_id)
        for _ in range(pieces):
            effects = self._copy(bench, effects)
        return bench

    def _copy(self, bench: Bench, effects: list[SessionEffect]) -> list[SessionEffect]:
        (read,) = [effect for effect in effects if isinstance(effect, ReadRange)]
        assert read.first_id == self.last_id + 1
        end_id = min(read.end_id, read.first_id + PIECE)
        batch = records(read.first_id, end_id)
        sent = bench.step(RangeRead(S, read.source_id, 2, batch))
        assert [order.batch.first_id for order in sent if isinstance(order, AppendToReplicas)] == [read.first_id]
        self.sent += range(read.first_id, end_id)
        self.last_id = end_id - 1
        effects = bench.appended(2, self.last_id)
        marks = [order.low_water_mark for order in effects if isinstance(order, SetReplicaMark)]
        self.mark = max([self.mark, *marks])
        return effects


@pytest.mark.parametrize(
    "joiner", [Joiner(closed(3), 3), Joiner(closed(3), 20), Joiner(ReplicaEntry(-1, None), 12)], ids=str
)
def test_three_sessions_in_a_row_copy_nothing_twice(joiner: Joiner) -> None:
    for _ in range(3):
        joiner.in_a_session(pieces=4)
    assert joiner.sent == list(range(joiner.sent[0], joiner.sent[0] + 12 * PIECE))
    bench = joiner.in_a_session(pieces=1)
    assert joiner.last_id < LAST
    while bench.phase(2) is Phase.COPYING:
        joiner._copy(bench, [bench.last_read()])
    assert joiner.sent == list(range(joiner.sent[0], LAST + 1))
    marks = [order for order in bench.written() if isinstance(order, SetReplicaMark)]
    assert marks == [SetReplicaMark(S, 2, LAST)], "a member; its mark is not lowered"


def test_the_mark_is_raised_after_so_many_bytes() -> None:
    joiner, three = Joiner(closed(3), 3), 3 * records(0, PIECE).size_bytes
    bench = joiner.in_a_session(pieces=8, progress_bytes=three - 50)
    marks = [
        order.low_water_mark for order in bench.orders if isinstance(order, SetReplicaMark) if order.replica_id == 2
    ]
    assert marks == [3 + 3 * PIECE, 3 + 6 * PIECE]


def test_nothing_that_is_not_committed_is_marked() -> None:
    """The member that it is copied from has more than a quorum has."""
    joiner = Joiner(closed(LAST), LAST)
    bench = joiner.in_a_session(pieces=0, progress_bytes=1)
    bench.lost(2)
    for first_id in range(LAST + 1, LAST + 6):
        bench.append(first_id, first_id + 1)
    bench.appended(0, LAST + 5)
    bench.appended(1, LAST + 2)
    bench.session.piece_bytes = 1
    bench.back(2)
    effects, marks = bench.opened(2, LAST), []
    while bench.phase(2) is Phase.COPYING:
        effects = bench.appended(2, [e for e in effects if isinstance(e, AppendToReplicas)][-1].batch.last_id)
        marks += [order.low_water_mark for order in effects if isinstance(order, SetReplicaMark)]
    assert marks == [LAST + 1, LAST + 2]


def test_a_mark_above_what_is_committed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    WALKED["progress_above_what_is_committed"](monkeypatch)
    with pytest.raises(AssertionError):
        test_nothing_that_is_not_committed_is_marked()


def test_without_progress_it_copies_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Teeth: what the tests above would see."""
    break_rule(monkeypatch, session_rules, "progress_mark", lambda session, replica: NO_TRANSACTION)
    with pytest.raises(AssertionError):
        test_three_sessions_in_a_row_copy_nothing_twice(Joiner(closed(3), 3))
