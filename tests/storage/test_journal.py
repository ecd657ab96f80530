"""One sync for the records of many partitions, and what a crash leaves of it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation.mutations import WALKED
from tests.storage.faulty_disk import Crashed, FaultyDisk, Survival
from tests.storage.helpers import DIRECTORY, KEY, append, contents, create, data_of, records, reopen
from waltz_ray.config import StorageConfig
from waltz_ray.errors import DiskFull, SyncFailed
from waltz_ray.storage.disk import OsDisk, Writable
from waltz_ray.storage.journal import journal_entries, journal_path
from waltz_ray.storage.store import ReplicaStore
from waltz_ray.storage.verify import verify_directory

PARTITIONS = 3
CONFIG = StorageConfig(segment_size_bytes=700, index_flush_interval=3, preallocate_bytes=0, journal_bytes=1500)
SURVIVALS = [Survival(1.0), Survival(0.0), Survival(0.5), Survival(0.3, 0.5), Survival(0.0, 1.0)]
LARGE = replace(CONFIG, segment_size_bytes=1 << 20, journal_bytes=1 << 20)


def opened(disk: FaultyDisk, config: StorageConfig = CONFIG) -> ReplicaStore:
    store = create(disk, config, PARTITIONS)
    for partition_id in store.partition_ids:
        store.partition(partition_id).open_session(1)
    return store


def append_to(store: ReplicaStore, partition_id: int, count: int, tag: int = 0) -> None:
    append(store.partition(partition_id), count, tag)


def calls(disk: FaultyDisk, name: str) -> list[str]:
    return [path for called, path in disk.calls if called == name]


class Promise:
    """What was handed to each partition of a store, and how much of it was reported durable."""

    def __init__(self, store: ReplicaStore) -> None:
        self.store = store
        self.records: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.durable = [0] * PARTITIONS

    def append(self, partition_id: int, count: int, tag: int = 0) -> None:
        mine = self.records[partition_id]
        mine += [data_of(i, tag) for i in range(len(mine), len(mine) + count)]
        append_to(self.store, partition_id, count, tag)

    def sync(self, *partition_ids: int) -> None:
        self.store.sync(partition_ids)
        for partition_id in partition_ids:
            self.durable[partition_id] = len(self.records[partition_id])

    def cut(self, partition_id: int, last_id: int) -> None:
        self.durable[partition_id] = min(self.durable[partition_id], last_id + 1)
        self.store.partition(partition_id).truncate(1, last_id)
        del self.records[partition_id][last_id + 1 :]

    def holds(self, disk: FaultyDisk) -> None:
        store = reopen(disk, self.store._config)
        for partition_id in range(PARTITIONS):
            log = store.partition(partition_id)
            assert log.damaged is None, str(log.damaged)
            assert log.last_id + 1 >= self.durable[partition_id], f"partition {partition_id} has lost records"
            found = contents(log)
            assert found == self.records[partition_id][: len(found)]
            log.open_session(2)
            append(log, 4, tag=8)
        store.sync(store.partition_ids)
        ends = [store.partition(partition_id).last_id for partition_id in range(PARTITIONS)]
        disk.crash()
        store = reopen(disk, self.store._config)
        assert [store.partition(partition_id).last_id for partition_id in range(PARTITIONS)] == ends
        store.close()
        report = verify_directory(disk, DIRECTORY)
        assert report.ok, str(report.damage)


def scenario(promise: Promise) -> None:
    """Turns of one, two and three partitions, rolls, several laps through the journal, a cut in between."""
    for turn in range(9):
        for partition_id in range(PARTITIONS):
            if turn % (partition_id + 1) == 0:
                promise.append(partition_id, 1 + turn % 3)
        promise.sync(*range(PARTITIONS))
    promise.append(0, 2)
    promise.append(2, 1)
    promise.cut(0, len(promise.records[0]) - 6)
    promise.append(0, 3, tag=1)
    promise.append(1, 2)
    promise.sync(0, 1)
    promise.store.partition(1).set_low_water_mark(1, 3, 3)
    promise.append(0, 1)
    promise.append(2, 1)
    promise.sync(0, 2)


def crash_everywhere(survival: Survival) -> None:
    counting = FaultyDisk()
    promise = Promise(opened(counting))
    before = counting.changes()
    scenario(promise)
    steps = counting.changes() - before
    assert steps > 60
    for step in range(steps + 1):
        disk = FaultyDisk(seed=step)
        promise = Promise(opened(disk))
        disk.crash_after = step
        try:
            scenario(promise)
        except Crashed:
            pass
        else:
            assert step == steps
        disk.crash(survival)
        promise.holds(disk)


def crash_everywhere_in_every_way() -> None:
    for survival in SURVIVALS:
        crash_everywhere(survival)


@pytest.mark.parametrize("survival", SURVIVALS, ids=str)
def test_crash_before_every_change(survival: Survival) -> None:
    crash_everywhere(survival)


@pytest.mark.parametrize(
    "name", ["journal_is_not_replayed", "journal_survives_a_cut", "journal_is_used_again_too_early"]
)
def test_the_crash_test_has_teeth(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    WALKED[name](monkeypatch)
    with pytest.raises((AssertionError, FileNotFoundError)):  # the latter: a segment to be flushed was cut away
        crash_everywhere_in_every_way()


@pytest.mark.parametrize("survival", SURVIVALS, ids=str)
def test_crash_at_every_change_of_a_start(survival: Survival) -> None:
    for step in range(200):
        disk = FaultyDisk(seed=step)
        promise = Promise(opened(disk))
        scenario(promise)
        disk.crash(survival)
        disk.crash_after = step
        try:
            reopen(disk, CONFIG)
        except Crashed:
            disk.crash(survival)
            promise.holds(disk)
            continue
        disk.crash_after = None
        break
    assert step > 3


def test_many_partitions_cost_one_sync() -> None:
    disk = FaultyDisk()
    store = opened(disk, LARGE)
    for turn in range(2):
        for partition_id in store.partition_ids:
            append_to(store, partition_id, 2)
        disk.calls.clear()
        store.sync(store.partition_ids)
        if turn:  # the first makes the files
            assert calls(disk, "fdatasync") == [journal_path(DIRECTORY, 0)]
    assert [store.partition(p).synced_id for p in store.partition_ids] == [3, 3, 3]
    disk.calls.clear()
    append_to(store, 1, 2)
    store.sync([1])
    assert calls(disk, "fdatasync") == [f"{DIRECTORY}/1/{0:019d}.seg"], "one partition needs no journal"


def test_large_pieces_are_synced_in_place() -> None:
    disk = FaultyDisk()
    store = opened(disk, replace(CONFIG, segment_size_bytes=1 << 20))
    for partition_id in range(2):
        append_to(store, partition_id, 30)
    disk.calls.clear()
    store.sync([0, 1])
    assert sorted(calls(disk, "fdatasync")) == [f"{DIRECTORY}/{p}/{0:019d}.seg" for p in (0, 1)]
    assert not disk.exists(journal_path(DIRECTORY, 0))


def test_a_disk_without_room_for_a_journal_does_without() -> None:
    disk = FaultyDisk()
    store = opened(disk, LARGE)
    for partition_id in range(2):
        append_to(store, partition_id, 2)
    disk.capacity_bytes = disk._used() + 1000
    store.sync([0, 1])
    assert not disk.exists(journal_path(DIRECTORY, 0))
    disk.crash()
    assert [reopen(disk, LARGE).partition(0).last_id for _ in range(1)] == [1]


@pytest.mark.parametrize("index", [0, 1])
def test_a_header_that_found_no_room_hides_no_entry(index: int) -> None:
    """Where what is overwritten takes room, too: files of a file system that copies on write."""
    disk = FaultyDisk()
    promise = Promise(opened(disk, LARGE))
    promise.append(0, 4)
    promise.append(1, 4)
    promise.sync(0, 1)
    disk.errors["pwrite", journal_path("", index)] = errno.ENOSPC
    with pytest.raises(DiskFull):
        promise.store.partition(0).truncate(1, 2)
    disk.errors.clear()
    promise.append(1, 2)
    promise.append(2, 2)
    promise.sync(1, 2)
    assert any(entry.partition_id == 2 for entry in journal_entries(disk, DIRECTORY, KEY))
    promise.records[0] = promise.records[0][:4]
    promise.durable[0] = 3  # it may have been cut, or not
    disk.crash()
    promise.holds(disk)


def test_entries_that_find_no_room_are_synced_in_their_segments() -> None:
    disk = FaultyDisk()
    promise = Promise(opened(disk, LARGE))
    promise.append(0, 4)
    promise.append(1, 4)
    promise.sync(0, 1)
    promise.append(0, 2)
    promise.append(1, 2)
    disk.errors["pwrite", "journal"] = errno.ENOSPC
    promise.sync(0, 1)
    disk.errors.clear()
    disk.crash()
    promise.holds(disk)


def test_an_entry_of_a_write_that_found_no_room_brings_nothing_back_that_is_cut_later() -> None:
    """The first of two entries was written whole before the room was at an end: a start would find it."""

    class Narrow(FaultyDisk):
        narrow = False

        def pwrite(self, handle: int, data: Writable, offset: int) -> None:
            path = self._of(handle)[0]
            if self.narrow and "journal" in path:
                super().pwrite(handle, bytes(data)[: len(data) * 3 // 4], offset)
                raise OSError(errno.ENOSPC, "No space left on device", path)
            super().pwrite(handle, data, offset)

    disk = Narrow()
    promise = Promise(opened(disk, LARGE))
    promise.append(1, 4)
    promise.append(2, 4)
    promise.sync(1, 2)
    promise.append(0, 4)
    promise.append(1, 4)
    disk.narrow = True
    promise.sync(0, 1)
    disk.narrow = False
    promise.cut(0, 1)
    promise.append(0, 2, tag=1)
    promise.sync(0)
    disk.crash(Survival(1.0))
    promise.holds(disk)


def test_segments_are_synced_a_few_at_a_time_before_their_entries_go() -> None:
    """No turn syncs everything at once: what the old file stands in for is synced while the other one fills."""
    disk = FaultyDisk()
    store = opened(disk, replace(LARGE, journal_bytes=4000))
    most = 0
    for _ in range(200):
        for partition_id in store.partition_ids:
            append_to(store, partition_id, 1)
        disk.calls.clear()
        store.sync(store.partition_ids)
        most = max(most, len([path for path in calls(disk, "fdatasync") if path.endswith(".seg")]))
    assert most == 1


def test_a_failed_sync_of_the_journal_is_never_an_acknowledgement() -> None:
    disk = FaultyDisk()
    store = opened(disk, LARGE)
    for partition_id in range(2):
        append_to(store, partition_id, 1)
    store.sync([0, 1])
    for partition_id in range(2):
        append_to(store, partition_id, 1)
    disk.fail_sync = True
    with pytest.raises(SyncFailed):
        store.sync([0, 1])
    disk.fail_sync = False
    for partition_ids in ([0, 1], [2]):
        with pytest.raises(SyncFailed):
            store.sync(partition_ids)
    with pytest.raises(SyncFailed):
        append_to(store, 0, 1)
    assert [store.partition(p).synced_id for p in (0, 1)] == [0, 0]


def test_entries_behind_a_rotten_one_are_not_believed() -> None:
    disk = FaultyDisk()
    store = opened(disk, LARGE)
    for _ in range(3):
        for partition_id in range(2):
            append_to(store, partition_id, 1)
        store.sync([0, 1])
    entries = list(journal_entries(disk, DIRECTORY, KEY))
    assert [(e.partition_id, e.first_id) for e in entries] == [(0, 0), (1, 0)] * 3
    disk.flip(journal_path(DIRECTORY, 0), 64 + 36 + len(entries[0].data) + 40)
    assert list(journal_entries(disk, DIRECTORY, KEY)) == entries[:1]


def test_verify_names_records_that_only_the_journal_has() -> None:
    disk = FaultyDisk()
    store = opened(disk, LARGE)
    for partition_id in range(2):
        append_to(store, partition_id, 2)
    store.sync([0, 1])
    disk.crash()  # the segments' pages were never written
    report = verify_directory(disk, DIRECTORY)
    assert report.damage is not None
    assert report.damage.file == f"{DIRECTORY}/0/{0:019d}.seg"
    assert "the journal has" in report.damage.reason
    reopen(disk, LARGE).close()
    assert verify_directory(disk, DIRECTORY).ok


@pytest.mark.parametrize("size", [0, 3000])
def test_another_size_is_taken_up_at_the_next_start(size: int) -> None:
    disk = FaultyDisk()
    promise = Promise(opened(disk))
    scenario(promise)
    disk.crash()
    store = reopen(disk, replace(CONFIG, journal_bytes=size))
    assert not disk.exists(journal_path(DIRECTORY, 0))
    for partition_id in store.partition_ids:
        assert store.partition(partition_id).last_id + 1 >= promise.durable[partition_id]


def test_nothing_of_it_is_valid_after_a_clean_end() -> None:
    disk = FaultyDisk()
    store = opened(disk, LARGE)
    for partition_id in range(2):
        append_to(store, partition_id, 1)
    store.sync([0, 1])
    assert list(journal_entries(disk, DIRECTORY, KEY))
    store.close()
    assert not list(journal_entries(disk, DIRECTORY, KEY))


def test_threads_share_syncs(tmp_path: Path) -> None:
    """Connections of several servers write at the same time; every turn is durable when its sync returns."""
    partitions, turns, threads = 8, 60, 4
    directory = str(tmp_path / "replica")
    config = StorageConfig(journal_bytes=64 * 1024)
    store = ReplicaStore.create(OsDisk(), directory, KEY, partitions, config)
    failures: list[BaseException] = []

    def writer(mine: list[int]) -> Callable[[], None]:
        def run() -> None:
            try:
                for turn in range(turns):
                    for partition_id in mine:
                        log = store.partition(partition_id)
                        log.append(1, records(log.last_id + 1, 3, turn, partition_id))
                    store.sync(mine)
                    assert all(store.partition(p).synced_id == 3 * turn + 2 for p in mine)
            except BaseException as error:
                failures.append(error)
                raise

        return run

    for partition_id in range(partitions):
        store.partition(partition_id).open_session(1)
    running = [threading.Thread(target=writer([n, n + threads])) for n in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not failures
    store.close()
    store = ReplicaStore.open(OsDisk(), directory, KEY, config)
    for partition_id in range(partitions):
        assert contents(store.partition(partition_id)) == [data_of(i, i // 3) for i in range(3 * turns)]
    store.close()
