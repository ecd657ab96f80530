"""A storage replica in memory: one for all partitions, and a quorum by itself.

It keeps the rules of a replica that matter while nothing is ever lost: a higher session fences all lower ones, a
session has one owner, appends are contiguous. It answers at once, in the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from waltz_ray.actors.replica_link import Takes
from waltz_ray.errors import BelowTheLog, ReplicaRefused
from waltz_ray.protocol import trimming
from waltz_ray.protocol.ids import NO_SESSION, Endpoint
from waltz_ray.protocol.messages.replica import Append, FindExcess, FindTime, Read, ReadTimes, Times
from waltz_ray.protocol.partition.events import SessionConfirmed
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.protocol.retained import RetainedRecords, joined, limited
from waltz_ray.protocol.session_types import (
    ReplicaAppended,
    ReplicaFenced,
    ReplicaLost,
    ReplicaMarked,
    ReplicaOpened,
    ReplicaTruncated,
)
from waltz_ray.protocol.times import joined_times, times_within
from waltz_ray.runtime.status import LinkStatus
from waltz_ray.wire.framing import FRAME_HEADER_BYTES
from waltz_ray.wire.replica_codec import decode_replica

__all__ = ["MemoryReplica", "MemoryReplicaLink"]


@dataclass
class _Partition:
    """What the replica has of one."""

    session_id: int = NO_SESSION
    owner: str = ""
    low_water_mark: int = -1
    records: RetainedRecords = field(default_factory=lambda: RetainedRecords(0))

    def all(self) -> list[RecordBatch]:
        return self.records.between(self.records.first_id, self.records.end_id)

    @property
    def last_id(self) -> int:
        return self.records.end_id - 1


def _records(batches: Sequence[RecordBatch], first_id: int) -> RetainedRecords:
    records = RetainedRecords(first_id)
    for batch in batches:
        records.append(batch)
    return records


def _first_since(partition: _Partition, time_ms: int) -> int:
    dated = (batch for batch in partition.all() if batch.times and batch.times[0][1] >= time_ms)
    found = next(dated, None)
    return partition.records.end_id if found is None else found.first_id


class MemoryReplica:
    """The records, which outlive the servers. For one event loop."""

    def __init__(self, partitions: int, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms
        self.partitions = [_Partition() for _ in range(partitions)]

    def grow(self, partitions: int) -> None:
        """Have so many."""
        self.partitions += [_Partition() for _ in range(partitions - len(self.partitions))]

    def trim(self, marks: Mapping[int, int]) -> None:
        """Drop the batches of which every record is below its partition's trim mark."""
        for partition_id, mark in marks.items():
            partition = self.partitions[partition_id]
            kept = [batch for batch in partition.all() if batch.end_id > mark]
            partition.records = _records(kept, kept[0].first_id if kept else partition.records.end_id)

    def remove(self, partition_id: int) -> None:
        """What it has of a partition is gone; its session stays, so that nothing older is taken."""
        self.partitions[partition_id].records = RetainedRecords(0)


class MemoryReplicaLink:
    """One server's orders to the replica (``actors.replica_link.ReplicaOrders``)."""

    endpoint: Endpoint | None = None

    def __init__(self, replica_id: int, replica: MemoryReplica, drivers: Mapping[int, Takes]) -> None:
        self.replica_id = replica_id
        self.up = True
        self._replica = replica
        self._drivers = drivers

    def status(self) -> LinkStatus:
        return LinkStatus(self.up, None, {})

    def move_to(self, endpoint: Endpoint) -> None:
        """Do nothing: a replica in memory has no place to move to."""

    async def close(self) -> None:
        """Do and answer nothing from now on: the server has ended."""
        self.up = False

    def open(self, partition_id: int, session_id: int, joined_session_id: int, owner: str) -> None:
        if not self.up:
            return
        partition = self._replica.partitions[partition_id]
        other = session_id == partition.session_id and owner != partition.owner
        if session_id < partition.session_id or other:
            self._fenced(partition_id, session_id)
            return
        partition.session_id, partition.owner = session_id, owner
        opened = ReplicaOpened(session_id, self.replica_id, partition.low_water_mark, partition.last_id)
        self._drivers[partition_id].handle(opened)

    def confirm(self, partition_id: int, session_id: int, number: int) -> None:
        if self._admitted(partition_id, session_id) is not None:
            self._drivers[partition_id].handle(SessionConfirmed(session_id, self.replica_id, number))

    def truncate(self, partition_id: int, session_id: int, last_id: int) -> None:
        partition = self._admitted(partition_id, session_id)
        if partition is not None:
            first_id = partition.records.first_id
            partition.records = _records(partition.records.between(first_id, last_id + 1), first_id)
            self._drivers[partition_id].handle(ReplicaTruncated(session_id, self.replica_id, partition.last_id))

    def begin(self, partition_id: int, session_id: int, first_id: int) -> None:
        partition = self._admitted(partition_id, session_id)
        if partition is not None:
            partition.records = RetainedRecords(first_id)
            self._drivers[partition_id].handle(ReplicaTruncated(session_id, self.replica_id, first_id - 1))

    def set_low_water_mark(self, partition_id: int, session_id: int, low_water_mark: int) -> None:
        partition = self._admitted(partition_id, session_id)
        if partition is not None:
            partition.low_water_mark = low_water_mark
            self._drivers[partition_id].handle(ReplicaMarked(session_id, self.replica_id))

    def append(self, partition_id: int, session_id: int, last_id: int, frame: bytes) -> None:
        partition = self._admitted(partition_id, session_id)
        if partition is None:
            return
        message = decode_replica(memoryview(frame)[FRAME_HEADER_BYTES:])
        assert isinstance(message, Append)
        if message.first_id != partition.records.end_id:
            reason = f"the append begins at {message.first_id}, not at {partition.records.end_id}"
            self._drivers[partition_id].handle(ReplicaLost(session_id, self.replica_id, reason))
            return
        partition.records.append(message.batch)
        self._drivers[partition_id].handle(ReplicaAppended(session_id, self.replica_id, last_id))

    async def times(self, request: ReadTimes) -> Times:
        partition = self._replica.partitions[request.partition_id]
        end_id = min(request.end_id, partition.records.end_id)
        before_end = partition.records.between(partition.records.first_id, end_id)
        known = joined_times([batch.times for batch in before_end])
        times = times_within(known, request.first_id, end_id)
        return Times(request.partition_id, request.session_id, end_id, times)

    async def find_time(self, request: FindTime) -> int:
        partition = self._replica.partitions[request.partition_id]
        return _first_since(partition, request.time_ms)

    async def find_excess(self, request: FindExcess) -> int:
        partition = self._replica.partitions[request.partition_id]
        first_id = partition.records.first_id
        if request.age_ms >= 0:
            first_id = max(first_id, _first_since(partition, self._replica.now_ms() - request.age_ms))
        if request.most_bytes >= 0 and (batches := partition.all()):
            starts, sizes = [batch.first_id for batch in batches], [batch.size_bytes for batch in batches]
            first_id = max(first_id, trimming.by_size(starts, sizes, request.most_bytes))
        return first_id

    async def read(self, request: Read) -> RecordBatch:
        partition = self._replica.partitions[request.partition_id]
        if request.first_id < partition.records.first_id:
            raise BelowTheLog(request.partition_id, partition.records.first_id)
        found = partition.records.between(request.first_id, min(request.end_id, partition.records.end_id), 1 << 20)
        if not found:
            raise ReplicaRefused(f"partition {request.partition_id}: there is no transaction {request.first_id}")
        return limited(joined(found), request.max_bytes)

    def _admitted(self, partition_id: int, session_id: int) -> _Partition | None:
        """The partition, if this is the session that is open."""
        partition = self._replica.partitions[partition_id]
        if self.up and session_id == partition.session_id:
            return partition
        if self.up:
            self._fenced(partition_id, session_id)
        return None

    def _fenced(self, partition_id: int, session_id: int) -> None:
        highest = self._replica.partitions[partition_id].session_id
        self._drivers[partition_id].handle(ReplicaFenced(session_id, self.replica_id, highest))
