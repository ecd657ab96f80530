"""The transaction monitor: a table of small stories, and random ones against a model that is slow and plain."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_ray.protocol.client_monitor import ClientMonitor, Piece
from waltz_ray.protocol.records import Int32s, Int64s


def wire(*numbers: int) -> Int32s:
    return np.array(numbers, dtype=np.int64).astype(np.int32)


def ids(*numbers: int) -> Int64s:
    return np.array(numbers, dtype=np.int64)


def monitor_with(*counts: int) -> ClientMonitor[str]:
    """Appends "a", "b", ... of so many records; sequence numbers from 0."""
    monitor: ClientMonitor[str] = ClientMonitor(1000)
    for name, count in zip("abcdefgh", counts, strict=False):
        monitor.register(name, 0, count)
    return monitor


def test_own_entry_commits_and_fails_older_ones() -> None:
    monitor = monitor_with(1, 1, 1)
    done, failed = monitor.committed(wire(1), ids(40))
    assert done == [Piece("b", 0, 1, 0)]
    assert failed == [Piece("a", 0, 1, 0)]
    assert monitor.pending == 1


def test_own_entry_inside_a_group_fails_the_part_before_it() -> None:
    monitor = monitor_with(2, 5)
    done, failed = monitor.committed(wire(4, 5), ids(70, 71))
    assert done == [Piece("b", 2, 2, 0)]
    assert failed == [Piece("a", 0, 2, 0), Piece("b", 0, 2, 0)]
    assert monitor.mounted_ready(71) == [Piece("b", 4, 1, 0)]


def test_offsets_point_into_the_arrays() -> None:
    monitor = monitor_with(2, 1, 3)
    done, failed = monitor.committed(wire(0, 1, 3, 4), ids(9, 10, 12, 13))
    assert done == [Piece("a", 0, 2, 0), Piece("c", 0, 2, 2)]
    assert failed == [Piece("b", 0, 1, 0)]


def test_repeated_entries_are_ignored() -> None:
    monitor = monitor_with(1, 1)
    monitor.committed(wire(0), ids(5))
    assert monitor.committed(wire(0), ids(5)) == ([], [])
    assert monitor.pending == 1


def test_lock_failure_touches_only_its_own() -> None:
    monitor = monitor_with(1, 1, 1)
    assert monitor.lock_failed(wire(1)) == [Piece("b", 0, 1, 0)]
    done, failed = monitor.committed(wire(0, 2), ids(3, 4))
    assert [piece.token for piece in done] == ["a", "c"]
    assert failed == []


def test_rejected_part_of_a_group() -> None:
    monitor = monitor_with(6)
    assert monitor.rejected(wire(2, 3)) == [Piece("a", 2, 2, 0)]
    done, failed = monitor.committed(wire(0, 1, 4, 5), ids(1, 2, 3, 4))
    assert done == [Piece("a", 0, 2, 0), Piece("a", 4, 2, 2)]
    assert failed == []


def test_mounted_ready_fails_what_is_pending_and_nothing_twice() -> None:
    monitor = monitor_with(3, 1)
    assert monitor.mounted_ready(10) == [Piece("a", 0, 3, 0), Piece("b", 0, 1, 0)]
    assert monitor.mounted_ready(10) == []
    assert monitor.register("c", 0, 1) == 4


def test_resume_mark_is_below_every_pending_append() -> None:
    monitor: ClientMonitor[str] = ClientMonitor(10)
    monitor.mark_seen(100)
    monitor.register("a", 0, 1)
    monitor.register("b", 0, 1)
    monitor.mark_seen(500)
    assert monitor.resume_mark == 100  # "a" may be 101
    monitor.committed(wire(0), ids(300))
    assert monitor.resume_mark == 300  # "b" is later than "a"; 500 would be too bold
    monitor.committed(wire(1), ids(600))
    monitor.register("c", 0, 1)
    assert monitor.resume_mark == 600


def test_more_than_the_bound_is_a_bug() -> None:
    monitor: ClientMonitor[str] = ClientMonitor(3)
    monitor.register("a", 0, 2)
    assert monitor.room == 1
    with pytest.raises(AssertionError, match="2 records for room of 1"):
        monitor.register("b", 0, 2)


@pytest.mark.parametrize("start", [(1 << 31) - 2, (1 << 32) - 2, (1 << 40) + (1 << 31) - 1])
def test_sequence_numbers_wrap_on_the_wire(start: int) -> None:
    monitor: ClientMonitor[str] = ClientMonitor(10)
    monitor.next_number = start
    numbers = [monitor.register(name, 0, 1) for name in "abcd"]
    assert numbers == [start, start + 1, start + 2, start + 3]
    done, failed = monitor.committed(wire(*numbers[1:3]), ids(1, 2))
    assert [piece.token for piece in done] == ["b", "c"]
    assert [piece.token for piece in failed] == ["a"]


@given(st.lists(st.integers(-40, 40), max_size=40), st.sampled_from([0, 100, (1 << 31) - 9, (1 << 32) - 9, 1 << 40]))
def test_few_numbers_and_many_are_read_alike(distances: list[int], start: int) -> None:
    monitor: ClientMonitor[str] = ClientMonitor(10)
    monitor.next_number = start
    numbers = np.array([start + distance for distance in distances], dtype=np.int64)
    assert monitor.expand(wire(*numbers)).tolist() == numbers.tolist()
    expected = [
        int(number)
        for piece in (numbers[i : i + 5] for i in range(0, len(numbers), 5))
        for number in _flat(monitor, piece)
    ]
    assert expected == numbers.tolist() == _flat(monitor, numbers)


def _flat(monitor: ClientMonitor[str], numbers: Int64s) -> list[int]:
    """All numbers of the runs, after a look at where each begins."""
    runs = monitor._runs(wire(*numbers))
    for first, _, position in runs:
        assert numbers[position] == first
    return [number for first, end, _ in runs for number in range(first, end)]


@dataclass
class Model:
    """One dict entry per record; nothing clever."""

    next: int = 0
    pending: dict[int, tuple[str, int]] = field(default_factory=dict)

    def register(self, token: str, count: int) -> None:
        for position in range(count):
            self.pending[self.next] = (token, position)
            self.next += 1

    def take(self, numbers: list[int]) -> list[tuple[str, int]]:
        return [self.pending.pop(number) for number in numbers if number in self.pending]


def flat(pieces: list[Piece[str]]) -> list[tuple[str, int]]:
    return [(piece.token, piece.start + i) for piece in pieces for i in range(piece.size)]


@settings(max_examples=300)
@given(st.data())
def test_agrees_with_the_model(data: st.DataObject) -> None:
    monitor: ClientMonitor[str] = ClientMonitor(200)
    model = Model()
    fates: list[tuple[str, int]] = []
    next_id = 0
    for step in range(data.draw(st.integers(1, 25))):
        event = data.draw(st.sampled_from(["register", "register", "committed", "lock", "rejected", "ready"]))
        if event == "register" or not model.next:
            count = data.draw(st.integers(1, 6))
            monitor.register(str(step), 0, count)
            model.register(str(step), count)
            continue
        if event == "ready":
            expected = model.take(sorted(model.pending))
            got = flat(monitor.mounted_ready(next_id))
            assert got == expected
            fates += got
            continue
        numbers = sorted(data.draw(st.sets(st.integers(0, model.next - 1), max_size=20)))  # few and many: two ways
        if event == "committed":
            older = [n for n in sorted(model.pending) if numbers and n < numbers[-1] and n not in numbers]
            in_log = [n for n in numbers if n in model.pending]
            where = {model.pending[n]: numbers.index(n) for n in in_log}
            done, failed = monitor.committed(wire(*numbers), ids(*range(next_id, next_id + len(numbers))))
            next_id += len(numbers)
            assert flat(done) == model.take(in_log)
            assert flat(failed) == model.take(older)
            for piece in done:
                for i in range(piece.size):
                    assert where[(piece.token, piece.start + i)] == piece.offset + i
            fates += flat(done) + flat(failed)
        else:
            taken = monitor.lock_failed(wire(*numbers)) if event == "lock" else monitor.rejected(wire(*numbers))
            assert flat(taken) == model.take(numbers)
            fates += flat(taken)
        assert monitor.pending == len(model.pending)
    fates += flat(monitor.drain())
    assert monitor.pending == 0
    assert len(fates) == len(set(fates)) == model.next
