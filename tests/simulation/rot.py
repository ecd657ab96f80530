"""Bits that flip on a replica's disk, where a flipped bit can be told from a torn tail."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from waltz_ray.protocol.records import RECORD_OVERHEAD_BYTES

if TYPE_CHECKING:
    from tests.simulation.replica import SimReplica
    from tests.simulation.world import World

__all__ = ["flip", "rot_behind_the_end", "rot_below_the_mark", "rot_in_an_index"]

_SEGMENT_HEADER_BYTES = 128


def flip(replica: SimReplica, path: str, offset: int, random: Random) -> None:
    replica.tell(f"bit rot in {path} at byte {offset}")
    replica.disk.flip(path, offset, 1 << random.randrange(8))


def rot_below_the_mark(world: World, replica: SimReplica, partition_id: int, random: Random) -> bool:
    """In a record (or a segment's header) that the replica must have whole. False if there is none."""
    log = replica.log(partition_id)
    if log is None or not world.operator.may_spoil(replica) or log.local_low_water_mark < 0:
        return False
    segments = world.segments(replica, partition_id)
    rotten = [first_id for first_id in segments if first_id <= log.local_low_water_mark]
    if not rotten:
        return False
    first_id = random.choice(rotten)
    path = segments[first_id]
    content = replica.disk.content(path)
    end, transaction_id = _SEGMENT_HEADER_BYTES, first_id
    while transaction_id <= log.local_low_water_mark and end + RECORD_OVERHEAD_BYTES <= len(content):
        if int.from_bytes(content[end : end + 8], "big") != transaction_id:
            break
        end += RECORD_OVERHEAD_BYTES + int.from_bytes(content[end + 28 : end + 32], "big")
        transaction_id += 1
    world.operator.spoiled.add(replica.replica_id)
    flip(replica, path, random.randrange(min(end, len(content))), random)
    return True


def rot_in_an_index(replica: SimReplica, random: Random) -> bool:
    indexes = [path for path in replica.disk.files() if path.endswith(".idx") and replica.disk.content(path)]
    if not indexes:
        return False
    path = random.choice(indexes)
    flip(replica, path, random.randrange(len(replica.disk.content(path))), random)
    return True


def rot_behind_the_end(replica: SimReplica, partition_id: int, random: Random) -> bool:
    """In the zeros written ahead of the records."""
    log = replica.log(partition_id)
    if log is None or log._active is None:
        return False
    path, end = log._active.path, log._active.end
    length = len(replica.disk.content(path))
    if length <= end:
        return False
    flip(replica, path, random.randrange(end, length), random)
    return True
