"""The log, its fence and its directory when nothing crashes, and the errors each method promises."""

from __future__ import annotations

import threading
import uuid
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.storage.faulty_disk import FaultyDisk, Survival
from tests.storage.helpers import (
    DIRECTORY,
    KEY,
    SMALL,
    SMALL_AHEAD,
    UNREPAIRED,
    append,
    assert_verifies,
    contents,
    create,
    data_of,
    new_log,
    records,
    reopen,
)
from waltz_ray.config import StorageConfig
from waltz_ray.errors import (
    ControlFileMissing,
    Corruption,
    DiskFull,
    Fenced,
    ForeignStorage,
    InvalidInput,
    NotContiguous,
    PartitionDamaged,
    RecordsChanged,
    StorageError,
    StorageLocked,
    SyncFailed,
)
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.inspect import describe_directory
from waltz_ray.storage.layout import crc32_at_rest
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.store import ReplicaStore
from waltz_ray.storage.verify import verify_directory


def segments(disk: FaultyDisk) -> list[str]:
    return [path for path in disk.files() if path.endswith(".seg")]


@pytest.mark.parametrize("config", [SMALL, SMALL_AHEAD, StorageConfig()])
@pytest.mark.parametrize("batch", [1, 5, 40])
def test_records_come_back_over_segments_and_restarts(config: StorageConfig, batch: int) -> None:
    disk = FaultyDisk()
    log = new_log(disk, config)
    while log.last_id < 79:
        append(log, batch)
    assert log.sync() == log.last_id == 79
    expected = [data_of(transaction_id) for transaction_id in range(80)]
    assert contents(log) == expected
    disk.crash()
    store = reopen(disk, config)
    assert contents(store.partition(0)) == expected
    store.close()
    assert disk.open_handles() == 0
    assert_verifies(disk, 79)


def test_a_segment_is_closed_by_the_record_that_takes_it_past_the_size() -> None:
    sizes = {}
    for batch in (1, 60):
        disk = FaultyDisk()
        log = new_log(disk)
        while log.last_id < 59:
            append(log, batch)
        log.sync()
        sizes[batch] = {path: len(disk.content(path)) for path in segments(disk)}
    assert sizes[1] == sizes[60]
    assert all(size > SMALL.segment_size_bytes for size in list(sizes[1].values())[:-1])
    for path in list(sizes[1])[:-1]:
        last = int(Path(segments(disk)[segments(disk).index(path) + 1]).stem) - 1
        assert sizes[1][path] - (40 + len(data_of(last))) <= SMALL.segment_size_bytes


def test_crcmod_and_zlib_agree() -> None:
    for size in (0, 1, 36, 1000):
        data = bytes(i * 31 % 256 for i in range(size))
        assert crc32_at_rest(data) == zlib.crc32(data)
        assert crc32_at_rest(memoryview(data)) == zlib.crc32(data)


def test_the_fence() -> None:
    disk = FaultyDisk()
    log = create(disk).partition(0)
    assert log.session_id == -1
    with pytest.raises(Fenced):
        log.append(-1, records(0, 1))
    assert log.open_session(5) == -1
    append(log, 3)
    assert log.open_session(5) == 5
    with pytest.raises(Fenced):
        log.open_session(4)
    assert log.open_session(9) == 5
    actions: list[Callable[[], object]] = [
        lambda: log.append(5, records(3, 1)),
        lambda: log.truncate(5, 0),
        lambda: log.set_low_water_mark(5, 0, 0),
    ]
    for action in actions:
        with pytest.raises(Fenced):
            action()
    disk.crash()
    again = reopen(disk).partition(0)
    assert (again.session_id, again.last_id, again.is_open) == (9, 2, False)


def test_appends_are_contiguous_and_whole() -> None:
    log = new_log(FaultyDisk())
    append(log, 3)
    for first_id in (2, 4):
        with pytest.raises(NotContiguous):
            log.append(1, records(first_id, 1))
    batch = records(3, 2)
    with pytest.raises(RecordsChanged):
        log.append(1, type(batch)(0, 3, batch.lengths, bytes(batch.records)[:-1]))
    with pytest.raises(InvalidInput):
        log.append(1, records(3, 1, partition_id=1))
    log.append(1, records(3, 0))
    assert log.last_id == 2


def test_reads_are_bounded_and_checked() -> None:
    log = new_log(FaultyDisk(), StorageConfig(index_flush_interval=3))
    append(log, 20)
    log.sync()
    assert len(log.read(0, 20, 0)) == 1
    assert len(log.read(0, 20, -(1 << 31))) == 1  # what a stranger may ask for
    assert log.read(4, 7, 10_000).last_id == 6
    two = records(4, 2).size_bytes
    assert len(log.read(4, 20, two)) == 2
    assert len(log.read(4, 20, two - 1)) == 1
    for first_id, end_id in ((20, 21), (-1, 2), (5, 5)):
        with pytest.raises(InvalidInput):
            log.read(first_id, end_id, 100)


@pytest.mark.parametrize("keep", range(-1, 30))
def test_truncate_keeps_exactly_what_it_should(keep: int) -> None:
    disk = FaultyDisk()
    log = new_log(disk)
    append(log, 30)
    log.set_low_water_mark(1, 20, 20)
    log.truncate(1, keep)
    assert (log.last_id, log.low_water_mark) == (keep, min(keep, 20))
    append(log, 5, tag=1)
    log.sync()
    disk.crash()
    store = reopen(disk)
    log = store.partition(0)
    assert contents(log) == [data_of(i) for i in range(keep + 1)] + [data_of(i, 1) for i in range(keep + 1, keep + 6)]
    assert log.local_low_water_mark == min(keep, 20)
    store.close()
    assert_verifies(disk, keep + 5)


def test_low_water_marks() -> None:
    disk = FaultyDisk()
    log = new_log(disk)
    append(log, 10)
    with pytest.raises(InvalidInput):
        log.set_low_water_mark(1, 10, 10)
    log.set_low_water_mark(1, 9, 9)
    disk.crash()  # the records below the marks were made durable with them
    log = reopen(disk).partition(0)
    assert (log.low_water_mark, log.local_low_water_mark, log.last_id) == (9, 9, 9)


def test_a_mark_beyond_damage_is_refused_as_damage() -> None:
    """Met after the session was opened: the server must not take it for records out of order."""
    disk = FaultyDisk()
    log = new_log(disk)
    append(log, 10)
    log.sync()
    disk.flip(f"{DIRECTORY}/0/{0:019d}.seg", 200, 1)
    with pytest.raises(Corruption):
        log.read(0, 10, 10_000)
    with pytest.raises(PartitionDamaged):
        log.set_low_water_mark(1, 9, 9)


def test_whose_directory_it_is() -> None:
    disk = FaultyDisk()
    with pytest.raises(ControlFileMissing):
        reopen(disk)
    store = create(disk)
    with pytest.raises(StorageLocked):
        reopen(disk)
    with pytest.raises(StorageLocked):
        verify_directory(disk, DIRECTORY)
    assert verify_directory(disk, DIRECTORY, allow_running=True).ok
    store.partition(0).open_session(1)
    store.close()
    with pytest.raises(StorageError, match="closed"):
        store.partition(0).sync()
    other = uuid.uuid4()
    with pytest.raises(ForeignStorage, match=rf"{KEY}.*{other}"):
        ReplicaStore.open(disk, DIRECTORY, other, SMALL)
    with pytest.raises(StorageError, match="already"):
        create(disk)
    disk.remove(f"{DIRECTORY}/waltz-storage.ctl")
    with pytest.raises(ControlFileMissing):
        reopen(disk)
    with pytest.raises(StorageError, match="control file"):
        create(disk)


def test_another_cluster_s_segment_is_damage() -> None:
    disk = FaultyDisk()
    log = new_log(disk)
    append(log, 3)
    log.sync()
    disk.crash()
    disk.flip(segments(disk)[0], 13)
    log = reopen(disk).partition(0)
    assert log.damaged is not None
    assert "cluster key" in log.damaged.reason


def rotten(disk: FaultyDisk, mark: int, rot_id: int) -> PartitionLog:
    """30 records, low-water mark ``mark``, record ``rot_id`` flipped in the last byte of its header, reopened."""
    log = new_log(disk)
    append(log, 30)
    log.set_low_water_mark(1, mark, mark)
    disk.crash()
    path = max(path for path in segments(disk) if int(Path(path).stem) <= rot_id)
    start = records(int(Path(path).stem), rot_id - int(Path(path).stem)).size_bytes
    disk.flip(path, 128 + start + 35)
    return reopen(disk, UNREPAIRED).partition(0)


def test_a_bad_tail_above_the_mark_is_cut() -> None:
    disk = FaultyDisk()
    log = rotten(disk, mark=20, rot_id=29)
    assert (log.last_id, log.damaged) == (28, None)
    log.open_session(2)
    append(log, 1)
    assert contents(log) == [data_of(i) for i in range(30)]


def test_a_bad_record_below_the_mark_is_damage_until_it_is_cut_away() -> None:
    disk = FaultyDisk()
    log = rotten(disk, mark=29, rot_id=29)
    assert log.last_id == 28
    assert log.damaged is not None
    assert log.damaged.file == segments(disk)[-1]
    with pytest.raises(Corruption):
        log.read(0, 1, 100)
    log.open_session(2)
    with pytest.raises(PartitionDamaged):
        append(log, 1)
    log.truncate(2, 28)
    assert log.damaged is None
    append(log, 1)
    log.sync()
    assert contents(log) == [data_of(i) for i in range(30)]


@pytest.mark.parametrize("rot_id", [0, 3, 11, 17, 28])
def test_rot_in_the_middle_is_found_by_the_reader_and_never_served(rot_id: int) -> None:
    disk = FaultyDisk()
    log = rotten(disk, mark=29, rot_id=rot_id)
    with pytest.raises(Corruption) as caught:
        contents(log)
    assert log.damaged is caught.value or log.damaged == caught.value
    assert log.last_id == rot_id - 1
    log.open_session(2)
    log.truncate(2, rot_id - 1)
    append(log, 30 - rot_id)
    assert contents(log) == [data_of(i) for i in range(30)]
    log.sync()
    disk.crash()
    reopen(disk).close()
    assert_verifies(disk, 29)


@pytest.mark.parametrize("lost", [0, 1, -1])
def test_a_missing_segment_is_damage(lost: int) -> None:
    disk = FaultyDisk()
    log = new_log(disk, UNREPAIRED)
    append(log, 40)
    log.set_low_water_mark(1, 39, 39)
    disk.crash()
    gone = segments(disk)[lost]
    disk.remove(gone)
    log = reopen(disk, UNREPAIRED).partition(0)
    assert log.damaged is not None
    assert log.last_id == int(Path(gone).stem) - 1
    log.open_session(2)
    log.truncate(2, log.last_id)
    append(log, 39 - log.last_id)
    assert contents(log) == [data_of(i) for i in range(40)]


def test_no_files_at_all_where_a_session_was_opened_is_damage() -> None:
    disk = FaultyDisk()
    new_log(disk)
    disk.crash()
    for path in disk.files():
        if "/0/" in path:
            disk.remove(path)
    log = reopen(disk).partition(0)
    assert log.damaged is not None
    log.open_session(2)
    log.truncate(2, -1)
    append(log, 1)
    assert contents(log) == [data_of(0)]


@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("fault", ["missing", "short", "header", "entry", "long"])
def test_a_bad_index_is_made_again(which: int, fault: str) -> None:
    disk = FaultyDisk()
    log = new_log(disk)
    append(log, 31)
    log.sync()
    disk.crash()
    reopen(disk).partition(0).close()
    disk.crash()
    path = [path for path in disk.files() if path.endswith(".idx")][which]
    good = disk.content(path)
    if fault == "missing":
        disk.remove(path)
    elif fault in ("short", "long"):
        disk.put(path, good[:-9] if fault == "short" else good + b"\0\0\0\0\0\0\1\0")
    else:
        disk.flip(path, 30 if fault == "header" else len(good) - 9)
    store = reopen(disk)
    assert contents(store.partition(0)) == [data_of(i) for i in range(31)]
    store.close()
    assert disk.content(path) == good
    assert_verifies(disk, 30)


def test_a_full_disk_leaves_nothing_of_the_batch() -> None:
    for config in (SMALL, SMALL_AHEAD):
        for room in range(0, 3000, 97):
            disk = FaultyDisk()
            log = new_log(disk, config)
            append(log, 10)
            disk.capacity_bytes = sum(len(disk.content(path)) for path in disk.files()) + room
            try:
                append(log, 30, tag=1)
            except DiskFull:
                assert log.last_id == 9
                assert contents(log) == [data_of(i) for i in range(10)]
            else:
                log.truncate(1, 9)
            disk.capacity_bytes = None
            append(log, 30, tag=2)
            assert log.sync() == 39
            disk.crash()
            store = reopen(disk)
            assert contents(store.partition(0))[10:] == [data_of(i, 2) for i in range(10, 40)]
            store.close()
            assert_verifies(disk, 39)


@pytest.mark.parametrize("config", [replace(SMALL, segment_size_bytes=1 << 20), SMALL_AHEAD])
def test_what_was_refused_for_want_of_room_does_not_come_back(config: StorageConfig) -> None:
    """Part of it may be on the disk; this replica has voted without it, and others have committed something else."""
    for seed in range(40):
        disk = FaultyDisk(seed)
        log = new_log(disk, config)
        append(log, 5)
        log.sync()
        disk.capacity_bytes = sum(len(disk.content(path)) for path in disk.files()) + 150
        with pytest.raises(DiskFull):
            append(log, 40, tag=1)
        disk.capacity_bytes = None
        log.open_session(2)
        disk.crash(Survival(0.5))
        assert reopen(disk, config).partition(0).last_id == 4


def test_a_failed_sync_stops_the_store_for_good() -> None:
    disk = FaultyDisk()
    store = create(disk, partitions=2)
    for partition_id in (0, 1):
        store.partition(partition_id).open_session(1)
    log = store.partition(0)
    append(log, 1)
    disk.fail_sync = True
    with pytest.raises(SyncFailed):
        store.sync([0])
    assert log.synced_id == -1
    disk.fail_sync = False
    actions: list[Callable[[], object]] = [
        lambda: store.sync([0]),
        lambda: append(log, 1),
        lambda: log.read(0, 1, 100),
        lambda: store.partition(1).open_session(2),
        lambda: log.truncate(1, -1),
        lambda: log.set_low_water_mark(1, -1, -1),
        lambda: append(store.partition(1), 1),
    ]
    for action in actions:
        with pytest.raises(SyncFailed):
            action()
    store.close()


def test_threads_append_sync_and_read_together(tmp_path: Path) -> None:
    """On the real disk: one writer, two syncers, two readers, and a truncation now and then."""
    config = StorageConfig(segment_size_bytes=20_000, index_flush_interval=50, preallocate_bytes=65_536)
    store = ReplicaStore.create(OsDisk(), str(tmp_path / "deep" / "store"), KEY, 1, config)
    log = store.partition(0)
    log.open_session(1)
    done, errors = threading.Event(), list[BaseException]()

    def run(body: object) -> None:
        assert callable(body)
        try:
            while not done.is_set():
                body()
        except BaseException as error:  # noqa: BLE001  (handed to the test)
            errors.append(error)

    def read() -> None:
        first_id = max(0, log.last_id - 300)
        try:
            batch = log.read(first_id, first_id + 400, 50_000)
        except InvalidInput:
            return  # cut meanwhile
        assert [bytes(data) for data in batch.datas()] == [data_of(i) for i in range(first_id, batch.end_id)]

    threads = [threading.Thread(target=run, args=(body,)) for body in (log.sync, log.sync, read, read)]
    for thread in threads:
        thread.start()
    for turn in range(300):
        append(log, 17)
        if turn % 60 == 59:
            log.truncate(1, log.last_id - 100)
    done.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert log.sync() == log.last_id
    expected = log.last_id
    assert contents(log) == [data_of(i) for i in range(expected + 1)]
    assert store.disk_use_bytes() > 50_000
    store.close()
    report = verify_directory(OsDisk(), store.directory)
    assert report.ok, str(report.damage)
    assert report.partitions[0].last_id == expected


def test_inspect_describes_without_a_lock() -> None:
    disk = FaultyDisk()
    log = new_log(disk)
    append(log, 31)
    log.sync()
    described = describe_directory(disk, DIRECTORY)
    partition = described["partitions"][0]
    assert partition["last_id"] == 30
    assert partition["control"] == {"session_id": 1, "low_water_mark": -1, "local_low_water_mark": -1}
    assert [segment["index"]["state"] for segment in partition["segments"]] == ["complete"] * len(segments(disk))
    assert partition["segments"][1]["first_id"] == partition["segments"][0]["last_id"] + 1
