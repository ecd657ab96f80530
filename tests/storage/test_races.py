"""What happens while a read or a flush is on its way, made to happen at that very moment by the disk itself."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.storage.faulty_disk import FaultyDisk
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
from waltz_ray.config import StorageConfig
from waltz_ray.errors import Corruption, InvalidInput, SyncFailed
from waltz_ray.protocol.messages.replica import (
    Append,
    Appended,
    Open,
    Read,
    RefusalCode,
    Refused,
    ReplicaReply,
    ReplicaRequest,
    State,
    StateReply,
    Truncate,
    Truncated,
)
from waltz_ray.storage import disk as gate
from waltz_ray.storage.disk import DurableDisk, Mode, OsDisk, Writable
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.replica_service import ReplicaService

PATIENCE_S = 600.0  # a test of the lane with the lowest priority


class HookedDisk(FaultyDisk):
    """Calls ``hooks[name]`` once, before the next call of that name on a segment (of partition ``hooked_partition``,
    if that is set) and without the disk's mutex."""

    def __init__(self) -> None:
        super().__init__()
        self.hooks: dict[str, Callable[[], None]] = {}
        self.hooked_partition: int | None = None

    def _hook(self, name: str, path: str) -> None:
        if self.hooked_partition is not None and f"/{self.hooked_partition}/" not in path:
            return
        if name in self.hooks and path.endswith(".seg"):
            self.hooks.pop(name)()

    def open(self, path: str, mode: Mode) -> int:
        self._hook("open", path)
        return super().open(path, mode)

    def file_size(self, path: str) -> int:
        self._hook("file_size", path)
        return super().file_size(path)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        self._hook("pread", self._of(handle)[0])
        return super().pread(handle, size, offset)

    def pwrite(self, handle: int, data: Writable, offset: int) -> None:
        self._hook("pwrite", self._of(handle)[0])
        super().pwrite(handle, data, offset)

    def fdatasync(self, handle: int) -> None:
        self._hook("fdatasync", self._of(handle)[0])
        super().fdatasync(handle)


def test_a_cut_under_a_reader_is_not_taken_for_damage() -> None:
    for config in (SMALL, StorageConfig(index_flush_interval=2, preallocate_bytes=0)):
        disk = HookedDisk()
        log = new_log(disk, config)
        append(log, 30)
        log.sync()

        def cut_and_write_others(log: object = log) -> None:
            log.truncate(1, 3)  # type: ignore[attr-defined]
            append(log, 30, tag=1)  # type: ignore[arg-type]

        disk.hooks["pread"] = cut_and_write_others
        batch = log.read(2, 30, 100_000)
        assert [bytes(data) for data in batch.datas()] == [data_of(i, int(i > 3)) for i in range(2, batch.end_id)]
        assert log.damaged is None


def test_a_truncation_waits_for_a_running_sync() -> None:
    """Were it not to, the sync would go on with a closed handle, and write index entries of records that are gone."""
    disk = HookedDisk()
    log = new_log(disk)
    append(log, 8)
    truncation = threading.Thread(target=log.truncate, args=(1, 2))
    seen: list[str] = []

    def cut_meanwhile() -> None:
        disk.calls.clear()
        truncation.start()
        truncation.join(timeout=0.2)  # it must not get anywhere; a right log only waits here
        seen.extend(name for name, _ in disk.calls)

    disk.hooks["fdatasync"] = cut_meanwhile
    log.sync()
    truncation.join()
    assert seen == []
    assert (log.last_id, log.synced_id) == (2, 2)
    append(log, 20, tag=1)
    log.sync()
    disk.crash()
    store = reopen(disk)
    assert contents(store.partition(0)) == [data_of(i, int(i > 2)) for i in range(23)]
    store.close()
    assert_verifies(disk, 22)


def test_records_appended_during_a_sync_are_not_called_durable() -> None:
    disk = HookedDisk()
    log = new_log(disk, StorageConfig(preallocate_bytes=0))
    append(log, 3)
    disk.hooks["fdatasync"] = lambda: append(log, 4)
    assert log.sync() == 2
    assert (log.last_id, log.synced_id) == (6, 2)
    assert log.sync() == 6


def test_a_reader_whose_records_were_cut_away_is_told_so() -> None:
    disk = HookedDisk()
    log = new_log(disk)
    append(log, 40)
    log.sync()
    disk.hooks["open"] = lambda: log.truncate(1, 3)
    with pytest.raises(InvalidInput):
        log.read(20, 40, 100_000)
    assert (log.damaged, log.last_id) == (None, 3)


def test_a_segment_that_is_dropped_while_sizes_are_asked_for_has_none() -> None:
    """Found by the simulation: retention looked at a segment that a truncation had removed; the replica ended."""
    disk = HookedDisk()
    log = new_log(disk)
    append(log, 40)
    log.sync()
    before = log.segment_sizes()

    def cut_at_the_next() -> None:  # of the first segment something is left
        disk.hooks["file_size"] = lambda: log.truncate(1, 3)

    disk.hooks["file_size"] = cut_at_the_next
    during = log.segment_sizes()
    assert during.keys() == before.keys()
    assert 0 in during.values()


def test_a_file_that_goes_while_the_disk_use_is_added_up_uses_none() -> None:
    disk = HookedDisk()
    store = create(disk)
    log = store.partition(0)
    log.open_session(1)
    append(log, 40)

    def cut_at_the_next() -> None:  # of the first segment something is left
        disk.hooks["file_size"] = lambda: log.truncate(1, 3)

    disk.hooks["file_size"] = cut_at_the_next
    assert store.disk_use_bytes() >= store.disk_use_bytes() > 0
    assert log.last_id == 3


def test_what_others_have_put_beside_the_partitions_is_no_part_of_the_disk_use() -> None:
    """Where the directory is a file system of its own, root's ``lost+found`` is in it: nothing was told at all."""
    disk = FaultyDisk()
    store = create(disk)
    before = store.disk_use_bytes()
    disk.mkdir(f"{DIRECTORY}/lost+found")
    disk.errors["listdir", "lost+found"] = errno.EACCES
    assert store.disk_use_bytes() == before > 0


def test_a_partition_that_is_removed_while_it_is_opened_is_not_opened_damaged() -> None:
    store = create(FaultyDisk(), SMALL, 2)
    store.partition(1).open_session(1)
    store.close()
    store = reopen(store.disk.disk)  # type: ignore[arg-type]
    opening = store._opening

    class Late:
        def __enter__(self) -> None:
            store._opening = opening
            store.remove(1)
            opening.acquire()

        def __exit__(self, *error: object) -> None:
            opening.release()

    store._opening = Late()  # type: ignore[assignment]
    with pytest.raises(InvalidInput, match="was removed"):
        store.partition(1)
    assert store.served_ids == [0]


def test_damage_found_while_a_sync_waits_for_another_one_leaves_it_nothing_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by the simulation, which then ended the replica: what it was to sync lies behind the damage."""
    disk = HookedDisk()
    log = new_log(disk, StorageConfig(preallocate_bytes=0))
    append(log, 6)
    log.sync()
    append(log, 3)
    disk.flip(f"{DIRECTORY}/0/{0:019d}.seg", 128 + records(0, 2).size_bytes + 35)
    wait = log.wait_until_quiet

    def wait_while_a_reader_finds_it() -> None:
        monkeypatch.setattr(log, "wait_until_quiet", wait)
        with pytest.raises(Corruption):
            log.read(0, 6, 10_000)

    monkeypatch.setattr(log, "wait_until_quiet", wait_while_a_reader_finds_it)
    assert log.begin_sync() is None
    assert (log.last_id, log.synced_id) == (1, 1)


def test_a_sync_beside_one_that_fails_proves_nothing() -> None:
    """A kernel tells a failure to one of those who sync, and drops the pages of all: control entries share a file."""
    disk = HookedDisk()
    store = create(disk, StorageConfig(preallocate_bytes=0), partitions=2)
    store.partition(1).open_session(1)

    def fail_beside() -> None:
        disk.fail_sync = True
        with pytest.raises(SyncFailed):
            store.partition(1).open_session(2)
        disk.heal()

    log = store.partition(0)
    log.open_session(1)
    append(log, 1)
    disk.hooks["fdatasync"] = fail_beside
    with pytest.raises(SyncFailed):
        log.sync()
    assert log.synced_id == -1


def test_a_sync_behind_one_that_fails_by_the_same_handle_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has told one thread of it, which has not said so yet, and tells the next one that all is well:
    partitions share the handle of the control file."""
    disk = DurableDisk(OsDisk())
    path = str(tmp_path / "file")
    handle = disk.create(path)
    told, outcomes = threading.Event(), list[str]()

    def sync() -> None:
        try:
            disk.fdatasync(handle, path)
        except SyncFailed:
            outcomes.append("failed")
        else:
            outcomes.append("durable")

    one, other = threading.Thread(target=sync), threading.Thread(target=sync)

    def fdatasync(handle: int) -> None:
        if threading.current_thread() is one:
            told.set()
            other.start()
            other.join(timeout=0.2)  # it must not get anywhere; a right one only waits here
            raise OSError(errno.EIO, "the device is gone")

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    one.start()
    assert told.wait(PATIENCE_S)
    one.join()
    other.join()
    assert outcomes == ["failed", "failed"]
    disk.disk.close(handle)
    handle = DurableDisk(OsDisk()).create(path)  # with the same number
    DurableDisk(OsDisk()).fdatasync(handle, path)
    OsDisk().close(handle)


def test_one_flush_is_enough_for_all_who_wrote_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fences of many partitions, over several connections, are in one file. One that had begun before is not enough."""
    disk = OsDisk()
    handle = disk.open(str(tmp_path / "file"), "create")
    calls: list[str] = []
    late = threading.Thread(target=disk.fdatasync, args=(handle,))

    def fdatasync(handle: int) -> None:
        calls.append(threading.current_thread().name)
        if len(calls) == 1:
            late.start()
            late.join(timeout=0.2)  # it waits for this one, and then flushes itself

    class WhileOneWaits:
        entered = False

        def __enter__(self) -> None:
            if not self.entered:
                self.entered = True
                disk.fdatasync(handle)

        def __exit__(self, *error: object) -> None: ...

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    disk.fdatasync(handle)
    late.join()
    assert calls == [threading.current_thread().name, late.name]
    monkeypatch.setattr(gate._flushes[handle], "lock", WhileOneWaits())
    disk.fdatasync(handle)
    assert len(calls) == 3
    disk.close(handle)


# ---- an acknowledgement says what is durable at that moment, whatever happened since the write ----------------

BIG = StorageConfig(preallocate_bytes=0)
MINE, OTHER = object(), object()  # two connections


def opened(disk: HookedDisk, config: StorageConfig) -> ReplicaService:
    """Two partitions in session 1, opened over ``MINE``, with six durable records each."""
    replica = ReplicaService(create(disk, config, partitions=2))
    for partition_id in (0, 1):
        replica.handle([Open(partition_id, 1, KEY), append_of(partition_id, 0, 6)], MINE)
    return replica


def append_of(partition_id: int, first_id: int, count: int, tag: int = 0, session_id: int = 1) -> Append:
    batch = records(first_id, count, tag, partition_id)
    return Append(partition_id, session_id, first_id, batch.lengths, memoryview(batch.records))


def elsewhere(replica: ReplicaService, *requests: ReplicaRequest) -> list[ReplicaReply]:
    """Another connection's turn, in a thread of its own, to its end."""
    replies: list[ReplicaReply] = []
    thread = threading.Thread(target=lambda: replies.extend(replica.handle(requests, OTHER)))
    thread.start()
    thread.join(timeout=PATIENCE_S)
    assert not thread.is_alive()
    return replies


def refused(replies: Iterable[ReplicaReply], partition_id: int) -> list[RefusalCode | None]:
    """Per answer about that partition: why it was refused, or None."""
    about = [reply for reply in replies if reply.partition_id == partition_id]
    return [reply.code if isinstance(reply, Refused) else None for reply in about]


@pytest.mark.parametrize("config", [BIG, StorageConfig(preallocate_bytes=0, journal_bytes=0)], ids=["journal", "none"])
def test_damage_found_between_a_write_and_its_sync_is_not_acknowledged(config: StorageConfig) -> None:
    """Records 6 to 8 of partition 0 are written, a read of another connection meets a rotten record 2, then the sync
    has nothing left to do. Were the turn acknowledged, a server would count records that this replica does not have."""
    disk = HookedDisk()
    replica = opened(disk, config)
    disk.flip(f"{DIRECTORY}/0/{0:019d}.seg", 128 + records(0, 2).size_bytes + 35)
    seen: list[ReplicaReply] = []
    disk.hooked_partition = 1
    disk.hooks["pwrite"] = lambda: seen.extend(elsewhere(replica, Read(0, 1, 0, 6, 10_000)))
    replies = replica.handle([append_of(0, 6, 2), append_of(0, 8, 1), append_of(1, 6, 1)], MINE)
    assert refused(seen, 0) == [RefusalCode.DAMAGED]
    assert replica.store.partition(0).last_id == 1
    assert set(refused(replies, 0)) == {RefusalCode.DAMAGED}
    assert [reply for reply in replies if reply.partition_id == 1] == [Appended(1, 1, 6)]


def test_a_vote_is_of_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader finds record 2 rotten between two looks of who tells the state. "It ends with 1, and is not damaged"
    would be a vote for a log without records that were acknowledged."""
    disk = HookedDisk()
    replica = opened(disk, BIG)
    disk.flip(f"{DIRECTORY}/0/{0:019d}.seg", 128 + records(0, 2).size_bytes + 35)
    reader = threading.Thread(target=replica.handle, args=([Read(0, 1, 0, 6, 10_000)], OTHER))

    def damaged(log: PartitionLog) -> Corruption | None:
        found: Corruption | None = vars(log)["damaged"]
        if threading.current_thread() is not reader:
            reader.start()
            reader.join(timeout=0.2)  # it must not get anywhere; a right state only waits here
        return found

    log = replica.store.partition(0)
    append(log, 3)
    watched = property(damaged, lambda log, why: vars(log).update(damaged=why))
    monkeypatch.setattr(PartitionLog, "damaged", watched, raising=False)
    replies = replica.handle([State(0, 1)], MINE)
    reader.join()
    assert replies == [StateReply(0, 1, 1, -1, -1, 8, False)]
    assert log.last_id == 1


@pytest.mark.parametrize(
    ("session_id", "code"), [(1, RefusalCode.NOT_OPEN), (2, RefusalCode.FENCED)], ids=["reopened", "new session"]
)
@pytest.mark.parametrize("refilled", [False, True])
def test_a_log_cut_between_a_write_and_its_sync_is_not_acknowledged(
    session_id: int, code: RefusalCode, refilled: bool
) -> None:
    disk = HookedDisk()
    replica = opened(disk, BIG)
    cut: list[ReplicaRequest] = [Open(0, session_id, KEY), Truncate(0, session_id, 3)]
    if refilled:  # by others, as many as there were
        cut.append(append_of(0, 4, 5, tag=1, session_id=session_id))
    seen: list[ReplicaReply] = []
    disk.hooked_partition = 1
    disk.hooks["pwrite"] = lambda: seen.extend(elsewhere(replica, *cut))
    replies = replica.handle([append_of(0, 6, 3), append_of(1, 6, 1)], MINE)
    assert Truncated(0, session_id, 3) in seen
    assert refused(replies, 0) == [code]
    assert [reply for reply in replies if reply.partition_id == 1] == [Appended(1, 1, 6)]
    tags = {4: 1, 5: 1, 6: 1, 7: 1, 8: 1} if refilled else {}
    log = replica.store.partition(0)
    assert contents(log) == [data_of(i, tags.get(i, 0)) for i in range(9 if refilled else 4)]


@pytest.mark.parametrize(
    ("session_id", "code"), [(1, RefusalCode.NOT_OPEN), (2, RefusalCode.FENCED)], ids=["reopened", "new session"]
)
def test_a_log_cut_while_a_turn_syncs_is_not_acknowledged(session_id: int, code: RefusalCode) -> None:
    """The cut comes while the sync runs, waits for it, and is done before the turn gets to its acknowledgement."""
    disk = HookedDisk()
    replica = opened(disk, BIG)
    begun, cut = threading.Event(), threading.Event()
    answers: list[ReplicaReply] = []

    def open_and_cut() -> None:
        begun.wait(PATIENCE_S)
        answers.extend(replica.handle([Open(0, session_id, KEY), Truncate(0, session_id, 3)], OTHER))
        cut.set()

    other = threading.Thread(target=open_and_cut)
    other.start()
    disk.hooks["fdatasync"] = begun.set
    sync = replica.store.sync

    def sync_and_be_late(partition_ids: Iterable[int]) -> None:
        sync(partition_ids)
        if threading.current_thread() is not other:
            assert cut.wait(PATIENCE_S)

    replica.store.sync = sync_and_be_late  # type: ignore[method-assign]
    replies = replica.handle([append_of(0, 6, 3)], MINE)
    other.join()
    assert Truncated(0, session_id, 3) in answers
    assert refused(replies, 0) == [code]


def test_a_session_opened_again_without_a_cut_does_not_take_the_acknowledgement_away() -> None:
    """What is durable and still there may be said to be."""
    disk = HookedDisk()
    replica = opened(disk, BIG)
    disk.hooked_partition = 1
    disk.hooks["pwrite"] = lambda: elsewhere(replica, Open(0, 1, KEY)).clear()
    replies = replica.handle([append_of(0, 6, 3), append_of(1, 6, 1)], MINE)
    assert replies == [Appended(0, 1, 8), Appended(1, 1, 6)]


def test_a_full_disk_behind_what_was_written_does_not_take_the_acknowledgement_away() -> None:
    """The roll fails, the log is cut back to what the turn had written before: those records are there."""
    disk = HookedDisk()
    replica = opened(disk, SMALL)
    log = replica.store.partition(0)
    disk.capacity_bytes = sum(len(disk.content(path)) for path in disk.files()) + 700
    replies = replica.handle([append_of(0, 6, 3), append_of(0, 10, 1), append_of(0, 9, 40)], MINE)
    assert [type(reply).__name__ for reply in replies] == ["Appended", "Refused", "Refused"]
    assert replies[0] == Appended(0, 1, 8)
    assert refused(replies, 0)[2] is RefusalCode.DISK_FULL
    assert (log.last_id, log.synced_id) == (8, 8)
