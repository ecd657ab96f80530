"""A storage directory that grows, and one that partitions are removed from: a crash before every step of it."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import pytest

from tests.storage.faulty_disk import Crashed, FaultyDisk, Survival
from tests.storage.helpers import DIRECTORY, KEY, SMALL, append, assert_verifies, contents, create, data_of, reopen
from waltz_ray.errors import Corruption, DiskFull, InvalidInput, OutOfResources, SyncFailed
from waltz_ray.protocol.messages.replica import Open, RefusalCode, Refused, StateReply
from waltz_ray.storage.control_file import CONTROL_FILE
from waltz_ray.storage.fence import read_fences
from waltz_ray.storage.replica_service import ReplicaService
from waltz_ray.storage.store import ReplicaStore

SURVIVALS = [Survival(1.0), Survival(0.0), Survival(0.5), Survival(0.3, 0.5), Survival(0.0, 1.0)]
CONTROL = f"{DIRECTORY}/{CONTROL_FILE}"


class Promises:
    """What a replica has answered while it grew: the highest session of each partition, and how many records."""

    def __init__(self) -> None:
        self.sessions: dict[int, int] = {}
        self.records: dict[int, int] = {}

    def open(self, store: ReplicaStore, partition_id: int, session_id: int) -> None:
        store.partition(partition_id).open_session(session_id)
        self.sessions[partition_id] = session_id

    def append(self, store: ReplicaStore, partition_id: int, count: int) -> None:
        log = store.partition(partition_id)
        append(log, count)
        store.sync([partition_id])
        self.records[partition_id] = log.last_id + 1

    def check(self, store: ReplicaStore) -> None:
        for partition_id, session_id in self.sessions.items():
            log = store.partition(partition_id)
            assert log.damaged is None, str(log.damaged)
            assert log.session_id >= session_id, "a fence that was answered is forgotten"
            kept = self.records.get(partition_id, 0)
            assert contents(log)[:kept] == [data_of(i) for i in range(kept)]


def grow_under_load(store: ReplicaStore, promises: Promises) -> None:
    promises.open(store, 0, 3)
    promises.append(store, 0, 4)
    store.grow(3)
    promises.open(store, 0, 4)
    promises.open(store, 2, 1)
    promises.append(store, 2, 3)
    store.grow(5)
    promises.open(store, 0, 5)
    promises.open(store, 4, 9)
    promises.append(store, 0, 2)


def steps_of(scenario: Callable[[ReplicaStore, Promises], None]) -> int:
    disk = FaultyDisk()
    store = create(disk)
    before = disk.changes()
    scenario(store, Promises())
    return disk.changes() - before


@pytest.mark.parametrize("survival", SURVIVALS, ids=str)
def test_a_crash_before_every_step_of_a_growth_forgets_no_fence(survival: Survival) -> None:
    steps = steps_of(grow_under_load)
    assert steps > 25
    for step in range(steps):
        disk, promises = FaultyDisk(seed=step), Promises()
        store = create(disk)
        disk.crash_after = step
        with pytest.raises(Crashed):
            grow_under_load(store, promises)
        disk.crash(survival)
        store = reopen(disk)
        assert len(store.partition_ids) in (1, 3, 5)
        store.grow(5)  # what ZooKeeper says is done again
        promises.check(store)
        promises.open(store, 4, 10)
        promises.append(store, 4, 2)
        disk.crash()
        promises.check(reopen(disk))


def test_a_process_killed_at_every_step_leaves_what_the_next_one_finishes() -> None:
    for step in range(steps_of(grow_under_load)):
        disk, promises = FaultyDisk(seed=step), Promises()
        store = create(disk)
        disk.crash_after = step
        with pytest.raises(Crashed):
            grow_under_load(store, promises)
        disk.end_process()
        store = reopen(disk)
        store.grow(5)
        promises.open(store, 3, 2)
        disk.crash()  # nothing that was not synced survives
        promises.check(reopen(disk))


def test_the_new_entries_lie_behind_the_old_ones_which_are_as_they_were() -> None:
    disk = FaultyDisk()
    store = create(disk, partitions=2)
    store.partition(1).open_session(7)
    before = disk.content(CONTROL)
    store.grow(4)
    after = disk.content(CONTROL)
    assert after[128 : 128 + 120] == before[128:]
    assert after[:28] == before[:28]
    assert int.from_bytes(after[28:32], "big") == 4
    assert len(after) == 128 + 4 * 60
    store.close()
    assert_verifies(disk, -1)


def test_a_directory_never_shrinks() -> None:
    disk = FaultyDisk()
    store = create(disk, partitions=4)
    before = disk.changes()
    store.grow(2)
    assert store.partition_ids == range(4)
    assert disk.changes() == before, "nothing is written for it"


def test_a_fence_that_is_accepted_meanwhile_is_in_the_file_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the copy and the name a slot of another partition must not be written: it would be in the old file."""
    disk = FaultyDisk()
    store = create(disk, partitions=2)
    store.partition(1).open_session(1)
    opened = threading.Event()

    def open_it() -> None:
        store.partition(1).open_session(6)
        opened.set()

    opening = threading.Thread(target=open_it)
    rename = disk.rename

    def slowly(old: str, new: str) -> None:
        opening.start()
        assert not opened.wait(0.2), "a slot was written in the file that is about to lose its name"
        rename(old, new)

    monkeypatch.setattr(disk, "rename", slowly)
    store.grow(3)
    opening.join(10)
    assert opened.is_set()
    disk.crash()
    assert reopen(disk).partition(1).session_id == 6


def test_a_full_disk_changes_nothing_and_takes_no_room() -> None:
    disk = FaultyDisk()
    store = create(disk)
    store.partition(0).open_session(2)
    files = disk.files()
    disk.capacity_bytes = sum(len(disk.content(path)) for path in files) + 100
    with pytest.raises(DiskFull):
        store.grow(50)
    assert disk.files() == files
    assert store.partition_ids == range(1)
    disk.capacity_bytes = None
    store.grow(50)
    assert store.partition(49).open_session(1) == -1
    assert store.partition(0).session_id == 2


def test_without_handles_for_the_directory_no_slot_is_written_before_the_name_is_durable() -> None:
    disk = FaultyDisk()
    store = create(disk)
    store.partition(0).open_session(2)
    disk.errors["fsync_directory", DIRECTORY] = errno.EMFILE
    with pytest.raises(OutOfResources):
        store.grow(2)
    assert store.partition_ids == range(1)
    with pytest.raises(OutOfResources):
        store.partition(0).open_session(3)
    disk.errors.clear()
    store.partition(0).open_session(3)
    disk.crash()
    store = reopen(disk)
    assert store.partition(0).session_id == 3
    store.grow(2)
    assert store.partition(1).session_id == -1


def test_a_failed_sync_ends_the_replica() -> None:
    disk = FaultyDisk()
    store = create(disk)
    disk.fail_sync = True
    with pytest.raises(SyncFailed):
        store.grow(2)
    with pytest.raises(SyncFailed):
        store.partition(0).open_session(1)


# ---- removal ------------------------------------------------------------------------------------------------


def three_segments(disk: FaultyDisk) -> ReplicaStore:
    """Partition 1 of two, in several segments; partition 0 beside it."""
    store = create(disk, partitions=2)
    for partition_id in (0, 1):
        log = store.partition(partition_id)
        log.open_session(4)
        for _ in range(5):
            append(log, 8)
            log.sync()
    assert len(files_of(disk, 1)) > 4
    return store


@pytest.mark.parametrize("survival", SURVIVALS, ids=str)
def test_what_a_crash_leaves_of_a_removal_is_the_whole_log_or_none_that_could_vote(survival: Survival) -> None:
    counting = FaultyDisk()
    store = three_segments(counting)
    before = counting.changes()
    store.remove(1)
    steps = counting.changes() - before
    assert steps > 5
    for step in range(steps):
        disk = FaultyDisk(seed=step)
        store = three_segments(disk)
        disk.crash_after = step
        with pytest.raises(Crashed):
            store.remove(1)
        disk.crash(survival)
        store = reopen(disk)  # and nobody has told it yet that the space is gone
        if 1 not in store.removed:
            assert contents(store.partition(1)) == [data_of(i) for i in range(40)]
        assert contents(store.partition(0)) == [data_of(i) for i in range(40)]
        store.remove(1)
        assert files_of(disk, 1) == ["removed"]
        disk.crash()
        store = reopen(disk)
        assert store.removed == {1}
        store.close()
        assert_verifies(disk, 39)
        assert [fence.session_id for fence in read_fences(disk, DIRECTORY)] == [4, 4], "the fence stays"


def files_of(disk: FaultyDisk, partition_id: int) -> list[str]:
    folder = f"{DIRECTORY}/{partition_id}/"
    return [path.removeprefix(folder) for path in disk.files() if path.startswith(folder)]


def test_a_partition_that_never_had_a_session_is_removed_as_well() -> None:
    disk = FaultyDisk()
    store = create(disk, partitions=2)
    store.remove(1)
    disk.crash()
    assert reopen(disk).removed == {1}


def test_a_full_disk_puts_a_removal_off() -> None:
    disk = FaultyDisk()
    store = three_segments(disk)
    disk.errors["create", "removed"] = errno.ENOSPC
    with pytest.raises(DiskFull):
        store.remove(1)
    disk.errors.clear()
    store.remove(1)
    assert files_of(disk, 1) == ["removed"]


def test_a_removed_partition_is_refused_and_makes_no_file_again() -> None:
    disk = FaultyDisk()
    store = three_segments(disk)
    service = ReplicaService(store)
    log = store.partition(1)
    service.remove(1)
    service.remove(1)
    (refused,) = service.handle([Open(1, 9, KEY, 4, "me")])
    assert isinstance(refused, Refused)
    assert refused.code is RefusalCode.UNKNOWN_PARTITION
    assert "its space has been deleted" in refused.message
    assert store.served_ids == [0]
    store.sync([1])
    with pytest.raises(Corruption, match="its space has been deleted"):
        log.read(0, 5, 100)
    store.close()
    assert files_of(disk, 1) == ["removed"]
    with pytest.raises(InvalidInput, match="its space has been deleted"):
        reopen(disk).partition(1)


def test_who_waited_for_the_guard_is_refused_when_the_partition_has_gone() -> None:
    disk = FaultyDisk()
    store = three_segments(disk)
    service = ReplicaService(store)
    (opened,) = service.handle([Open(1, 9, KEY, 4, "me")])
    assert isinstance(opened, StateReply)
    answers: list[object] = []

    def open_again() -> None:
        answers.extend(service.handle([Open(1, 10, KEY, 4, "me")]))

    waiting = threading.Thread(target=open_again)
    with service.guard(1):
        waiting.start()
        store.remove(1)
    waiting.join(10)
    (refused,) = answers
    assert isinstance(refused, Refused)
    assert refused.code is RefusalCode.UNKNOWN_PARTITION
    assert files_of(disk, 1) == ["removed"]


def test_a_replica_that_has_not_grown_says_so_and_opens_the_partition_when_it_has() -> None:
    disk = FaultyDisk()
    service = ReplicaService(create(disk, SMALL))
    (refused,) = service.handle([Open(2, 1, KEY, -1, "me")])
    assert isinstance(refused, Refused)
    assert (refused.code, refused.message) == (RefusalCode.UNKNOWN_PARTITION, "there is no partition 2, only 1")
    service.store.grow(3)
    (opened,) = service.handle([Open(2, 1, KEY, -1, "me")])
    assert isinstance(opened, StateReply)
