"""The fence for people: shown and lowered offline; a session number that nobody can have given is refused."""

from __future__ import annotations

import pytest

from tests.storage.faulty_disk import Crashed, FaultyDisk, Survival
from tests.storage.helpers import DIRECTORY, KEY, SMALL, append, contents, create, data_of, reopen
from tests.storage.originals import original_directory
from waltz_ray.errors import Corruption, Fenced, InvalidInput, StorageError, StorageLocked
from waltz_ray.protocol.messages.replica import (
    Open,
    RefusalCode,
    Refused,
    StateReply,
)
from waltz_ray.storage.fence import Fence, read_fences, reset_fence
from waltz_ray.storage.log_rules import MOST_SESSIONS_MISSED
from waltz_ray.storage.replica_service import ReplicaService

CONTROL = f"{DIRECTORY}/waltz-storage.ctl"
SLOTS = 128 + 60 + 4  # of partition 1
HIGH = 900_000_000


def fenced_too_high(disk: FaultyDisk) -> FaultyDisk:
    """Two partitions; the second has five records, the mark 3 and a fence far above the sessions that were."""
    store = create(disk, partitions=2)
    log = store.partition(1)
    log.open_session(7)
    append(log, 5)
    log.set_low_water_mark(7, 3, 3)
    log.open_session(HIGH)
    store.close()
    return disk


def test_fences_are_shown_also_while_a_replica_runs() -> None:
    disk = fenced_too_high(FaultyDisk())
    expected = [Fence(0, -1, -1, -1, (True, True)), Fence(1, HIGH, 3, 3, (True, True))]
    assert read_fences(disk, DIRECTORY) == expected
    store = reopen(disk)
    before = disk.changes()
    assert read_fences(disk, f"{DIRECTORY}/") == expected
    assert disk.changes() == before
    store.close()
    for slot in (0, 1):
        disk.flip(CONTROL, SLOTS + 28 * slot)
    assert read_fences(disk, DIRECTORY)[1] == Fence(1, None, None, None, (False, False))


def test_a_fence_is_lowered_in_both_slots_and_the_marks_stay() -> None:
    disk = fenced_too_high(FaultyDisk())
    reset_fence(disk, DIRECTORY, 1, 7)
    disk.crash()
    assert read_fences(disk, DIRECTORY)[1] == Fence(1, 7, 3, 3, (True, True))
    content = disk.content(CONTROL)
    assert content[SLOTS : SLOTS + 28] == content[SLOTS + 28 : SLOTS + 56], "no slot remembers the high number"
    log = reopen(disk).partition(1)
    with pytest.raises(Fenced):
        log.open_session(6)
    assert log.open_session(8) == 7
    assert (log.last_id, log.low_water_mark, contents(log)) == (4, 3, [data_of(i) for i in range(5)])


def test_what_is_refused() -> None:
    disk = fenced_too_high(FaultyDisk())
    store = reopen(disk)
    with pytest.raises(StorageLocked):
        reset_fence(disk, DIRECTORY, 1, 7)
    store.close()
    before = disk.content(CONTROL)
    for partition_id, session_id in ((2, 7), (-1, 7), (1, -1), (1, HIGH + 1), (0, 0)):
        with pytest.raises(InvalidInput):
            reset_fence(disk, DIRECTORY, partition_id, session_id)
    assert disk.content(CONTROL) == before
    for slot in (0, 1):
        disk.flip(CONTROL, SLOTS + 28 * slot)
    with pytest.raises(Corruption, match="replace-replica"):
        reset_fence(disk, DIRECTORY, 1, 7)
    original = original_directory(FaultyDisk())
    with pytest.raises(StorageError, match=r"Waltz 0\.13"):
        reset_fence(original, DIRECTORY, 0, 1)
    reopen(original).close()  # the lock was given back


@pytest.mark.parametrize("survival", [Survival(1.0), Survival(0.0), Survival(0.5), Survival(0.0, 1.0)], ids=str)
def test_a_crash_at_every_change_leaves_the_old_fence_or_the_new_one(survival: Survival) -> None:
    for step in range(50):
        disk = fenced_too_high(FaultyDisk(seed=step))
        disk.crash_after = step
        try:
            reset_fence(disk, DIRECTORY, 1, 7)
        except Crashed:
            disk.crash(survival)
        else:
            break
        fence = read_fences(disk, DIRECTORY)[1]
        assert fence[1:4] in ((HIGH, 3, 3), (7, 3, 3))
        assert any(fence.slots_valid)
        reset_fence(disk, DIRECTORY, 1, 7)
        disk.crash()
        log = reopen(disk, SMALL).partition(1)
        assert (log.session_id, log.low_water_mark, log.last_id) == (7, 3, 4)
    assert step >= 4


@pytest.mark.parametrize("absurd", [(1 << 63) - 1, 3 + MOST_SESSIONS_MISSED + 1])
def test_a_session_number_that_nobody_can_have_given_fences_nobody_off(absurd: int) -> None:
    disk = FaultyDisk()
    replica = ReplicaService(create(disk))
    replica.handle([Open(0, 3, KEY)])
    before = disk.content(CONTROL)
    (refused,) = replica.handle([Open(0, absurd, KEY)])
    assert isinstance(refused, Refused)
    assert (refused.code, refused.current_session_id) == (RefusalCode.INVALID_REQUEST, 3)
    assert str(absurd) in refused.message
    assert disk.content(CONTROL) == before
    assert replica.handle([Open(0, 4, KEY)]) == [StateReply(0, 4, 3, -1, -1, -1, False)]


def test_a_replica_may_have_missed_very_many_sessions() -> None:
    log = create(FaultyDisk()).partition(0)
    assert log.open_session(MOST_SESSIONS_MISSED) == -1
    assert log.open_session(2 * MOST_SESSIONS_MISSED) == MOST_SESSIONS_MISSED
