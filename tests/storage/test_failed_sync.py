"""A sync fails, the process ends, the next one meets a disk that works again, and then the power goes.

The failed sync left pages that read as written, count as clean, and are not on the disk. What a start finds there must
not be taken for durable as it is: not as a vote, not below what is appended behind it, not as a fence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.storage import test_crash, test_journal
from tests.storage.faulty_disk import FaultyDisk, Survival
from tests.storage.helpers import (
    DIRECTORY,
    KEY,
    SMALL,
    SMALL_AHEAD,
    append,
    contents,
    create,
    data_of,
    new_log,
    records,
    reopen,
)
from tests.storage.originals import original_directory
from tests.storage.test_journal import PARTITIONS
from waltz_ray.config import StorageConfig
from waltz_ray.errors import ControlFileMissing, SyncFailed
from waltz_ray.protocol.messages.replica import (
    Append,
    Appended,
    Open,
    StateReply,
)
from waltz_ray.storage.layout import segment_path
from waltz_ray.storage.replica_service import ReplicaService
from waltz_ray.storage.store import ReplicaStore
from waltz_ray.storage.verify import verify_directory

SURVIVALS = [Survival(0.0), Survival(0.5), Survival(0.0, 1.0)]
BIG = StorageConfig(preallocate_bytes=0)


def append_of(first_id: int, count: int, session_id: int, tag: int = 0) -> Append:
    batch = records(first_id, count, tag)
    return Append(0, session_id, first_id, batch.lengths, memoryview(batch.records))


def test_what_a_failed_sync_left_in_the_page_cache_is_no_vote() -> None:
    """The story of the issue, over the replica's protocol."""
    disk = FaultyDisk()
    replica = ReplicaService(create(disk, BIG))
    assert replica.handle([Open(0, 1, KEY), append_of(0, 4, 1)])[1] == Appended(0, 1, 3)
    disk.fail_sync = True
    with pytest.raises(SyncFailed):
        replica.handle([append_of(4, 3, 1)])
    disk.end_process()
    disk.heal()
    replica = ReplicaService(reopen(disk, BIG))
    (state,) = replica.handle([Open(0, 2, KEY)])
    assert isinstance(state, StateReply)
    assert state.last_id in (3, 6)  # a vote either way
    (reply,) = replica.handle([append_of(state.last_id + 1, 2, 2)])
    assert reply == Appended(0, 2, state.last_id + 2)
    disk.crash()
    log = reopen(disk, BIG).partition(0)
    assert log.damaged is None
    assert log.last_id == reply.last_id, "records that were acknowledged are gone"
    assert contents(log) == [data_of(i) for i in range(reply.last_id + 1)]


def end_and_restart(disk: FaultyDisk, config: StorageConfig, failing_again_at: int | None) -> ReplicaStore | None:
    """The process ends; the disk is well; or fails once more during that start, at this sync. None: no directory."""
    disk.end_process()
    disk.heal()
    disk.sync_failures_begin_after = failing_again_at
    try:
        store = reopen(disk, config)
        for partition_id in store.partition_ids:
            log = store.partition(partition_id)
            log.open_session(max(log.session_id, 0))
        disk.heal()
        return store
    except ControlFileMissing:
        return None
    except SyncFailed:
        return end_and_restart(disk, config, None)


def nothing_told_is_lost(disk: FaultyDisk, config: StorageConfig, store: ReplicaStore, survival: Survival) -> None:
    """What the restarted replica has voted with and acknowledged survives a loss of power; so does its fence."""
    told = []
    for partition_id in store.partition_ids:
        log = store.partition(partition_id)
        assert log.damaged is None, str(log.damaged)
        before = contents(log)
        if partition_id % 2 == 0:
            append(log, 25, tag=6)  # enough to close the segment: what is wrong in it now stays wrong
            before += [data_of(i, 6) for i in range(len(before), len(before) + 25)]
        told.append((before, log.session_id, log.low_water_mark))
    store.sync(store.partition_ids)
    disk.crash(survival)
    store = reopen(disk, config)
    for partition_id in store.partition_ids:
        store.partition(partition_id)
    store.close()
    report = verify_directory(disk, DIRECTORY)  # before a reader mends an index
    assert report.ok, str(report.damage)
    store = reopen(disk, config)
    for partition_id, (before, session_id, mark) in enumerate(told):
        log = store.partition(partition_id)
        assert log.damaged is None, str(log.damaged)
        assert contents(log) == before
        assert (log.session_id, log.low_water_mark) == (session_id, mark)


def at_every_sync(
    begin: Callable[[FaultyDisk], Callable[[], object]], config: StorageConfig, survival: Survival, again: int | None
) -> int:
    """Let every sync of a scenario be the first that fails; ``begin`` says how it goes on after its preparation."""
    for step in range(1000):
        disk = FaultyDisk(seed=step)
        go_on = begin(disk)
        disk.sync_failures_begin_after = step
        try:
            go_on()
        except SyncFailed:
            pass
        else:
            return step
        store = end_and_restart(disk, config, again)
        if store is not None:
            nothing_told_is_lost(disk, config, store, survival)
    raise AssertionError("syncs without end")


@pytest.mark.parametrize("again", [None, 0, 3])
@pytest.mark.parametrize("config", [SMALL, SMALL_AHEAD, replace(SMALL, index_flush_interval=40)], ids=["1", "2", "3"])
@pytest.mark.parametrize("scenario", test_crash.SCENARIOS)
def test_every_sync_of_a_partition_fails(
    scenario: Callable[[test_crash.Promise], None], config: StorageConfig, again: int | None
) -> None:
    def begin(disk: FaultyDisk) -> Callable[[], object]:
        promise = test_crash.Promise(create(disk, config).partition(0))
        return lambda: scenario(promise)

    for survival in SURVIVALS if again is None else SURVIVALS[:1]:
        assert at_every_sync(begin, config, survival, again) > 10


@pytest.mark.parametrize(
    ("survival", "again"),
    [*((survival, None) for survival in SURVIVALS), (SURVIVALS[0], 0), (SURVIVALS[0], 5)],
    ids=str,
)
def test_every_sync_of_many_partitions_fails(survival: Survival, again: int | None) -> None:
    """With the journal: an entry that is on the disk must bring back what its segment has lost."""
    config = test_journal.CONFIG

    def begin(disk: FaultyDisk) -> Callable[[], object]:
        promise = test_journal.Promise(test_journal.opened(disk))
        return lambda: test_journal.scenario(promise)

    assert at_every_sync(begin, config, survival, again) > 40


@pytest.mark.parametrize("survival", SURVIVALS, ids=str)
def test_every_sync_while_a_directory_is_made_or_converted_fails(survival: Survival) -> None:
    assert at_every_sync(lambda disk: lambda: create(disk).partition(0).open_session(0), SMALL, survival, None) >= 4

    def begin(disk: FaultyDisk) -> Callable[[], object]:
        original_directory(disk)
        return lambda: reopen(disk).partition(0).open_session(4)

    assert at_every_sync(begin, SMALL, survival, None) >= 4


def test_segments_that_only_the_journal_had_made_durable_are_written_again() -> None:
    """The journal is synced, the index says so, then the sync of a segment itself fails."""
    disk = FaultyDisk()
    config = replace(test_journal.LARGE, index_flush_interval=1)
    store = test_journal.opened(disk, config)
    for partition_id in store.partition_ids:
        append(store.partition(partition_id), 4)
    store.sync(store.partition_ids)
    disk.fail_sync = True
    with pytest.raises(SyncFailed):
        store.partition(0).set_low_water_mark(1, 3, 3)
    disk.end_process()
    disk.heal()
    store = reopen(disk, config)
    for partition_id in store.partition_ids:
        log = store.partition(partition_id)
        assert (log.open_session(1), log.last_id) == (1, 3)
    store.sync(store.partition_ids)
    disk.crash()
    store = reopen(disk, config)
    for partition_id in range(PARTITIONS):
        assert contents(store.partition(partition_id)) == [data_of(i) for i in range(4)]


def test_a_start_writes_again_only_what_is_not_known_to_be_durable() -> None:
    """However long the newest segment is: about ``index_flush_interval`` records, and the index since the mark."""
    disk = FaultyDisk()
    config = StorageConfig(preallocate_bytes=0, index_flush_interval=50)
    log = new_log(disk, config)
    for _ in range(400):
        append(log, 10)
        log.sync()
    log.set_low_water_mark(1, 3800, 3800)
    for _ in range(3):
        append(log, 10)
        log.sync()
    disk.end_process()
    path = segment_path(f"{DIRECTORY}/0", 0)
    before = len(disk.content(path))
    written: list[int] = []
    pwrite = disk.pwrite

    def counted(handle: int, data: bytes | memoryview, offset: int) -> None:
        written.append(len(data))
        pwrite(handle, data, offset)

    disk.pwrite = counted  # type: ignore[method-assign]
    log = reopen(disk, config).partition(0)
    assert log.last_id == 4029
    assert before > 100_000
    assert records(4029 - 60, 60).size_bytes + 300 * 8 + 1000 > sum(written) > records(4020, 10).size_bytes
