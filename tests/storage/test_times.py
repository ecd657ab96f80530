"""When records were appended: what the time index of a partition says, held against what is true.

The log is driven at random: clocks that jump, records without times, cuts, restarts, the death of the process, of the
machine, a disk that is full for a while. Whatever has become of the index, what was appended at a time or later is
never in front of ``first_id_at(time)``; and where nothing was lost, whole seconds are answered exactly.
"""

from __future__ import annotations

import errno
import random
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

from tests.storage.faulty_disk import FaultyDisk, Survival
from tests.storage.helpers import CLOCK_MS, append, contents, new_log, records, reopen
from waltz_ray.config import StorageConfig
from waltz_ray.errors import DiskFull, OutOfResources
from waltz_ray.protocol.times import MARK_EVERY_BYTES, NO_TIMES, TimeMark, begins_group, joined_times, times_within
from waltz_ray.storage import time_lookup
from waltz_ray.storage.layout import HEADER_BYTES
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.time_index import TIME_ENTRY_BYTES, TimeEntry

CONFIG = StorageConfig(segment_size_bytes=900, index_flush_interval=3, preallocate_bytes=0)
AHEAD_MS = 60_000
"""So far ahead of its own clock does a replica believe a server."""


# ---- marks ------------------------------------------------------------------------------------------------------


def test_a_mark_is_noted_with_each_second_and_after_many_bytes() -> None:
    assert not begins_group(1_999, 1_000, MARK_EVERY_BYTES - 1)
    assert begins_group(2_000, 1_999, 0)
    assert begins_group(1_999, 1_998, MARK_EVERY_BYTES)
    assert not begins_group(1_998, 1_998, MARK_EVERY_BYTES), "nothing could be told apart by it"
    assert not begins_group(500, 1_000, MARK_EVERY_BYTES), "times do not fall"


def test_marks_of_a_part() -> None:
    times = ((10, 1), (12, 5), (20, 9))
    assert times_within(times, 10, 30) == times
    assert times_within(times, 11, 20) == ((11, 1), (12, 5))
    assert times_within(times, 12, 13) == ((12, 5),)
    assert times_within(times, 15, 25) == ((15, 5), (20, 9))
    assert times_within(times, 5, 11) == ((10, 1),)
    assert times_within(times, 0, 10) == times_within(NO_TIMES, 0, 10) == NO_TIMES


def test_marks_of_several_batches_rise() -> None:
    assert joined_times([((1, 5),), ((2, 4),), NO_TIMES, ((3, 5), (4, 6))]) == ((1, 5), (4, 6))


def test_slices_keep_their_times() -> None:
    batch = records(10, 6)
    batch.times = ((10, 1000), (13, 2000))
    assert batch.slice(1, 5).times == ((11, 1000), (13, 2000))
    assert batch.since(14).times == ((14, 2000),)


# ---- the index against the truth --------------------------------------------------------------------------------


class _Disk(FaultyDisk):
    """Its clock is the bench's."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.seed)
        self._bench = bench

    def now_ms(self) -> int:
        return self._bench.now_ms


@dataclass
class Bench:
    """A log, and when each of its records was appended as far as a replica can believe it."""

    seed: int
    crashes: bool
    """Then what is lost is dated by the replica's own clock, so the server's must agree with it."""
    disk: FaultyDisk = field(init=False)
    log: PartitionLog = field(init=False)
    now_ms: int = CLOCK_MS
    session_id: int = 1
    truth: list[int] = field(default_factory=list)
    exact: bool = True
    """No part of the index can have been lost."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.disk = _Disk(self)
        self.log = new_log(self.disk, CONFIG)

    def tick(self) -> None:
        self.now_ms += self.random.choice((0, 1, 30, 400, 999, 1000, 5_000, 70_000))

    def believe(self, said_ms: int, count: int) -> None:
        """What a replica makes of a server's clock."""
        believed = max(min(said_ms, self.now_ms + AHEAD_MS), self.truth[-1] if self.truth else 0)
        self.truth += [believed] * count

    def append(self) -> None:
        count = self.random.randint(1, 4)
        offsets = (0,) if self.crashes else (0, 0, 0, 0, -3_000, -100_000, 20_000, 10**9)
        said = self.now_ms + self.random.choice(offsets)
        batch = records(self.log.last_id + 1, count)
        batch.times = ((batch.first_id, said),)
        self.log.append(self.log.session_id, batch)
        self.believe(said, count)

    def append_copy(self) -> None:
        """As a late joiner is given records: several marks in one batch."""
        batch = records(self.log.last_id + 1, 6)
        begin = max(self.truth[-1] if self.truth else 0, self.now_ms - 10_000)
        said = [min(begin + later, self.now_ms if self.crashes else begin + later) for later in (0, 1500, 2100)]
        batch.times = tuple(zip((batch.first_id, batch.first_id + 2, batch.first_id + 5), said, strict=True))
        self.log.append(self.log.session_id, batch)
        for (_, said_ms), count in zip(batch.times, (2, 3, 1), strict=True):
            self.believe(said_ms, count)

    def append_without_time(self) -> None:
        batch = records(self.log.last_id + 1, 2)
        batch.times = NO_TIMES
        self.log.append(self.log.session_id, batch)
        self.truth += [self.truth[-1] if self.truth else 0] * 2
        self.exact = False

    def cut(self) -> None:
        last_id = self.random.randint(-1, self.log.last_id)
        self.log.truncate(self.log.session_id, last_id)
        del self.truth[last_id + 1 :]
        self.exact = False  # what follows the last entry is in doubt, as after a start

    def restart(self, power: bool) -> None:
        self.log.sync()
        if power:
            self.disk.crash(Survival(self.random.choice((0.0, 0.5, 1.0)), self.random.choice((0.0, 0.5))))
        else:
            self.disk.end_process()
        self.exact = False
        self.session_id += 1
        self.log = reopen(self.disk, CONFIG).partition(0)
        self.log.open_session(self.session_id)
        assert self.log.last_id + 1 == len(self.truth)

    def full(self) -> None:
        self.disk.capacity_bytes = self.disk._used() + self.random.choice((0, 10, 60))
        before = len(self.truth)
        try:
            self.append()
        except DiskFull:
            assert len(self.truth) == before
        self.disk.capacity_bytes = None
        self.exact = False

    def check(self) -> None:
        assert contents(self.log) == [bytes(data) for data in records(0, len(self.truth)).datas()]
        lookup, end_id = self.log.times(), len(self.truth)
        some = self.random.sample(self.truth, min(6, end_id))
        for time_ms in {0, *some, *(t + 1 for t in some), *(t // 1000 * 1000 for t in some), self.now_ms + 10**10}:
            found, right = lookup.first_id_at(time_ms), bisect_left(self.truth, time_ms)
            assert found <= right, (time_ms, found, right)
            if self.exact and time_ms % 1000 == 0:
                assert found == right, (time_ms, found, right)
        assert lookup.first_id_at(self.now_ms + AHEAD_MS + 1000) == end_id, "nothing can be that young"
        until, marks = lookup.marks(0, end_id)
        assert until == end_id
        assert [*marks] == sorted(marks)
        assert all(before[0] < after[0] for before, after in pairwise(marks))
        for transaction_id, believed in enumerate(self.truth):
            known = [time_ms for first_id, time_ms in marks if first_id <= transaction_id]
            if self.exact:
                assert known[-1] // 1000 == believed // 1000, (transaction_id, known[-1], believed)


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_in_front_of_its_time(seed: int, crashes: bool) -> None:
    bench = Bench(seed, crashes)
    actions = [bench.append] * 6 + [bench.append_copy]
    if crashes:
        actions += [
            bench.cut,
            bench.append_without_time,
            lambda: bench.restart(power=True),
            lambda: bench.restart(power=False),
            bench.full,
        ]
    for _ in range(60):
        bench.tick()
        bench.random.choice(actions)()
        if bench.random.random() < 0.3:
            bench.check()
    bench.check()


def test_the_index_of_a_closed_segment_is_durable() -> None:
    disk = FaultyDisk()
    log = new_log(disk, CONFIG)
    while len(files := [path for path in disk.files() if path.endswith(".tix")]) < 3:
        append(log, 1)
    before = {path: disk.content(path) for path in files[:-1]}
    disk.crash()
    assert {path: disk.content(path) for path in files[:-1]} == before
    assert all(len(content) > HEADER_BYTES for content in before.values())


def test_a_lost_index_costs_precision_only() -> None:
    disk = FaultyDisk()
    log = new_log(disk, CONFIG)
    while log.last_id < 60:
        append(log, 1)
    log.sync()
    for path in disk.files():
        if path.endswith(".tix"):
            disk.unlink(path)
    log = reopen_after_kill(disk)
    newest = max(path for path in disk.files() if path.endswith(".seg"))
    assert log.times().first_id_at(disk.now_ms()) == int(Path(newest).stem), "they may be that young"
    assert log.times().first_id_at(disk.now_ms() + AHEAD_MS + 1) == 61, "nothing was there later"
    append(log, 1)
    assert log.times().first_id_at(CLOCK_MS + 400 * 61) <= 61
    assert len(contents(log)) == 62


def test_what_is_there_at_a_start_is_not_younger() -> None:
    disk = FaultyDisk()
    log = new_log(disk, CONFIG)
    while log.last_id < 60:
        append(log, 1)
    log.sync()
    last_ms = log.times().marks(60, 61)[1][0][1]
    disk.clock_ms = last_ms + 3_600_000
    assert log.times().first_id_at(last_ms + 1000) == 61
    log = reopen_after_kill(disk)
    start_ms = disk.clock_ms
    for clock_ms in (start_ms, start_ms + 10**9, 0):
        disk.clock_ms = clock_ms  # when it is asked is all the same
        assert log.times().first_id_at(start_ms) <= 60, "its entry may have been lost"
        assert log.times().first_id_at(start_ms + AHEAD_MS + 1) == 61
    log = reopen_after_kill(disk)
    assert log.times().first_id_at(start_ms + AHEAD_MS + 1) <= 60, "a clock that has been set back proves nothing"


def test_a_file_that_goes_while_it_is_written_is_made_anew() -> None:
    disk = FaultyDisk()
    log = new_log(disk, StorageConfig(preallocate_bytes=0))
    for _ in range(10):
        append(log, 1)
    [path] = [path for path in disk.files() if path.endswith(".tix")]
    handles = disk.open_handles()
    disk.unlink(path)
    for _ in range(20):
        append(log, 1)
    log.set_low_water_mark(1, 29, 29)
    disk.unlink(path)
    log.set_low_water_mark(1, 29, 29)
    for _ in range(10):
        append(log, 1)
    assert path in disk.files()
    assert len(contents(log)) == 40
    lookup = log.times()
    assert lookup.first_id_at(CLOCK_MS + 400 * 35) <= 35
    assert lookup.marks(38, 40)[1][0][1] >= CLOCK_MS + 400 * 36
    assert disk.open_handles() == handles


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES])
@pytest.mark.parametrize("call", ["open", "pread"])
def test_a_file_that_cannot_be_read_is_no_reason_to_refuse(call: str, error: int) -> None:
    disk = FaultyDisk()
    log = new_log(disk, CONFIG)
    while log.last_id < 30:
        append(log, 1)
    log.sync()
    before = disk.open_handles()
    for path in disk.files():
        if path.endswith(".tix"):
            disk.errors[call, path] = error
    assert log.times().first_id_at(CLOCK_MS + 4000) <= 31  # by the creation times, which this disk's clock has given
    assert log.times().marks(0, 31)[0] == 31
    assert disk.open_handles() == before
    append(log, 1)
    disk.errors.clear()
    for _ in range(9):
        append(log, 1)
    assert log.times().first_id_at(CLOCK_MS + 400 * 35) <= 35
    assert len(contents(log)) == 41


def test_a_lack_of_handles_is_said() -> None:
    disk = FaultyDisk()
    log = new_log(disk, CONFIG)
    append(log, 3)
    [path] = [path for path in disk.files() if path.endswith(".tix")]
    disk.errors["open", path] = errno.EMFILE
    with pytest.raises(OutOfResources):
        log.times().marks(0, 3)
    append(log, 4)
    disk.errors.clear()
    append(log, 3)
    assert log.times().marks(0, 10)[0] == 10


def test_entries_of_records_that_were_cut_do_not_come_back() -> None:
    disk = FaultyDisk()
    log = new_log(disk, StorageConfig(preallocate_bytes=0))
    append(log, 1)
    for _ in range(20):
        append(log, 1)
    log.sync()
    log.truncate(1, 4)
    late = records(5, 1)
    late.times = ((5, CLOCK_MS + 50_000),)
    log.append(1, late)
    log.sync()
    disk.crash(Survival(1.0))
    log = reopen_after_kill(disk)
    assert log.times().first_id_at(CLOCK_MS + 49_000) <= 5
    assert log.times().marks(0, 6)[1][-1] in (
        (5, CLOCK_MS + 50_000),
        (3, CLOCK_MS + 1200),
    ), "as it is, or lost; but not what was said of the old record 5"


def test_long_answers_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_lookup, "MOST_MARKS", 3)
    disk = FaultyDisk()
    log = new_log(disk, CONFIG)
    while log.last_id < 39:
        append(log, 1)
    found: list[TimeMark] = []
    first_id = 0
    while first_id < 40:
        first_id, marks = log.times().marks(first_id, 40)
        assert len(marks) <= 3
        found += marks
    monkeypatch.undo()
    assert joined_times([tuple(found)]) == joined_times([log.times().marks(0, 40)[1]])


def test_the_bytes_of_an_entry() -> None:
    raw = TimeEntry(7, 1_700_000_000_000).encode()
    assert raw.hex() == "00000000000000070000018bcfe56800000000006fdd3965"
    assert TimeEntry.decode(raw) == TimeEntry(7, 1_700_000_000_000)
    assert TimeEntry.decode(raw[:-1]) is TimeEntry.decode(bytes(TIME_ENTRY_BYTES)) is None
    assert TimeEntry.decode(TimeEntry(7, 5, loose=True).encode()) == TimeEntry(7, 5, loose=True)


def reopen_after_kill(disk: FaultyDisk) -> PartitionLog:
    disk.end_process()
    log = reopen(disk, CONFIG).partition(0)
    log.open_session(2)
    return log
