"""The bytes of segments and indexes, and the scan that finds where the good records end.

They are told in docs/formats.md, "Segment", "Index". Only reading here. The CRC of data at rest is ``crcmod``'s, the
project's reference implementation.
"""

from __future__ import annotations

import struct
import uuid
import warnings
import zlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from waltz_ray.errors import Corruption
from waltz_ray.protocol.records import RECORD_HEADER_BYTES, RECORD_OVERHEAD_BYTES, Int64s
from waltz_ray.storage.disk import Disk, is_unreadable

__all__ = [
    "FORMAT_VERSION",
    "HEADER_BYTES",
    "INDEX_ENTRY_BYTES",
    "MAX_RECORD_BYTES",
    "Scan",
    "SegmentHeader",
    "all_zero_from",
    "crc32_at_rest",
    "index_path",
    "is_number",
    "is_whole",
    "scan_records",
    "segment_ids",
    "segment_path",
    "time_path",
]

FORMAT_VERSION = 0
HEADER_BYTES = 128
INDEX_ENTRY_BYTES = 8
MAX_RECORD_BYTES = (1 << 31) - 1
_HEADER = struct.Struct(">iq16siq88x")
_RECORD = struct.Struct(">q5iiI")
_CRC = struct.Struct(">I")
_CHUNK_BYTES = 1 << 20
_RESERVED_FROM = 40


def _crc_implementation() -> Callable[[bytes | memoryview], int]:
    """crcmod if its C extension was built; else zlib, which has the same value (crcmod would be 200 times slower)."""
    try:
        import crcmod._crcfunext
    except ImportError:
        warnings.warn(
            "crcmod was installed without its C extension; zlib.crc32 (the same value) checks data at rest instead",
            RuntimeWarning,
            stacklevel=2,
        )
        return zlib.crc32
    return crcmod.predefined.mkPredefinedCrcFun("crc-32")  # type: ignore[no-any-return]


crc32_at_rest = _crc_implementation()


class SegmentHeader(NamedTuple):
    """The 128 bytes at the start of a segment and of its index. ``created_ms`` is milliseconds since the epoch."""

    created_ms: int
    cluster_key: uuid.UUID
    partition_id: int
    first_id: int

    def encode(self) -> bytes:
        return _HEADER.pack(FORMAT_VERSION, self.created_ms, self.cluster_key.bytes, self.partition_id, self.first_id)

    @classmethod
    def check(cls, raw: bytes, path: str, cluster_key: uuid.UUID, partition_id: int, first_id: int) -> SegmentHeader:
        """The header in ``raw``, which must be the one that ``path`` of this partition has; else Corruption."""
        if len(raw) < HEADER_BYTES:
            raise Corruption(path, len(raw), f"the header has {len(raw)} of {HEADER_BYTES} bytes")
        version, created_ms, key, partition, first = _HEADER.unpack(raw[:HEADER_BYTES])
        if version != FORMAT_VERSION:
            raise Corruption(path, 0, f"format version {version}, expected {FORMAT_VERSION}")
        if created_ms <= 0:
            raise Corruption(path, 4, f"creation time {created_ms} is not a time")
        if key != cluster_key.bytes:
            # Without the keys: a refusal tells this to strangers, and one with a rotten byte is nearly the right one.
            raise Corruption(path, 12, "the cluster key is not this directory's")
        if partition != partition_id:
            raise Corruption(path, 28, f"partition {partition}, expected {partition_id}")
        if first != first_id:
            raise Corruption(path, 32, f"first transaction ID {first}, expected {first_id}")
        reserved = raw[_RESERVED_FROM:HEADER_BYTES]
        if any(reserved):
            at = _RESERVED_FROM + next(i for i, byte in enumerate(reserved) if byte)
            raise Corruption(path, at, "a reserved byte of the header is not zero")
        return cls(created_ms, cluster_key, partition, first)


def segment_path(folder: str, first_id: int) -> str:
    return f"{folder}/{first_id:019d}.seg"


def index_path(folder: str, first_id: int) -> str:
    return f"{folder}/{first_id:019d}.idx"


def time_path(folder: str, first_id: int) -> str:
    return f"{folder}/{first_id:019d}.tix"


def is_number(name: str) -> bool:
    """Whether a name, or a part of one, is a number in plain digits; ``int`` does not take all that Unicode has."""
    return name.isascii() and name.isdecimal()


def segment_ids(names: list[str], suffix: str = ".seg") -> list[int]:
    """First transaction IDs of the files with that suffix, ascending."""
    stems = (name[: -len(suffix)] for name in names if name.endswith(suffix))
    return sorted(int(stem) for stem in stems if len(stem) == 19 and is_number(stem))


class Scan(NamedTuple):
    """The good records found from ``offset`` on: where each starts, where they end, and why no more were taken.

    ``reason`` is None when all that was asked for is there; ``"end"`` at the end of the file or of a header of
    zeros; anything else describes a bad record at ``end``. ``unreadable``: the disk does not give it, so that nobody
    knows what is there.
    """

    offsets: Int64s
    end: int
    reason: str | None
    unreadable: bool = False


class _Window:
    """Sequential reading of one file in chunks."""

    def __init__(self, disk: Disk, handle: int) -> None:
        self._disk, self._handle = disk, handle
        self._start, self._data = 0, b""
        self._ahead_bytes = _CHUNK_BYTES

    def bytes_at(self, offset: int, size: int) -> memoryview:
        """``size`` bytes at ``offset``; fewer where the file ends."""
        at = offset - self._start
        if at < 0 or at + size > len(self._data):
            self._start, self._data, at = offset, self._read(offset, size), 0
        return memoryview(self._data)[at : at + size]

    def _read(self, offset: int, size: int) -> bytes:
        try:
            return self._disk.pread(self._handle, max(size, self._ahead_bytes), offset)
        except OSError as error:
            if not (is_unreadable(error) and size < self._ahead_bytes):
                raise
        self._ahead_bytes = 0  # what is in front of the bad sector can be read: each try of that may take seconds
        return self._disk.pread(self._handle, size, offset)


def scan_records(
    disk: Disk,
    handle: int,
    partition_id: int,
    first_id: int,
    offset: int,
    stop_id: int | None = None,
    *,
    data_checksums: bool = False,
) -> Scan:
    """Read records one by one from ``offset``, where record ``first_id`` should be, up to ``stop_id`` (excluded).

    Checks ID, partition, length and the record's checksum; that one covers the data, so the data's own checksum
    (made by the client) is looked at only on demand. Costs a few microseconds a record. One that the disk does not give
    is a bad record.
    """
    window = _Window(disk, handle)
    file_size = disk.size(handle)
    offsets: list[int] = []
    expected = first_id
    while stop_id is None or expected < stop_id:
        try:
            reason, length = _check_record(window, partition_id, expected, offset, file_size, data_checksums)
        except OSError as error:
            if not is_unreadable(error):
                raise
            reason = f"record {expected} cannot be read: {error.strerror}"
            return Scan(np.array(offsets, dtype=np.int64), offset, reason, unreadable=True)
        if reason is not None:
            return Scan(np.array(offsets, dtype=np.int64), offset, reason)
        offsets.append(offset)
        offset += length
        expected += 1
    return Scan(np.array(offsets, dtype=np.int64), offset, None)


def _check_record(
    window: _Window, partition_id: int, expected_id: int, offset: int, file_size: int, data_checksums: bool
) -> tuple[str | None, int]:
    """(why the record at ``offset`` is not ``expected_id``, or None; its length in bytes)."""
    head = window.bytes_at(offset, RECORD_HEADER_BYTES)
    if not head:
        return "end", 0
    if len(head) < RECORD_HEADER_BYTES:
        return ("end" if not any(head) else f"record {expected_id} is cut off in its header"), 0
    transaction_id, _, _, partition, _, _, data_length, data_crc = _RECORD.unpack(head)
    if not any(head):
        return "end", 0
    if transaction_id != expected_id:
        return f"transaction ID {transaction_id}, expected {expected_id}", 0
    if partition != partition_id:
        return f"record {expected_id} is of partition {partition}, expected {partition_id}", 0
    length = data_length + RECORD_OVERHEAD_BYTES
    if data_length < 0 or length > MAX_RECORD_BYTES:
        return f"record {expected_id} has the impossible data length {data_length}", 0
    if offset + length > file_size:
        return f"record {expected_id} is cut off: {length} bytes long, {file_size - offset} are there", 0
    record = window.bytes_at(offset, length)
    if not is_whole(record):
        return f"record {expected_id} has a wrong checksum", 0
    if data_checksums and crc32_at_rest(record[RECORD_HEADER_BYTES:-4]) != data_crc:
        return f"the data of record {expected_id} has a wrong checksum", 0
    return None, length


def is_whole(record: memoryview) -> bool:
    """Whether a record has the checksum that it ends with: no crash has torn it, no bit has rotted."""
    return bool(crc32_at_rest(record[:-4]) == _CRC.unpack(record[-4:])[0])


def all_zero_from(disk: Disk, handle: int, offset: int) -> int:
    """-1 if there are only zeros from ``offset`` to the end of the file, else the offset of the first other byte."""
    while chunk := disk.pread(handle, _CHUNK_BYTES, offset):
        wrong = np.flatnonzero(np.frombuffer(chunk, dtype=np.uint8))
        if len(wrong):
            return offset + int(wrong[0])
        offset += len(chunk)
    return -1
