"""Records that change in a server's memory, or on their way to a replica: in the histories of seeds with the bit
``CHANGES``.

One bit of a record's data or of its CRCs. What else a server keeps, or sends around records, has no check that could
notice it."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from waltz_ray.protocol.messages.replica import Append, ReplicaRequest
from waltz_ray.protocol.records import RECORD_HEADER_BYTES, RecordBatch
from waltz_ray.protocol.retained import RetainedRecords

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.replica import SimReplica
    from tests.simulation.world import World

__all__ = ["CHANGES", "Changes", "changed", "changed_requests"]

CHANGES = 1 << 35


class Changes:
    """The faults of such a history."""

    def __init__(self, world: World, random: Random) -> None:
        self._world, self._random = world, random
        self.kinds: dict[str, Callable[[], bool]] = {
            "record changed in memory": self._in_memory,
            "record changed on its way": self._on_its_way,
        }

    def _in_memory(self) -> bool:
        server = self._random.choice(self._world.servers)
        if not server.up or server.server is None:
            return False
        machine = server.server.machine_of(self._random.randrange(self._world.partitions))
        log = None if machine is None else machine.state.log
        return log is not None and self._change_one(log.retained)

    def _change_one(self, retained: RetainedRecords) -> bool:
        batches = retained._batches
        held = [at for at, batch in enumerate(batches) if len(batch) and batch.first_id >= retained.first_id]
        if not held:
            return False
        at = held[-1] if self._random.random() < 0.7 else self._random.choice(held)  # the last may be on its way
        batches[at] = changed(batches[at], self._random)
        return True

    def _on_its_way(self) -> bool:
        replica: SimReplica = self._random.choice(self._world.replicas)
        replica.changes_appends += self._random.choice([1, 1, 3])
        return replica.up


def changed(batch: RecordBatch, random: Random) -> RecordBatch:
    """The same with one bit of one record turned over."""
    index = random.randrange(len(batch))
    start, end = (int(offset) for offset in batch.offsets[index : index + 2])
    records = bytearray(batch.records)
    records[random.randrange(start + RECORD_HEADER_BYTES, end)] ^= 1 << random.randrange(8)
    return RecordBatch(batch.partition_id, batch.first_id, batch.lengths, bytes(records), times=batch.times)


def changed_requests(replica: SimReplica, requests: list[ReplicaRequest]) -> list[ReplicaRequest]:
    """What has come, with a bit turned over in as many of the appends as the replica is to be sent so."""
    arrived: list[ReplicaRequest] = []
    for request in requests:
        if replica.changes_appends and isinstance(request, Append):
            replica.changes_appends -= 1
            batch = changed(request.batch, replica.random)
            request = replace(request, records=memoryview(batch.records))
        arrived.append(request)
    return arrived
