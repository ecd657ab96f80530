"""Keys of an application as numbers: which partition a key belongs to, and which lock.

One rule, the same in every process and every language: CRC-32 (zlib's, the check value of "123456789" is 0xCBF43926)
of the key's text in UTF-8. A partition is this modulo their number; a lock's number is this if its key is text, and if
its key is a number, that.
"""

from __future__ import annotations

import zlib

from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.ids import LockId

__all__ = ["Key", "Lock", "key_hash", "lock_hash", "lock_of", "partition_for"]

Key = str | bytes | int
"""For a partition a number counts as its decimal text, so 17 and "17" are in one; bytes are taken as they are."""

Lock = LockId | tuple[str, Key]
"""What is locked: a name, and a number or a text."""


def key_hash(key: Key) -> int:
    """CRC-32 of the key's text in UTF-8, 0 to 2^32 - 1. InvalidInput: it is neither text nor bytes nor a number."""
    if isinstance(key, bytes):
        return zlib.crc32(key)
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise InvalidInput(f"a key must be a string, bytes or an integer, not {type(key).__name__}: {key!r:.60}")
    return zlib.crc32(str(key).encode("utf-8", "surrogatepass"))


def partition_for(key: Key, partitions: int) -> int:
    """The partition of ``key`` in a cluster of so many, as ``waltz load`` chooses it: ``key_hash`` modulo that."""
    return key_hash(key) % partitions


def lock_of(name: str, key: Key) -> LockId:
    """The lock of a name and a number, or of a name and a text or bytes: then its number is their ``key_hash``."""
    if not isinstance(name, str):
        raise InvalidInput(f"a lock's name must be a string, not {type(name).__name__}: {name!r:.60}")
    return LockId(name, int(key) if isinstance(key, int) and not isinstance(key, bool) else key_hash(key))


def lock_hash(lock: Lock) -> int:
    """What goes over the wire for it. InvalidInput: it is no lock."""
    if type(lock) is LockId and type(lock.id) is int and type(lock.name) is str:
        return lock.hash
    if isinstance(lock, LockId):
        return lock_of(lock.name, lock.id).hash
    if not isinstance(lock, tuple | list) or len(lock) != 2:
        raise InvalidInput(
            f"a lock must be a LockId or (name, number or text), not {lock!r:.60}; several are given as a list of them"
        )
    return lock_of(*lock).hash
