"""Both slots of one partition's control entry damaged: that partition is refused, all others serve, and it can be
made anew once ZooKeeper says that nobody counts on it."""

from __future__ import annotations

import uuid

import pytest

from tests.storage.faulty_disk import Crashed, FaultyDisk, Survival
from tests.storage.helpers import DIRECTORY, KEY, SMALL, append, contents, create, data_of, records, reopen
from waltz_ray.errors import PartitionDamaged
from waltz_ray.protocol.messages.replica import (
    Append,
    Appended,
    Close,
    Open,
    Read,
    RefusalCode,
    Refused,
    ReplicaRequest,
    SetLowWaterMark,
    State,
    StateReply,
    Truncate,
)
from waltz_ray.storage.log_rules import MOST_SESSIONS_MISSED
from waltz_ray.storage.replica_service import ReplicaService
from waltz_ray.storage.verify import verify_directory

CONTROL = f"{DIRECTORY}/waltz-storage.ctl"
LOST, SOUND = 1, 2


def damaged(disk: FaultyDisk) -> FaultyDisk:
    """Three partitions with 20 records each and the mark 15; both slots of one rot while nothing runs."""
    store = create(disk, partitions=3)
    for partition_id in store.partition_ids:
        log = store.partition(partition_id)
        log.open_session(4)
        append(log, 20)
        log.set_low_water_mark(4, 15, 15)
    store.sync(store.partition_ids)
    disk.crash()
    for slot in (0, 1):
        disk.flip(CONTROL, 128 + 60 * LOST + 4 + 28 * slot + 3)
    return disk


def append_of(partition_id: int, first_id: int, count: int, session_id: int) -> Append:
    batch = records(first_id, count, partition_id=partition_id)
    return Append(partition_id, session_id, first_id, batch.lengths, memoryview(batch.records))


def test_only_that_partition_is_refused_with_the_reason() -> None:
    disk = damaged(FaultyDisk())
    replica = ReplicaService(reopen(disk))
    log = replica.store.partition(LOST)  # as a status looks at it
    assert (log.session_id, log.last_id, log.low_water_mark) == (-1, -1, -1)
    assert "both slots" in str(log.damaged)
    requests: list[ReplicaRequest] = [
        Open(LOST, 5, KEY, joined_session_id=4),
        State(LOST, -1),
        append_of(LOST, 20, 1, 4),
        Read(LOST, -1, 0, 5, 1000),
        Truncate(LOST, 4, 0),
        SetLowWaterMark(LOST, 4, 0, 0),
        Close(LOST, 4),
    ]
    before = {path: disk.content(path) for path in disk.files()}
    for request in requests:
        (refused,) = replica.handle([request])
        assert isinstance(refused, Refused)
        assert (refused.code, refused.current_session_id, refused.last_id) == (RefusalCode.DAMAGED, -1, -1)
        assert "waltz replace-replica" in refused.message
        assert CONTROL in refused.message
    assert {path: disk.content(path) for path in disk.files()} == before
    for partition_id in (0, SOUND):
        (state,) = replica.handle([Open(partition_id, 5, KEY, joined_session_id=4)])
        assert state == StateReply(partition_id, 5, 4, 15, 15, 19, False)
        assert replica.handle([append_of(partition_id, 20, 2, 5)]) == [Appended(partition_id, 5, 21)]


def test_nothing_of_it_can_be_changed_by_other_ways() -> None:
    log = reopen(damaged(FaultyDisk())).partition(LOST)
    for action in (
        lambda: log.open_session(9),
        lambda: log.append(-1, records(0, 1, partition_id=LOST)),
        lambda: log.truncate(-1, -1),
        lambda: log.read(0, 1, 100),
    ):
        with pytest.raises(PartitionDamaged, match="replace-replica"):
            action()


def test_a_replaced_one_is_made_anew() -> None:
    disk = damaged(FaultyDisk())
    replica = ReplicaService(reopen(disk))
    (refused,) = replica.handle([Open(LOST, 6, uuid.uuid4())])
    assert isinstance(refused, Refused)
    assert refused.code is RefusalCode.WRONG_CLUSTER
    (refused,) = replica.handle([Open(LOST, MOST_SESSIONS_MISSED + 1, KEY)])
    assert isinstance(refused, Refused)
    assert refused.code is RefusalCode.INVALID_REQUEST
    assert replica.store.partition(LOST).fence_lost is not None

    assert replica.handle([Open(LOST, 6, KEY, joined_session_id=-1)]) == [StateReply(LOST, 6, -1, -1, -1, -1, False)]
    assert replica.handle([append_of(LOST, 0, 3, 6), SetLowWaterMark(LOST, 6, 2, 2)])[0] == Appended(LOST, 6, 2)
    disk.crash()
    store = reopen(disk)
    log = store.partition(LOST)
    assert (log.session_id, log.low_water_mark, log.damaged) == (6, 2, None)
    assert contents(log) == [data_of(i) for i in range(3)]
    assert contents(store.partition(SOUND)) == [data_of(i) for i in range(20)]
    for partition_id in store.partition_ids:
        assert store.partition(partition_id).damaged is None
    store.close()
    report = verify_directory(disk, DIRECTORY)
    assert report.ok, str(report.damage)


@pytest.mark.parametrize("survival", [Survival(1.0), Survival(0.0), Survival(0.5), Survival(0.0, 1.0)], ids=str)
def test_a_crash_while_it_is_made_anew_leaves_it_lost_or_new_and_empty(survival: Survival) -> None:
    for step in range(200):
        disk = damaged(FaultyDisk(seed=step))
        replica = ReplicaService(reopen(disk))
        replica.store.partition(LOST)
        disk.crash_after = step
        try:
            replica.handle([Open(LOST, 6, KEY)])
        except Crashed:
            disk.crash(survival)
        else:
            break
        replica = ReplicaService(reopen(disk))
        log = replica.store.partition(LOST)
        assert log.last_id == -1, "what is left of the old records must never be a vote"
        assert (log.fence_lost is None) == (log.session_id == 6)
        assert log.fence_lost is not None or log.damaged is None
        (state,) = replica.handle([Open(LOST, 7, KEY)])
        assert isinstance(state, StateReply)
        assert (state.last_id, state.damaged) == (-1, False)
        assert replica.handle([append_of(LOST, 0, 3, 7)]) == [Appended(LOST, 7, 2)]
        disk.crash()
        store = reopen(disk, SMALL)
        assert contents(store.partition(LOST)) == [data_of(i) for i in range(3)]
        assert contents(store.partition(0)) == [data_of(i) for i in range(20)]
    assert step > 8
