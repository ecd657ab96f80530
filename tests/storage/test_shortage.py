"""A process without file handles or memory to spare: nothing of it is damage, nothing is lost, nothing ends."""

from __future__ import annotations

import errno
import itertools
import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.storage.faulty_disk import FaultyDisk, Survival
from tests.storage.helpers import (
    DIRECTORY,
    KEY,
    SMALL,
    append,
    assert_verifies,
    contents,
    create,
    data_of,
    new_log,
    records,
    reopen,
)
from tests.storage.test_journal import LARGE, PARTITIONS, Promise, opened
from waltz_ray.config import StorageConfig
from waltz_ray.errors import Corruption, OutOfResources, Trimmed
from waltz_ray.protocol.messages.replica import (
    Append,
    Appended,
    Open,
    Read,
    Records,
    RefusalCode,
    Refused,
)
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.journal import journal_path
from waltz_ray.storage.replica_service import ReplicaService
from waltz_ray.storage.store import ReplicaStore
from waltz_ray.storage.verify import verify_directory

SHORTAGES = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN]
each_shortage = pytest.mark.parametrize("number", SHORTAGES, ids=lambda number: errno.errorcode[number])


def filled(disk: FaultyDisk, config: StorageConfig = SMALL) -> ReplicaStore:
    """30 durable records of session 1 over several segments, the mark at 25."""
    store = create(disk, config)
    log = store.partition(0)
    log.open_session(1)
    append(log, 30)
    log.set_low_water_mark(1, 25, 25)
    return store


def test_a_folder_whose_name_could_not_be_flushed_is_flushed_before_it_holds_records() -> None:
    disk = FaultyDisk()
    store = create(disk)
    disk.errors["fsync_directory", DIRECTORY] = errno.EMFILE
    with pytest.raises(OutOfResources):
        store.partition(0).open_session(1)
    disk.errors.clear()
    log = store.partition(0)
    log.open_session(1)
    append(log, 3)
    log.sync()
    disk.crash()
    assert contents(reopen(disk).partition(0)) == [data_of(i) for i in range(3)]


@pytest.mark.parametrize("which", range(7))
def test_a_log_that_is_half_given_up_has_no_hole(which: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handles are short while segments go, from the first on; whoever needs the log next finds it as it was ordered."""
    disk = FaultyDisk()
    log = filled(disk).partition(0)
    flush, flushed = disk.fsync_directory, itertools.count()

    def short(path: str) -> None:
        if next(flushed) == which:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        flush(path)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "fsync_directory", short)
        with pytest.raises(OutOfResources):
            log.begin_at(1, 100)
    with pytest.raises(Trimmed):
        log.read(0, 30, 1000)
    log.open_session(2)
    assert (log.first_id, log.last_id, log.damaged) == (100, 99, None)
    append(log, 3)
    log.sync()
    disk.crash()
    log = reopen(disk).partition(0)
    assert (log.first_id, log.last_id, log.damaged) == (100, 102, None)


@each_shortage
@pytest.mark.parametrize("call", [("open", ".seg"), ("open", ".idx"), ("pread", ".seg"), ("pread", ".idx")], ids=str)
@pytest.mark.parametrize("first_id", [0, 29], ids=["closed", "active"])
def test_a_read_is_refused_and_the_log_stays_whole(number: int, call: tuple[str, str], first_id: int) -> None:
    disk = FaultyDisk()
    replica = ReplicaService(filled(disk))
    replica.handle([Open(0, 2, KEY)])
    log = replica.store.partition(0)
    disk.errors[call] = number
    (refused,) = replica.handle([Read(0, 2, first_id, 30, 1000)])
    assert isinstance(refused, Refused)
    assert refused.code is RefusalCode.NO_RESOURCES
    assert OutOfResources.retriable
    assert (log.damaged, log.last_id, log.synced_id) == (None, 29, 29)
    disk.errors.clear()
    (served,) = replica.handle([Read(0, 2, first_id, 30, 1000)])
    assert isinstance(served, Records)
    assert contents(log) == [data_of(i) for i in range(30)]


def test_a_disk_that_cannot_read_is_damage_still() -> None:
    disk = FaultyDisk()
    log = filled(disk).partition(0)
    disk.errors["pread", ".seg"] = errno.EIO
    with pytest.raises(Corruption):
        log.read(0, 30, 1000)
    assert list(log.rotten) == [0], "its records are below the mark: a peer has them"
    assert log.damaged is None


@pytest.mark.parametrize("call", [("open", ".seg"), ("create", ".idx.new")], ids=str)
def test_a_wrong_index_is_not_mended_and_no_damage_while_handles_are_scarce(call: tuple[str, str]) -> None:
    """The reader knows that something is wrong, and cannot find out what."""
    disk = FaultyDisk()
    store = filled(disk)
    log = store.partition(0)
    disk.flip(f"{DIRECTORY}/0/{0:019d}.idx", 128 + 8 + 6)
    disk.errors[call] = errno.EMFILE
    with pytest.raises(OutOfResources):
        log.read(0, 30, 1000)
    assert (log.damaged, log.last_id) == (None, 29)
    disk.errors.clear()
    assert contents(log) == [data_of(i) for i in range(30)]
    store.close()
    assert_verifies(disk, 29)


@each_shortage
@pytest.mark.parametrize(
    "call",
    [("open", ".seg"), ("open", ".idx"), ("open", ".ctl"), ("open", "journal"), ("pread", ".seg"), ("create", ".idx")],
    ids=str,
)
def test_a_start_is_refused_and_tried_again(number: int, call: tuple[str, str]) -> None:
    disk = FaultyDisk()
    store = opened(disk, LARGE)
    for partition_id in range(PARTITIONS):
        append(store.partition(partition_id), 5)
    store.sync(store.partition_ids)  # there is a journal now
    disk.crash()
    if call[0] == "create":
        disk.remove(f"{DIRECTORY}/0/{0:019d}.idx")
    disk.errors[call] = number
    started, handles = list[ReplicaStore](), 0

    def start() -> None:
        nonlocal handles
        started.append(reopen(disk, LARGE))
        handles = disk.open_handles()
        started[0].partition(0)

    with pytest.raises(OutOfResources):
        start()
    assert disk.open_handles() == handles, "a start that is tried again and again must not use up the handles"
    disk.errors.clear()
    store = started[0] if started else reopen(disk, LARGE)
    assert [(store.partition(p).last_id, store.partition(p).damaged) for p in range(PARTITIONS)] == [(4, None)] * 3


@pytest.mark.parametrize("call", [("create", ".seg"), ("create", ".idx"), ("fsync_directory", "")], ids=str)
def test_a_roll_without_handles_leaves_nothing_of_the_batch(call: tuple[str, str]) -> None:
    disk = FaultyDisk()
    store = filled(disk)
    log = store.partition(0)
    disk.errors[call] = errno.EMFILE
    with pytest.raises(OutOfResources):
        append(log, 40, tag=1)
    assert (log.last_id, log.damaged, store.disk.failed) == (29, None, False)
    disk.errors.clear()
    assert contents(log) == [data_of(i) for i in range(30)]
    append(log, 40, tag=2)
    assert log.sync() == 69
    disk.crash()
    store = reopen(disk)
    assert contents(store.partition(0)) == [data_of(i, 2 * (i > 29)) for i in range(70)]
    store.close()
    assert_verifies(disk, 69)


def test_an_append_without_handles_is_refused_and_then_taken() -> None:
    disk = FaultyDisk()
    replica = ReplicaService(filled(disk))
    replica.handle([Open(0, 2, KEY)])
    batch = records(30, 40)
    request = Append(0, 2, 30, batch.lengths, memoryview(batch.records))
    disk.errors["create", ".seg"] = errno.EMFILE
    (refused,) = replica.handle([request])
    assert isinstance(refused, Refused)
    assert (refused.code, refused.last_id) == (RefusalCode.NO_RESOURCES, 29)
    disk.errors.clear()
    assert replica.handle([request]) == [Appended(0, 2, 69)]


@pytest.mark.parametrize("survival", [None, Survival(1.0), Survival(0.0), Survival(0.5)], ids=str)
@pytest.mark.parametrize("call", [("open", ".seg"), ("open", ".idx"), ("fsync_directory", "")], ids=str)
def test_a_cut_without_handles_is_cut_again(call: tuple[str, str], survival: Survival | None) -> None:
    for seed in range(5):
        disk = FaultyDisk(seed)
        store = filled(disk)
        log = store.partition(0)
        append(log, 2)  # and not synced
        disk.errors[call] = errno.EMFILE
        with pytest.raises(OutOfResources):
            log.truncate(1, 12)
        disk.errors.clear()
        if survival is not None:
            disk.crash(survival)
            store = reopen(disk)
            log = store.partition(0)
            log.open_session(1)
            assert log.damaged is None
            assert 12 <= log.last_id <= 31
            log.truncate(1, 12)
        assert log.last_id == 12
        append(log, 9, tag=1)
        assert log.sync() == 21
        disk.crash()
        store = reopen(disk)
        assert contents(store.partition(0)) == [data_of(i, int(i > 12)) for i in range(22)]
        store.close()
        assert_verifies(disk, 21)


def test_a_mark_is_not_set_over_records_that_an_interrupted_cut_left_unsynced() -> None:
    disk = FaultyDisk()
    log = new_log(disk, StorageConfig(preallocate_bytes=0))
    append(log, 9)
    disk.errors["open", ".seg"] = errno.EMFILE
    with pytest.raises(OutOfResources):
        log.truncate(1, 6)
    with pytest.raises(OutOfResources):
        log.set_low_water_mark(1, 6, 6)
    disk.errors.clear()
    log.set_low_water_mark(1, 6, 6)
    disk.crash()
    log = reopen(disk).partition(0)
    assert (log.damaged, log.last_id, log.local_low_water_mark) == (None, 6, 6)


@pytest.mark.parametrize("call", [("open", ".seg"), ("create", "journal"), ("fsync_directory", "")], ids=str)
def test_a_journal_without_handles_loses_no_sync(call: tuple[str, str]) -> None:
    """Segments that cannot be opened stay due; when their space in the journal is needed, turns are synced in place."""
    for lost in (False, True):
        disk = FaultyDisk()
        promise = Promise(opened(disk, replace(LARGE, journal_bytes=2000)))
        scarce = False
        for turn in range(60):
            scarce = turn % 20 >= 5
            disk.errors = {call: errno.EMFILE} if scarce else {}
            for partition_id in range(PARTITIONS):
                promise.append(partition_id, 1)
            promise.sync(*range(PARTITIONS))
        assert scarce
        assert not promise.store.disk.failed
        disk.errors = {}
        if call[0] == "open":
            assert disk.exists(journal_path(DIRECTORY, 0))
        if lost:
            disk.crash()
        else:
            promise.store.close()
            report = verify_directory(disk, DIRECTORY)
            assert report.ok, str(report.damage)
        promise.holds(disk)


def test_a_cut_that_cannot_empty_the_journal_does_not_begin() -> None:
    disk = FaultyDisk()
    promise = Promise(opened(disk, LARGE))
    for partition_id in range(PARTITIONS):
        promise.append(partition_id, 6)
    promise.sync(*range(PARTITIONS))
    disk.errors["open", ".seg"] = errno.EMFILE
    with pytest.raises(OutOfResources):
        promise.cut(0, 2)
    disk.errors.clear()
    promise.cut(0, 2)
    promise.append(0, 2, tag=1)
    promise.sync(0)
    disk.crash()
    promise.holds(disk)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOMEM, errno.EACCES])
def test_a_disk_that_does_not_answer_is_not_empty(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a control file that cannot be looked at would be called missing."""
    disk = OsDisk()
    file = tmp_path / "file"
    file.touch()
    assert disk.exists(str(file))
    assert not disk.is_directory(str(file))
    assert disk.is_directory(str(tmp_path))
    assert not disk.exists(str(tmp_path / "other"))
    assert not disk.exists(str(file / "below"))

    real = os.stat

    def stat(path: str, **options: bool) -> os.stat_result:
        if path == str(file):
            raise OSError(number, os.strerror(number), path)
        return real(path, **options)

    monkeypatch.setattr(os, "stat", stat)
    for look in (disk.exists, disk.is_directory):
        with pytest.raises(OSError, match=os.strerror(number)):
            look(str(file))
