"""A crash before every single change of the gate, with unsynced writes kept, lost or torn.

What must hold after the restart: it opens, every synced record is there, what is there beyond is a prefix of what was
written, the fence and the marks are at least those that were answered, and the log can go on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.storage.faulty_disk import Crashed, FaultyDisk, Survival
from tests.storage.helpers import (
    DIRECTORY,
    KEY,
    SMALL,
    SMALL_AHEAD,
    TRIMMED,
    UNREPAIRED,
    append,
    assert_verifies,
    contents,
    create,
    data_of,
    records,
    reopen,
)
from tests.storage.originals import original_directory
from waltz_ray.config import StorageConfig
from waltz_ray.errors import ControlFileMissing
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.store import ReplicaStore

SURVIVALS = [Survival(1.0), Survival(0.0), Survival(0.5), Survival(0.3, 0.5), Survival(0.0, 1.0)]


@dataclass
class Promise:
    """What the replica has answered so far, and what it may have begun."""

    log: PartitionLog
    records: list[bytes] = field(default_factory=list)  # all that were handed to the log
    synced: int = 0  # how many of them were reported durable
    shortest: int = 0  # how few may be left: lower than ``synced`` once a truncation has begun
    session_id: int = -1
    marks: tuple[int, int] = (-1, -1)
    least_first: int = 0  # where the log begins, at least and at most
    most_first: int = 0
    possible_marks: set[int] = field(default_factory=lambda: {-1})  # low-water marks that may be on the disk

    def open(self, session_id: int) -> None:
        self.log.open_session(session_id)
        self.session_id, self.shortest = session_id, len(self.records)

    def append(self, count: int, tag: int = 0) -> None:
        first = len(self.records)
        self.records += [data_of(i, tag) for i in range(first, first + count)]
        append(self.log, count, tag)

    def sync(self) -> None:
        assert self.log.sync() == len(self.records) - 1
        self.shortest = len(self.records)

    def mark(self, low: int) -> None:
        self.possible_marks.add(low)
        self.log.set_low_water_mark(self.session_id, low, low)
        self.marks, self.shortest = (low, low), len(self.records)
        self.possible_marks = {low}

    def truncate(self, last_id: int) -> None:
        self.shortest = min(self.shortest, last_id + 1)
        low = min(self.marks[0], last_id)
        self.marks = (low, low)
        self.possible_marks.add(low)
        self.log.truncate(self.session_id, last_id)
        self.possible_marks = {low}
        del self.records[last_id + 1 :]

    def trim(self, mark: int) -> None:
        self.most_first = mark
        self.log.trim(mark)
        self.least_first = self.most_first = self.log.first_id

    def begin_at(self, first_id: int) -> None:
        before = len(self.records)
        self.records += [TRIMMED] * (first_id - before)
        self.most_first, self.shortest = first_id, min(self.shortest, before)
        self.log.begin_at(self.session_id, first_id)
        self.least_first = self.shortest = first_id

    def agrees(self, found: list[bytes], first_id: int) -> bool:
        """What is found, beginning with ``first_id``, is a beginning of what was written and not given up."""
        return self.least_first <= first_id <= self.most_first and all(
            mine == its for mine, its in zip(self.records[first_id:], found[first_id:], strict=False)
        )


def append_and_roll(promise: Promise) -> None:
    promise.open(3)
    for count in (1, 2, 9, 1, 30, 4):
        promise.append(count)
        promise.sync()
    promise.append(3)


def truncate_and_go_on(promise: Promise) -> None:
    promise.open(3)
    promise.append(40)
    promise.mark(35)
    for tag, last_id in ((1, 30), (2, 12), (3, -1)):
        promise.truncate(last_id)
        promise.append(15, tag)
        promise.sync()


def sessions_and_marks(promise: Promise) -> None:
    for session_id in (1, 2, 7):
        promise.open(session_id)
        promise.append(5)
        promise.mark(len(promise.records) - 2)
        promise.mark(len(promise.records) - 4)
    promise.append(2)
    promise.open(8)


def close_and_open(promise: Promise) -> None:
    promise.open(1)
    promise.append(17)
    promise.log.close()
    promise.shortest = len(promise.records)


def trim_and_go_on(promise: Promise) -> None:
    promise.open(3)
    promise.append(40)
    promise.mark(39)
    promise.trim(17)
    promise.append(15)
    promise.sync()
    promise.truncate(45)
    promise.trim(46)  # all of it: the newest segment is closed first
    assert promise.log.first_id == 46
    promise.append(4, 1)
    promise.sync()
    promise.append(1)


def begin_further_on(promise: Promise) -> None:
    promise.open(3)
    promise.append(20)
    promise.mark(11)
    promise.begin_at(50)
    promise.append(20)
    promise.sync()
    promise.begin_at(90)
    promise.begin_at(91)
    promise.append(5)
    promise.mark(93)
    promise.trim(95)


SCENARIOS = [
    append_and_roll,
    truncate_and_go_on,
    sessions_and_marks,
    close_and_open,
    trim_and_go_on,
    begin_further_on,
]


def run(
    disk: FaultyDisk, config: StorageConfig, scenario: Callable[[Promise], None], crash_after: int | None
) -> Promise:
    promise = Promise(create(disk, config).partition(0))
    disk.crash_after = crash_after
    scenario(promise)
    return promise


def check(disk: FaultyDisk, config: StorageConfig, promise: Promise) -> None:
    store = reopen(disk, config)
    log = store.partition(0)
    assert log.damaged is None, str(log.damaged)
    assert log.session_id >= promise.session_id
    assert log.last_id + 1 >= promise.shortest
    assert log.low_water_mark == log.local_low_water_mark <= log.last_id
    assert log.low_water_mark in promise.possible_marks, "a mark that was answered is forgotten"
    found = contents(log)
    assert promise.agrees(found, log.first_id)
    log.open_session(log.session_id + 1)
    append(log, 25, tag=8)
    log.sync()
    disk.crash()
    store = reopen(disk, config)
    assert contents(store.partition(0)) == found + [data_of(i, 8) for i in range(len(found), len(found) + 25)]
    store.close()
    assert_verifies(disk, len(found) + 24)


@pytest.mark.parametrize("config", [SMALL, SMALL_AHEAD], ids=["exact", "ahead"])
@pytest.mark.parametrize("survival", SURVIVALS, ids=str)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_crash_before_every_change(
    scenario: Callable[[Promise], None], survival: Survival, config: StorageConfig
) -> None:
    counting = FaultyDisk()
    create(counting, config)
    before = counting.changes()
    counting = FaultyDisk()
    run(counting, config, scenario, None)
    steps = counting.changes() - before
    assert steps > 10
    for step in range(steps):
        disk = FaultyDisk(seed=step)
        promise = Promise(create(disk, config).partition(0))
        disk.crash_after = step
        with pytest.raises(Crashed):
            scenario(promise)
        disk.crash(survival)
        check(disk, config, promise)


@pytest.mark.parametrize("config", [SMALL, SMALL_AHEAD], ids=["exact", "ahead"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_process_killed_before_every_change_and_power_lost_later(
    scenario: Callable[[Promise], None], config: StorageConfig
) -> None:
    """What a killed process had made, but not synced, is there at the next start, and must not be lost after that."""
    for step in range(1000):
        disk = FaultyDisk(seed=step)
        disk.crash_after = step
        promise = None
        try:
            promise = Promise(create(disk, config).partition(0))
            scenario(promise)
        except Crashed:
            disk.end_process()
        else:
            assert step > 30
            return
        if not disk.exists(f"{DIRECTORY}/waltz-storage.ctl"):
            continue
        store = reopen(disk, config)
        log = store.partition(0)
        log.open_session(log.session_id + 1)
        before = contents(log)
        append(log, 3, tag=6)
        store.sync([0])
        disk.crash()  # nothing that was not synced survives
        log = reopen(disk, config).partition(0)
        assert log.damaged is None, f"step {step}: {log.damaged}"
        assert contents(log) == before + [data_of(i, 6) for i in range(len(before), len(before) + 3)]
        assert promise is None or promise.agrees(before, log.first_id)


@pytest.mark.parametrize("survival", SURVIVALS, ids=str)
def test_crash_while_a_crash_is_recovered_from(survival: Survival) -> None:
    for first in range(20, 60, 3):
        for second in range(12):
            disk = FaultyDisk(seed=first * 100 + second)
            promise = Promise(create(disk, SMALL_AHEAD).partition(0))
            disk.crash_after = first
            with pytest.raises(Crashed):
                truncate_and_go_on(promise)
            disk.crash(survival)
            disk.crash_after = second
            with contextlib.suppress(Crashed):  # the restart is cut short, too
                reopen(disk, SMALL_AHEAD).partition(0)
            disk.crash(survival)
            check(disk, SMALL_AHEAD, promise)


@pytest.mark.parametrize("survival", SURVIVALS, ids=str)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_crash_at_every_change_of_a_start(scenario: Callable[[Promise], None], survival: Survival) -> None:
    """The whole scenario, power off; then every start is cut short one change later than the one before."""
    changes = 0
    for step in range(200):
        disk = FaultyDisk(seed=step)
        promise = run(disk, SMALL_AHEAD, scenario, None)
        disk.crash(survival)
        disk.crash_after = step
        try:
            log = reopen(disk, SMALL_AHEAD).partition(0)
            log.open_session(promise.session_id + 1)
        except Crashed:
            changes += 1
        else:
            break
        disk.crash(survival)
        check(disk, SMALL_AHEAD, promise)
    else:
        raise AssertionError("a start that changes the disk for ever")
    assert changes >= 4


@pytest.mark.parametrize("survival", SURVIVALS, ids=str)
def test_crash_while_a_damaged_partition_is_copied_again(survival: Survival) -> None:
    """Cut before the damage, filled from a peer: in between it is damaged still, or a right and shorter log."""
    for step in range(200):
        disk = FaultyDisk(seed=step)
        promise = run(disk, UNREPAIRED, mark_at_the_end, None)
        promise.log.close()
        disk.crash()
        rot(disk, 11)
        disk.crash_after = step
        try:
            copy_again(disk, promise.session_id + 1)
        except Crashed:
            disk.crash(survival)
        else:
            break
        store = reopen(disk, UNREPAIRED)
        log = store.partition(0)
        assert log.session_id >= promise.session_id
        found = contents(log) if log.damaged is None else []
        assert found == promise.records[: len(found)]
        if log.damaged is None:
            assert log.low_water_mark <= log.last_id, "it would be called damaged at the next start"
        store.close()
        copy_again(disk, log.session_id + 1)
        assert_verifies(disk, 29)
    else:
        raise AssertionError("copying never ends")
    assert step > 15


def mark_at_the_end(promise: Promise) -> None:
    promise.open(3)
    promise.append(30)
    promise.mark(29)


def rot(disk: FaultyDisk, transaction_id: int) -> None:
    """Flip a byte of that record, and take the indexes away: the start finds it, not a reader."""
    path = max(p for p in disk.files() if p.endswith(".seg") and int(Path(p).stem) <= transaction_id)
    first_id = int(Path(path).stem)
    disk.flip(path, 128 + records(first_id, transaction_id - first_id).size_bytes + 35)
    for index in [p for p in disk.files() if p.endswith(".idx")]:
        disk.remove(index)


def copy_again(disk: FaultyDisk, session_id: int) -> None:
    store = reopen(disk, UNREPAIRED)
    log = store.partition(0)
    log.open_session(session_id)
    log.truncate(session_id, log.last_id)
    while log.last_id < 29:
        append(log, min(4, 29 - log.last_id))
        log.sync()
    log.set_low_water_mark(session_id, 29, 29)
    assert contents(log) == [data_of(i) for i in range(30)]
    store.close()


@pytest.mark.parametrize("survival", SURVIVALS, ids=str)
def test_crash_while_a_directory_is_made(survival: Survival) -> None:
    disk = FaultyDisk()
    create(disk)
    for step in range(disk.changes()):
        disk = FaultyDisk(seed=step)
        disk.crash_after = step
        with pytest.raises(Crashed):
            create(disk)
        disk.crash(survival)
        try:
            store = reopen(disk)
        except ControlFileMissing:
            store = create(disk)
        assert store.partition(0).last_id == -1


@pytest.mark.parametrize("survival", SURVIVALS, ids=str)
def test_a_crash_while_the_first_segment_is_made_leaves_nothing_that_is_called_damage(survival: Survival) -> None:
    """Of its two names one may be there alone, and no session may ever be opened here."""
    for step in range(100):
        for seed in range(5):
            disk = FaultyDisk(seed=seed)
            log = create(disk).partition(0)
            disk.crash_after = step
            try:
                log.open_session(1)
            except Crashed:
                disk.crash(survival)
            else:
                assert step > 5
                return
            store = reopen(disk)
            assert store.partition(0).last_id == -1
            store.close()
            assert_verifies(disk, -1)


@pytest.mark.parametrize("survival", SURVIVALS, ids=str)
def test_crash_while_an_original_directory_is_converted(survival: Survival) -> None:
    disk = original_directory(FaultyDisk())
    before = disk.changes()
    reopen(disk).close()
    steps = disk.changes() - before
    assert steps >= 8
    for step in range(steps):
        disk = original_directory(FaultyDisk(seed=step))
        disk.crash_after = step
        with pytest.raises(Crashed):
            ReplicaStore.open(disk, DIRECTORY, KEY, SMALL)
        disk.crash(survival)
        log = reopen(disk).partition(0)
        assert (log.session_id, log.low_water_mark, log.local_low_water_mark) == (4, 12, 11)
        assert log.last_id == 19


@pytest.mark.parametrize("kept", [False, True])
def test_no_acknowledgement_without_its_sync(kept: bool) -> None:
    """Teeth: were ``sync`` to skip the flush, lost writes would be missed here."""
    disk = FaultyDisk()
    promise = run(disk, SMALL, append_and_roll, None)
    if not kept:
        disk.fail_sync = False
        promise.log._disk.fdatasync = lambda handle, path: None  # type: ignore[method-assign]
    promise.append(2)
    promise.sync()
    disk.crash(Survival(0.0))
    if kept:
        check(disk, SMALL, promise)
    else:
        with pytest.raises(AssertionError):
            check(disk, SMALL, promise)
