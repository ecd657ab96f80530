"""Keys of an application as numbers: which partition a key belongs to, and which lock.

One rule, the same in every process and every language: CRC-32 (zlib's, the check value of "123456789" is 0xCBF43926)
of the key's text in UTF-8. A partition is this modulo their number; a lock's number is this.
"""

from __future__ import annotations

import zlib

from waltz_ray.errors import InvalidInput

__all__ = ["Key", "key_hash", "partition_for"]

Key = str | bytes | int
"""A number counts as its decimal text, so 17 and "17" are one key; bytes are taken as they are."""


def key_hash(key: Key) -> int:
    """CRC-32 of the key's text in UTF-8, 0 to 2^32 - 1. InvalidInput: it is neither text nor bytes nor a number."""
    if isinstance(key, bytes):
        return zlib.crc32(key)
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise InvalidInput(f"a key must be a string, bytes or an integer, not {type(key).__name__}: {key!r}")
    return zlib.crc32(str(key).encode("utf-8", "surrogatepass"))


def partition_for(key: Key, partitions: int) -> int:
    """The partition of ``key`` in a cluster of so many, as ``waltz load`` chooses it: ``key_hash`` modulo that."""
    return key_hash(key) % partitions
