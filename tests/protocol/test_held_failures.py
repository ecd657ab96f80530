"""Who is told of a lock failure when: one at a time behind each commit, more after a pause, nobody too late."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_ray.protocol.partition import held_failures
from waltz_ray.protocol.partition.held_failures import HeldFailures, LockFailures


class Lines:
    """Client n has connection 100 + n. Told failures as (client, sequence number, conflict)."""

    def __init__(self) -> None:
        self.held = HeldFailures()

    def hold(self, client_id: int, *numbers: int, behind: int) -> None:
        conflicts = np.full(len(numbers), behind, np.int64)
        self.held.hold(LockFailures(100 + client_id, client_id, np.array(numbers, np.int32), conflicts))

    def passed(self, first_id: int, *estimates: int) -> None:
        self.held.passed(first_id, np.array(estimates, np.int64))

    def committed(self, mark: int, *client_ids: int, newest: int = 1000) -> list[tuple[int, int, int]]:
        """Of each of ``client_ids`` a transaction with sequence number ``newest`` is among those committed."""
        return flat(self.held.committed(mark, dict.fromkeys(client_ids, newest)))


def flat(failures: list[LockFailures]) -> list[tuple[int, int, int]]:
    for one in failures:
        assert one.connection_id == 100 + one.client_id
    return [
        (one.client_id, number, conflict)
        for one in failures
        for number, conflict in zip(one.sequence_numbers.tolist(), one.conflicts.tolist(), strict=True)
    ]


def test_one_is_told_at_each_commit_and_the_others_follow_the_lock() -> None:
    lines = Lines()
    for client_id in (1, 2, 3):
        lines.hold(client_id, 7, behind=10)
    assert lines.committed(9) == []
    assert lines.committed(10) == [(1, 7, 10)]
    lines.passed(11, 4, 10)  # transaction 12 has passed the lock that 10 had; 11 another one
    lines.hold(4, 1, behind=12)
    assert not lines.held.resting
    assert lines.committed(11) == []
    assert lines.committed(12) == [(2, 7, 12)]
    assert lines.held.resting
    lines.passed(13, 12)
    assert lines.committed(13) == [(3, 7, 13)]
    lines.passed(14, 13)
    assert lines.committed(14) == [(4, 1, 14)]
    assert not lines.held


def test_who_does_not_try_again_holds_nobody_up_for_long() -> None:
    lines = Lines()
    for client_id in range(20):
        lines.hold(client_id, 0, behind=10)
    counts = [len(lines.committed(10))]
    while lines.held.resting:
        counts.append(len(flat(lines.held.pause_over())))
    # Nobody in the first pause that ends: it may have begun long before. Then twice as many each time.
    assert counts == [1, 0, 2, 4, 8, 5]


def test_a_client_is_told_before_it_hears_of_a_commit_of_its_own() -> None:
    lines = Lines()
    lines.hold(1, 1, 2, behind=10)
    lines.hold(2, 1, behind=10)
    lines.hold(1, 3, behind=11)
    assert lines.committed(10) == [(1, 1, 10)]
    lines.passed(12, 10)  # the line stands behind 12 now, but its conflict is committed
    assert lines.committed(11, 1) == [(1, 3, 11), (1, 2, 10)]
    assert lines.committed(12) == [(2, 1, 12)]


def test_what_a_client_proposed_after_its_commit_goes_on_waiting() -> None:
    lines = Lines()
    lines.hold(1, 3, 4, 5, 6, behind=10)
    assert lines.committed(10, 1, newest=2) == [(1, 3, 10)], "one of them, as of other clients"
    lines.passed(11, 10)  # its second attempt, with number 7
    assert lines.committed(11, 1, newest=5) == [(1, 4, 11), (1, 5, 11)]
    assert lines.committed(12, 1, newest=7) == [(1, 6, 11)]


def test_sequence_numbers_wrap_around() -> None:
    lines, top = Lines(), (1 << 31) - 1
    lines.hold(1, top - 1, top, -top - 1, -top, behind=10)
    assert [number for _, number, _ in lines.committed(10, 1, newest=-top - 1)] == [top - 1, top, -top - 1]


def test_a_flush_settles_what_came_over_its_connection() -> None:
    lines = Lines()
    lines.hold(1, 1, behind=10)
    lines.hold(2, 1, 2, behind=10)
    lines.hold(2, 3, behind=11)
    assert lines.committed(10) == [(1, 1, 10)]
    assert flat(lines.held.settle(connection_ids=[102])) == [(2, 1, 10), (2, 2, 10)]
    assert flat(lines.held.settle(connection_ids=[102])) == []  # 11 is still in flight
    assert lines.committed(11) == [(2, 3, 11)]


def test_a_connection_that_is_gone_and_a_client_that_mounts_anew_are_forgotten() -> None:
    lines = Lines()
    for client_id in (1, 2, 3):
        lines.hold(client_id, 1, behind=10)
    lines.held.forget(connection_ids=[101])
    lines.held.forget(client_ids=[2])
    assert lines.committed(10) == [(3, 1, 10)]
    lines.hold(3, 2, behind=11)
    lines.held.clear()
    assert not lines.held
    assert lines.committed(20) == []


@pytest.fixture
def few_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_failures, "MOST_IN_LINE_OF_ONE", 3)
    monkeypatch.setattr(held_failures, "MOST_IN_LINE", 5)


@pytest.mark.usefixtures("few_places")
def test_who_finds_no_place_in_a_line_is_told_with_the_commit() -> None:
    lines = Lines()
    lines.hold(1, 1, 2, 3, 4, behind=10)
    lines.hold(1, 5, behind=11)
    lines.hold(2, 1, 2, 3, behind=10)
    assert lines.held.crowded == 3
    assert lines.committed(10) == [(1, 1, 10), (1, 4, 10), (2, 3, 10)]
    lines.hold(3, 1, behind=11)  # the place of the one that was told
    lines.hold(3, 2, behind=11)
    lines.passed(12, 10)
    assert lines.committed(11) == [(3, 1, 11), (1, 5, 11), (3, 2, 11)]
    assert lines.held.crowded == 0
    assert lines.committed(12) == [(1, 2, 12)]


@pytest.mark.usefixtures("few_places")
def test_places_are_free_again_when_who_had_them_is_told_or_gone() -> None:
    lines = Lines()
    for _ in range(3):
        lines.hold(1, 1, 2, 3, 4, behind=10)
        lines.hold(2, 1, 2, 3, behind=10)
        assert lines.held.crowded == 2
        lines.held.forget(connection_ids=[101])
        lines.held.forget(client_ids=[2])
        assert lines.held.crowded == 0
        assert not lines.held
    mark = 10
    for settle in (lambda: lines.held.settle([101]), lambda: flat(lines.held.pause_over()) + flat(pauses(lines))):
        lines.hold(1, 1, 2, 3, behind=mark)
        assert lines.held.crowded == 0
        lines.committed(mark)
        settle()
        assert not lines.held
        mark += 1
    lines.hold(1, 1, 2, 3, 4, behind=mark)
    lines.held.clear()
    lines.hold(1, 1, 2, 3, behind=mark)
    assert lines.held.crowded == 0


def pauses(lines: Lines) -> list[LockFailures]:
    return [one for _ in range(5) for one in lines.held.pause_over()]


def test_a_commit_of_somebody_else_looks_at_no_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would cost as much as there are failures, at each commit."""
    lines, looked = Lines(), list[int]()
    lines.hold(1, *range(100), behind=10)
    lines.committed(10, 2)

    def is_older(waiter: held_failures._Waiter, newest: object) -> bool:
        looked.append(waiter.sequence_number)
        return False

    monkeypatch.setattr(held_failures, "_is_older", is_older)
    for mark in range(11, 20):
        assert lines.committed(mark, 2) == []
    assert looked == []
    lines.committed(20, 1)
    assert len(looked) == 99


@given(st.data())
def test_everybody_is_told_exactly_once_and_never_before_the_conflict_is_committed(data: st.DataObject) -> None:
    lines, told = Lines(), list[tuple[int, int, int]]()
    next_id, mark, waiting = 0, -1, 0
    for number in range(data.draw(st.integers(0, 40))):
        match data.draw(st.sampled_from(["admit", "fail", "commit", "pause", "flush"])):
            case "admit":
                lines.passed(next_id, data.draw(st.integers(-1, mark)))
                next_id += 1
            case "fail" if mark + 1 < next_id:
                lines.hold(number % 3, number, behind=data.draw(st.integers(mark + 1, next_id - 1)))
                waiting += 1
            case "commit" if mark + 1 < next_id:
                mark = data.draw(st.integers(mark + 1, next_id - 1))
                told += lines.committed(mark, *data.draw(st.sets(st.integers(0, 2))))
            case "pause":
                told += flat(lines.held.pause_over())
            case "flush":
                told += flat(lines.held.settle(connection_ids=[100 + number % 3]))
        assert all(conflict <= mark for _, _, conflict in told)
    if next_id:
        told += lines.committed(next_id - 1)
    for _ in range(100):
        told += flat(lines.held.pause_over())
    assert not lines.held
    assert len(told) == len({number for _, number, _ in told}) == waiting
