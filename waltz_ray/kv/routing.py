"""Where an item lives: hashes, masks, buckets, partitions. Pure.

An item's *hash* is FNV-1a-32 of its name. Its *bucket* is hash & mask, its *partition* hash & (partitions - 1). The
mask is 0xF, 0xFF or 0xFFF and only grows; it is never smaller than partitions - 1, so every bucket lies in one
partition. A *unit* is a bucket under its mask: what one actor serves at a time. Under the next mask a unit becomes
sixteen finer ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from waltz_ray.protocol.spaces import checked_count

__all__ = [
    "MASKS",
    "Unit",
    "bucket_of",
    "checked_partitions",
    "coarser",
    "expanded",
    "finer",
    "first_mask",
    "fnv1a_32",
    "partition_of",
    "space_identity",
    "unit_of",
    "units_of",
]

T = TypeVar("T")

MASKS = (0xF, 0xFF, 0xFFF)
"""Every mask there is, from the first one on."""

_BASIS, _PRIME, _UINT32 = 0x811C9DC5, 0x01000193, 0xFFFFFFFF


class Unit(NamedTuple):
    """A bucket under a mask: what is owned."""

    mask: int
    bucket: int

    def __str__(self) -> str:
        width = len(f"{self.mask:X}")
        return f"{self.bucket:0{width}X}/{self.mask:X}"


def fnv1a_32(name: bytes) -> int:
    """The hash of a name, 0 to 2**32 - 1 (Fowler, Noll, Vo; the 1a variant)."""
    found = _BASIS
    for byte in name:
        found = ((found ^ byte) * _PRIME) & _UINT32
    return found


def space_identity(cluster_key: str, space: str) -> str:
    """What no other space is called, of this cluster or of another one."""
    return f"{cluster_key}/{space}"


def checked_partitions(partitions: int) -> int:
    """InvalidInput if a kv space cannot have so many."""
    return checked_count("kv", partitions)


def first_mask(partitions: int) -> int:
    """The mask that a space of so many partitions begins with."""
    return next(mask for mask in MASKS if mask >= checked_partitions(partitions) - 1)


def partition_of(key_hash: int, partitions: int) -> int:
    """The partition, counted from 0 within the space, of an item or of a bucket."""
    return key_hash & (partitions - 1)


def bucket_of(key_hash: int, mask: int) -> int:
    """The bucket of an item."""
    return key_hash & mask


def unit_of(key_hash: int, mask: int) -> Unit:
    """The unit of an item."""
    return Unit(mask, key_hash & mask)


def units_of(mask: int) -> list[Unit]:
    """Every unit under ``mask``."""
    return [Unit(mask, bucket) for bucket in range(mask + 1)]


def coarser(unit: Unit) -> Unit | None:
    """The unit that this one was a part of; None under the first mask."""
    level = MASKS.index(unit.mask)
    return Unit(MASKS[level - 1], unit.bucket & MASKS[level - 1]) if level else None


def finer(unit: Unit) -> list[Unit]:
    """The sixteen units it becomes under the next mask; none under the last."""
    if unit.mask == MASKS[-1]:
        return []
    mask = (unit.mask << 4) | 0xF
    return [Unit(mask, bucket) for bucket in range(unit.bucket, mask + 1, unit.mask + 1)]


def expanded(table: Sequence[T], mask: int) -> list[T]:
    """A client's table (an entry a bucket) under the larger ``mask``: of each entry that of the bucket it was in."""
    old_mask = len(table) - 1
    return [table[bucket & old_mask] for bucket in range(mask + 1)]
