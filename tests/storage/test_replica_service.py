"""Requests in, replies out: order, merging, one sync a turn, and every refusal."""

from __future__ import annotations

import uuid

import numpy as np
import pytest

from tests.storage.faulty_disk import FaultyDisk
from tests.storage.helpers import DIRECTORY, KEY, SMALL, create, data_of, records, reopen
from waltz_ray.config import StorageConfig
from waltz_ray.errors import SyncFailed
from waltz_ray.protocol.checksum import crc32
from waltz_ray.protocol.messages.replica import (
    REPLICA_TYPES,
    Append,
    Appended,
    Close,
    Closed,
    LowWaterMarkSet,
    Open,
    Read,
    Records,
    RefusalCode,
    Refused,
    ReplicaReply,
    ReplicaRequest,
    SetLowWaterMark,
    State,
    StateReply,
    Truncate,
    Truncated,
)
from waltz_ray.protocol.records import build_records
from waltz_ray.storage.replica_service import ReplicaService
from waltz_ray.wire.replica_codec import encode_replica

BIG = StorageConfig(preallocate_bytes=0)


def service(disk: FaultyDisk, config: StorageConfig = BIG, partitions: int = 3) -> ReplicaService:
    made = ReplicaService(create(disk, config, partitions))
    for partition_id in range(partitions):
        reply = made.handle([Open(partition_id, 1, KEY)])
        assert reply == [StateReply(partition_id, 1, -1, -1, -1, -1, False)]
    disk.calls.clear()
    return made


def append(partition_id: int, first_id: int, count: int, session_id: int = 1) -> Append:
    batch = records(first_id, count, partition_id=partition_id)
    return Append(partition_id, session_id, first_id, batch.lengths, memoryview(batch.records))


def calls(disk: FaultyDisk, name: str) -> int:
    return sum(called == name for called, _ in disk.calls)


def refusal(replies: list[ReplicaReply]) -> tuple[RefusalCode, int, int, int]:
    (reply,) = replies
    assert isinstance(reply, Refused)
    assert reply.message
    return reply.code, reply.request_type, reply.current_session_id, reply.last_id


def test_a_turn_is_one_write_one_sync_and_one_acknowledgement_per_partition() -> None:
    disk = FaultyDisk()
    replica = service(disk)
    replies = replica.handle([append(0, 0, 3), append(0, 3, 4), append(0, 7, 1)])
    assert replies == [Appended(0, 1, 7)]
    assert (calls(disk, "pwrite"), calls(disk, "fdatasync")) == (1, 1)
    disk.calls.clear()
    replies = replica.handle([append(1, 0, 2), append(2, 0, 1), append(1, 2, 2)])
    assert replies == [Appended(1, 1, 3), Appended(2, 1, 0)]
    disk.calls.clear()  # the journal has been made
    replies = replica.handle([append(1, 4, 2), append(2, 1, 1)])
    assert replies == [Appended(1, 1, 5), Appended(2, 1, 1)]
    assert (calls(disk, "pwrite"), calls(disk, "fdatasync")) == (3, 1)


def test_other_requests_wait_for_the_sync_of_what_came_before_them() -> None:
    disk = FaultyDisk()
    replica = service(disk)
    replies = replica.handle([append(0, 0, 3), State(1, 1), append(0, 3, 1), Truncate(0, 1, 1), append(0, 2, 1)])
    assert replies == [
        Appended(0, 1, 2),
        StateReply(1, 1, 1, -1, -1, -1, False),
        Appended(0, 1, 3),
        Truncated(0, 1, 1),
        Appended(0, 1, 2),
    ]


def test_every_acknowledged_record_survives_a_crash_right_after_the_turn() -> None:
    disk = FaultyDisk()
    replica = service(disk, SMALL)
    acknowledged = -1
    for turn in range(8):
        first = acknowledged + 1
        (reply,) = replica.handle([append(0, first, 3), append(0, first + 3, turn)])
        assert isinstance(reply, Appended)
        acknowledged = reply.last_id
        disk.crash()
        replica = ReplicaService(reopen(disk, SMALL))
        assert replica.handle([Open(0, 1, KEY)]) == [StateReply(0, 1, 1, -1, -1, acknowledged, False)]


def test_a_failed_sync_is_never_an_acknowledgement() -> None:
    disk = FaultyDisk()
    replica = service(disk)
    disk.fail_sync = True
    with pytest.raises(SyncFailed):
        replica.handle([append(0, 0, 3)])
    disk.fail_sync = False
    for request in (append(0, 3, 1), append(1, 0, 1), Open(0, 2, KEY), State(0, 1)):
        with pytest.raises(SyncFailed):
            replica.handle([request])


def test_sessions_fence() -> None:
    replica = service(FaultyDisk())
    replica.handle([append(0, 0, 2)])
    assert replica.handle([Open(0, 4, KEY)]) == [StateReply(0, 4, 1, -1, -1, 1, False)]
    requests: list[ReplicaRequest] = [
        Open(0, 3, KEY),
        State(0, 3),
        append(0, 2, 1, session_id=3),
        Read(0, 3, 0, 1, 10),
        Truncate(0, 3, 0),
        SetLowWaterMark(0, 3, 0, 0),
        Close(0, 3),
    ]
    for request in requests:
        kind = REPLICA_TYPES[type(request)]
        assert refusal(replica.handle([request])) == (RefusalCode.FENCED, kind, 4, 1)
    assert refusal(replica.handle([append(0, 2, 1, session_id=5)]))[0] == RefusalCode.NOT_OPEN
    assert replica.handle([append(0, 2, 1, session_id=4)]) == [Appended(0, 4, 2)]


def test_a_restarted_replica_wants_to_be_opened_again() -> None:
    disk = FaultyDisk()
    replica = service(disk)
    replica.handle([append(0, 0, 1)])
    disk.crash()
    replica = ReplicaService(reopen(disk))
    assert refusal(replica.handle([append(0, 1, 1)]))[0] == RefusalCode.NOT_OPEN
    assert replica.handle([Open(0, 1, KEY), append(0, 1, 1)])[1] == Appended(0, 1, 1)


def test_no_refusal_tells_a_stranger_the_cluster_key() -> None:
    disk = FaultyDisk()
    replica = service(disk)
    stranger = uuid.uuid4()
    replica.handle([append(0, 0, 3)])
    replica.store.close()
    disk.flip(f"{DIRECTORY}/0/{0:019d}.seg", 12)  # the first byte of the key in the segment's header
    replica = ReplicaService(reopen(disk))
    asked: list[ReplicaRequest] = [Open(1, 2, stranger), Read(0, -1, 0, 1, 10), State(0, -1), Open(0, 2, stranger)]
    told = [reply for request in asked for reply in replica.handle([request])]
    assert [reply.code for reply in told if isinstance(reply, Refused)].count(RefusalCode.WRONG_CLUSTER) == 2
    for reply in told:
        encoded = b"".join(bytes(part) for part in encode_replica(reply))
        assert str(KEY).encode() not in encoded
        assert KEY.hex.encode() not in encoded
        assert KEY.bytes not in encoded


def test_refusals() -> None:
    disk = FaultyDisk()
    replica = service(disk)
    assert refusal(replica.handle([Open(0, 2, uuid.uuid4())]))[0] == RefusalCode.WRONG_CLUSTER
    assert refusal(replica.handle([Open(3, 2, KEY)])) == (RefusalCode.UNKNOWN_PARTITION, 1, -1, -1)
    assert refusal(replica.handle([append(0, 1, 1)])) == (RefusalCode.NOT_CONTIGUOUS, 5, 1, -1)
    assert refusal(replica.handle([Read(0, 1, 0, 1, 10)]))[0] == RefusalCode.NOT_CONTIGUOUS
    replies = replica.handle([append(0, 0, 2), append(0, 5, 1), append(0, 6, 1), append(0, 2, 1)])
    assert [type(reply).__name__ for reply in replies] == ["Appended", "Refused", "Refused", "Appended"]
    disk.capacity_bytes = 0
    assert refusal(replica.handle([append(0, 3, 9)])) == (RefusalCode.DISK_FULL, 5, 1, 2)
    disk.capacity_bytes = None
    assert replica.handle([append(0, 3, 9)]) == [Appended(0, 1, 11)]


@pytest.mark.parametrize("count", [1, 3, 40])  # few are looked at one by one, many as columns
def test_no_record_is_taken_that_is_not_what_its_crc_says(count: int) -> None:
    disk = FaultyDisk()
    replica = service(disk)
    assert replica.handle([append(0, 0, 2)]) == [Appended(0, 1, 1)]
    whole = append(0, 2, count)
    for at in range(len(whole.records)):
        changed = bytearray(whole.records)
        changed[at] ^= 1 << at % 8
        replies = replica.handle([Append(0, 1, 2, whole.lengths, memoryview(changed))])
        assert refusal(replies) == (RefusalCode.INVALID_REQUEST, 5, 1, 1)
    assert replica.handle([whole]) == [Appended(0, 1, 1 + count)]
    disk.crash()
    again = reopen(disk).partition(0)
    assert (again.last_id, again.damaged) == (1 + count, None)


def test_what_was_changed_takes_nothing_with_it_that_was_not() -> None:
    """Requests that go into one write with it are refused with it, and come again; those before it are durable."""
    disk = FaultyDisk()
    replica = service(disk)
    second = append(0, 3, 2)
    changed = Append(0, 1, 3, second.lengths, memoryview(bytes(second.records)[:-1] + b"?"))
    replies = replica.handle([append(1, 0, 3), append(0, 0, 3), changed])
    assert [type(reply).__name__ for reply in replies] == ["Appended", "Refused", "Refused"]
    assert replica.handle([append(0, 0, 3), second]) == [Appended(0, 1, 4)]


def test_damage_is_told_and_not_served() -> None:
    disk = FaultyDisk()
    replica = service(disk)
    replica.handle([append(0, 0, 9), SetLowWaterMark(0, 1, 8, 8)])
    disk.crash()
    disk.flip(f"{DIRECTORY}/0/{0:019d}.seg", 150)
    replica = ReplicaService(reopen(disk, BIG))
    (state,) = replica.handle([Open(0, 2, KEY)])
    assert isinstance(state, StateReply)
    if not state.damaged:  # it lies before the index's last checkpoint: the first reader finds it
        assert refusal(replica.handle([Read(0, 2, 0, 9, 1000)]))[0] == RefusalCode.DAMAGED
        (state,) = replica.handle([State(0, 2)])
        assert isinstance(state, StateReply)
    assert (state.damaged, state.last_id) == (True, -1)
    assert refusal(replica.handle([append(0, 0, 1, session_id=2)])) == (RefusalCode.DAMAGED, 5, 2, -1)
    assert replica.handle([Truncate(0, 2, -1), append(0, 0, 1, session_id=2)]) == [
        Truncated(0, 2, -1),
        Appended(0, 2, 0),
    ]


def test_reading_and_marks() -> None:
    replica = service(FaultyDisk())
    replica.handle([append(0, 0, 9)])
    (reply,) = replica.handle([Read(0, 1, 2, 5, 100_000)])
    assert isinstance(reply, Records)
    assert [bytes(data) for data in reply.batch.datas()] == [data_of(i) for i in (2, 3, 4)]
    assert refusal(replica.handle([Read(0, -1, 0, 9, 100_000)]))[0] == RefusalCode.NOT_CONTIGUOUS
    assert replica.handle([SetLowWaterMark(0, 1, 6, 6)]) == [LowWaterMarkSet(0, 1)]
    (reply,) = replica.handle([Read(0, -1, 0, 9, 100_000)])
    assert isinstance(reply, Records)
    assert len(reply.lengths) == 7
    assert replica.handle([Close(0, 1)]) == [Closed(0, 1)]


def test_only_the_connection_that_opened_a_session_last_may_change_the_partition() -> None:
    replica = service(FaultyDisk())
    old, new = object(), object()
    replica.handle([Open(0, 2, KEY)], old)
    replica.handle([append(0, 0, 5, 2)], old)
    (reopened,) = replica.handle([Open(0, 2, KEY)], new)
    assert isinstance(reopened, StateReply)
    assert reopened.last_id == 4
    late: list[ReplicaRequest] = [Truncate(0, 2, 1), append(0, 5, 1, 2), SetLowWaterMark(0, 2, 4, 4)]
    for request in late:
        (refused,) = replica.handle([request], old)
        assert isinstance(refused, Refused)
        assert refused.code is RefusalCode.NOT_OPEN
    assert replica.handle([State(0, 2)], new) == [StateReply(0, 2, 2, -1, -1, 4, False)]
    assert replica.handle([append(0, 5, 1, 2)], new) == [Appended(0, 2, 5)]


def test_a_session_has_one_owner() -> None:
    disk = FaultyDisk()
    replica = service(disk)
    ours, again, theirs = object(), object(), object()
    replica.handle([Open(0, 2, KEY, owner="a/1"), append(0, 0, 3, 2)], ours)
    assert refusal(replica.handle([Open(0, 2, KEY, owner="b/1")], theirs)) == (RefusalCode.OTHER_OWNER, 1, 2, 2)
    assert refusal(replica.handle([Open(0, 2, KEY)], theirs)) == (RefusalCode.FENCED, 1, 2, 2)
    assert replica.handle([append(0, 3, 1, 2)], ours) == [Appended(0, 2, 3)], "its connection keeps its rights"
    assert replica.handle([Open(0, 2, KEY, owner="a/1")], again) == [StateReply(0, 2, 2, -1, -1, 3, False)]
    assert refusal(replica.handle([State(0, 2)], ours))[0] == RefusalCode.NOT_OPEN, "a round is confirmed to the owner"
    assert replica.handle([Open(0, 3, KEY, owner="b/2")], theirs) == [StateReply(0, 3, 2, -1, -1, 3, False)]
    disk.crash()
    replica = ReplicaService(reopen(disk, BIG))
    (first,) = replica.handle([Open(0, 3, KEY, owner="a/3")], ours)
    assert isinstance(first, StateReply), (
        "who comes first after a restart; the other's connection went with the process"
    )
    assert refusal(replica.handle([Open(0, 3, KEY, owner="b/2")], theirs))[0] == RefusalCode.OTHER_OWNER


def test_a_replica_that_remembers_less_than_it_joined_refuses_and_changes_nothing() -> None:
    replica = service(FaultyDisk())
    (refused,) = replica.handle([Open(0, 9, KEY, joined_session_id=2)])
    assert isinstance(refused, Refused)
    assert refused.code is RefusalCode.LOST_FILES
    assert replica.store.partition(0).session_id == 1, "it would vote next time, had it taken the session"


def test_an_answer_to_a_read_fits_half_a_frame_unless_it_is_one_record() -> None:
    replica = ReplicaService(create(FaultyDisk(), BIG, 1), max_frame_bytes=1000)
    replica.handle([Open(0, 1, KEY), append(0, 0, 50)])
    sizes = []
    for first_id in (0, 10, 20):
        (reply,) = replica.handle([Read(0, 1, first_id, 50, (1 << 31) - 1)])
        assert isinstance(reply, Records)
        sizes.append(len(reply.records))
    assert 300 < max(sizes) <= 500
    tiny = ReplicaService(replica.store, max_frame_bytes=10)
    (reply,) = tiny.handle([Read(0, 1, 5, 50, (1 << 31) - 1)])
    assert isinstance(reply, Records)
    assert len(reply.lengths) == 1


def test_by_default_a_read_brings_at_most_half_of_64_mib() -> None:
    """38 bytes from a stranger made an answer of everything there was."""
    replica = service(FaultyDisk(), partitions=1)
    size = 1 << 20
    for number in range(40):
        zero, length = np.zeros(1, dtype=np.int32), np.array([size], dtype=np.int32)
        checksum = np.array([crc32(bytes(size))], dtype=np.uint32)
        batch = build_records(0, number, 7, 1, (zero, zero, length, checksum), bytes(size))
        replica.handle([Append(0, 1, number, batch.lengths, batch.records)])
    (reply,) = replica.handle([Read(0, 1, 0, 40, (1 << 31) - 1)])
    assert isinstance(reply, Records)
    assert len(reply.records) <= 32 << 20
