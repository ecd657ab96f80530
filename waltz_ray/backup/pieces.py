"""The bytes of a piece: a segment, as a replica has it, and behind its records the entries of a time index.

So ``record_bytes`` of it are a segment file, and what is behind them is a time index without its header:
docs/formats.md, "Segment", "Time index". Where the records end the name says: with the record before ``next_id``.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable

import numpy as np

from waltz_ray.backup.format import BackupPiece
from waltz_ray.errors import Corruption
from waltz_ray.protocol.records import RECORD_HEADER_BYTES, RECORD_OVERHEAD_BYTES, RecordBatch, first_bad_record
from waltz_ray.protocol.times import TimeMarks
from waltz_ray.storage.layout import HEADER_BYTES, SegmentHeader
from waltz_ray.storage.time_index import TIME_ENTRY_BYTES, TimeEntry

__all__ = ["UNKNOWN_MS", "PieceBuilder", "described", "encode_times", "parse_piece", "parse_times"]

UNKNOWN_MS = 1
"""Nobody knows when the first record was appended: not before this."""

Part = bytes | memoryview


class PieceBuilder:
    """Collects consecutive records of a partition: what one piece has."""

    def __init__(self, cluster_key: uuid.UUID, partition_id: int, first_id: int) -> None:
        self.first_id = self.next_id = first_id
        self.size = HEADER_BYTES
        self._cluster_key, self._partition_id = cluster_key, partition_id
        self._parts: list[Part] = []

    def add(self, batch: RecordBatch) -> None:
        """The next records."""
        assert batch.first_id == self.next_id
        self._parts.append(batch.records)
        self.next_id = batch.end_id
        self.size += batch.size_bytes

    def finish(self, times: TimeMarks) -> tuple[BackupPiece, list[Part]]:
        """What the manifest says of it, and its bytes in parts. ``times``: of its records, as far as they are known."""
        known = bool(times) and times[0][0] <= self.first_id
        created_ms = times[0][1] if known else UNKNOWN_MS
        header = SegmentHeader(max(created_ms, UNKNOWN_MS), self._cluster_key, self._partition_id, self.first_id)
        parts = [header.encode(), *self._parts, encode_times(times)]
        return described(self.first_id, self.next_id, self.size, parts, times), parts


def described(first_id: int, next_id: int, record_bytes: int, parts: Iterable[Part], times: TimeMarks) -> BackupPiece:
    """What the manifest says of an object of these ``parts``."""
    digest, size = hashlib.sha256(), 0
    for part in parts:
        digest.update(part)
        size += len(part)
    bounds = (times[0][1], times[-1][1]) if times else (None, None)
    return BackupPiece(first_id, next_id, record_bytes, size, digest.hexdigest(), *bounds)


def encode_times(times: TimeMarks) -> bytes:
    return b"".join(TimeEntry(transaction_id, time_ms).encode() for transaction_id, time_ms in times)


def parse_times(raw: Part, place: str, at: int, first_id: int, next_id: int) -> TimeMarks:
    """The marks of the records [first_id, next_id), from the end of the object ``place``; Corruption."""
    marks: list[tuple[int, int]] = []
    for offset in range(0, len(raw), TIME_ENTRY_BYTES):
        entry = TimeEntry.decode(bytes(raw[offset : offset + TIME_ENTRY_BYTES]))
        if entry is None or not first_id <= entry.first_id < next_id or entry.time_ms < 0:
            raise Corruption(place, at + offset, "the time of a record is damaged")
        if marks and (entry.first_id <= marks[-1][0] or entry.time_ms < marks[-1][1]):
            raise Corruption(place, at + offset, "the times of the records do not rise")
        marks.append((entry.first_id, entry.time_ms))
    return tuple(marks)


def parse_piece(
    raw: bytes, place: str, cluster_key: uuid.UUID, partition_id: int, first_id: int, next_id: int
) -> RecordBatch:
    """The records of the object called ``place``, with their times; every checksum is looked at. Corruption."""
    SegmentHeader.check(raw[:HEADER_BYTES], place, cluster_key, partition_id, first_id)
    lengths, at, view = [], HEADER_BYTES, memoryview(raw)
    for transaction_id in range(first_id, next_id):
        head = at + RECORD_HEADER_BYTES
        length = int.from_bytes(raw[head - 8 : head - 4], "big", signed=True) + RECORD_OVERHEAD_BYTES
        if length < RECORD_OVERHEAD_BYTES or at + length > len(raw):
            raise Corruption(place, at, f"record {transaction_id} is not there, or is cut off")
        lengths.append(length)
        at += length
    records = view[HEADER_BYTES:at]
    batch = RecordBatch(partition_id, first_id, np.array(lengths, dtype=np.int32), records)
    bad = first_bad_record(batch)
    if bad >= 0:
        raise Corruption(place, HEADER_BYTES + int(batch.offsets[bad]), f"record {first_id + bad} is damaged")
    batch.times = parse_times(view[at:], place, at, first_id, next_id)
    return batch
