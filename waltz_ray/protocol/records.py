"""Packed records: how a batch travels from socket to disk to feed without a Python object per record.

This is the one place where the packing is explained. A batch of n records is *columns* (numpy arrays of
length n) plus *one contiguous body*. Record i of a body whose lengths are ``lengths`` occupies the bytes
``[offsets[i], offsets[i + 1])`` where ``offsets = offsets_of(lengths)``.

An ``AppendBatch`` is what a client proposes: columns and a body of bare transaction data.
A ``RecordBatch`` is what the log stores (docs/formats.md, "Segment"): the body is ready record bytes, exactly
as they lie in a segment file, so the same bytes go to every replica, to the feed cache, and to readers::

    long transaction ID | int client ID | int generation | int partition ID | int sequence number |
    int transaction header | int data length | int crc of data | data | int crc of all of that

In memory integers are native; big-endian exists only inside record bytes and frames.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from waltz_ray.protocol.checksum import are_whole, crc32
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.times import NO_TIMES, TimeMarks, times_within
from waltz_ray.protocol.value import value

__all__ = [
    "FEW_RECORDS",
    "MOST_LOCKS",
    "RECORD_HEADER_BYTES",
    "RECORD_OVERHEAD_BYTES",
    "AppendBatch",
    "Int32s",
    "Int64s",
    "LockColumns",
    "RecordBatch",
    "RecordFields",
    "UInt32s",
    "bad_data",
    "build_records",
    "few_records",
    "first_bad_record",
    "offsets_of",
    "split",
]

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]
RecordFields = npt.NDArray[Any]  # structured, dtype HEADER_DTYPE

HEADER_DTYPE = np.dtype(
    [
        ("transaction_id", ">i8"),
        ("client_id", ">i4"),
        ("generation", ">i4"),
        ("partition_id", ">i4"),
        ("sequence_number", ">i4"),
        ("header", ">i4"),
        ("data_length", ">i4"),
        ("data_checksum", ">u4"),
    ]
)
RECORD_HEADER_BYTES = HEADER_DTYPE.itemsize  # 36
_ONE_HEAD = struct.Struct(">q6iI")
RECORD_OVERHEAD_BYTES = RECORD_HEADER_BYTES + 4

MOST_LOCKS = 4096
"""Of one transaction, of all kinds together: the server's loop must not stand still for it."""

FEW_RECORDS = 12
"""Up to so many records are sooner handled one by one than as columns."""

_FEW_TO_CHECK = 40  # the same for checking them: of one record 2 us and 17 us

_HALF = 1 << 31  # of what 32 bits can say
_NO_OFFSETS = np.zeros(1, dtype=np.int32)
_NO_HASHES = np.zeros(0, dtype=np.int32)


def offsets_of(lengths: npt.NDArray[np.signedinteger[Any]]) -> Int64s:
    """Start of each part in a body, and the body's end: n lengths give n + 1 offsets."""
    if len(lengths) == 1:
        return np.array((0, lengths[0]), dtype=np.int64)
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


@value()
class LockColumns:
    """The lock hashes of n transactions: those of transaction i are ``hashes[offsets[i]:offsets[i + 1]]``.

    ``offsets`` has n + 1 entries, or is the single entry 0 when no transaction of the batch has such a lock.
    """

    offsets: Int32s = field(default_factory=lambda: _NO_OFFSETS)
    hashes: Int32s = field(default_factory=lambda: _NO_HASHES)

    def of(self, index: int) -> Int32s:
        """The hashes of one transaction."""
        if not len(self.hashes):
            return self.hashes
        return self.hashes[self.offsets[index] : self.offsets[index + 1]]

    def of_each(self, count: int) -> Sequence[Sequence[int]]:
        """The hashes of each of the ``count`` transactions, as plain integers."""
        if not len(self.hashes):
            return ((),) * count
        hashes = self.hashes.tolist()
        if count == 1:
            return [hashes]
        return [hashes[start:end] for start, end in pairwise(self.offsets.tolist())]

    @classmethod
    def pack(cls, locks: list[list[int]]) -> LockColumns:
        """From one list of hashes per transaction."""
        if not any(locks):
            return cls()
        counts = np.fromiter(map(len, locks), dtype=np.int32, count=len(locks))
        return cls(
            offsets_of(counts).astype(np.int32),
            np.fromiter(chain.from_iterable(locks), dtype=np.int32, count=int(counts.sum())),
        )


@value(eq=False)
class AppendBatch:
    """n proposals of one client for one partition (see the module's docstring for the shape)."""

    client_id: int
    generation: int
    partition_id: int
    sequence_numbers: Int32s
    client_marks: Int64s  # the client's high-water mark before the application's code ran
    headers: Int32s
    lengths: Int32s  # of the data
    checksums: UInt32s  # CRC-32 of the data
    body: bytes | memoryview
    write_locks: LockColumns = field(default_factory=LockColumns)
    read_locks: LockColumns = field(default_factory=LockColumns)
    append_locks: LockColumns = field(default_factory=LockColumns)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def has_locks(self) -> bool:
        return bool(self.lock_count)

    @property
    def lock_count(self) -> int:
        """Of all kinds and transactions together."""
        write, read, append = self.write_locks, self.read_locks, self.append_locks
        if write is read and read is append:  # nearly always: the one that stands for none
            return 3 * len(write.hashes)
        return len(write.hashes) + len(read.hashes) + len(append.hashes)

    @property
    def lock_ends(self) -> Int64s:
        """How many locks the first 0, 1, ... n transactions have together."""
        ends = np.zeros(len(self) + 1, dtype=np.int64)
        for columns in (self.write_locks, self.read_locks, self.append_locks):
            if len(columns.hashes):
                ends += columns.offsets
        return ends

    def req_id(self, index: int) -> ReqId:
        return ReqId(self.client_id, self.generation, self.partition_id, int(self.sequence_numbers[index]))

    @property
    def end_number(self) -> int:
        """The sequence number that follows these; 32 bits of it, with a sign, as they go over the wire."""
        return (int(self.sequence_numbers[-1]) + 1 + _HALF) % (2 * _HALF) - _HALF


_DERIVED = ("_offsets", "_fields", "_origins")


class RecordBatch:
    """n consecutive records of one partition as ready record bytes: the first has the ID ``first_id``.

    ``lengths`` are whole records (data + RECORD_OVERHEAD_BYTES); ``records`` is their concatenation; ``times`` says
    when they were appended, as far as that is known. Nothing of it changes. What is gathered from the bytes is kept
    until ``forget_derived``; whoever makes the bytes may give it.
    """

    __slots__ = (
        "_fields",
        "_offsets",
        "_origins",
        "end_id",
        "first_id",
        "last_id",
        "lengths",
        "partition_id",
        "records",
        "times",
    )

    def __init__(
        self,
        partition_id: int,
        first_id: int,
        lengths: Int32s,
        records: bytes | memoryview,
        fields: RecordFields | None = None,
        origins: list[tuple[int, int]] | None = None,
        times: TimeMarks = NO_TIMES,
    ) -> None:
        self.partition_id = partition_id
        self.first_id = first_id
        self.lengths = lengths
        self.records = records
        self.times = times
        self.end_id = first_id + len(lengths)
        self.last_id = self.end_id - 1
        self._offsets: Int64s | None = None
        self._fields = fields
        self._origins = origins

    def called(self, partition_id: int) -> RecordBatch:
        """The same records, as of a partition of another number; their bytes still have the one that they came with."""
        fields, origins, times = self._fields, self._origins, self.times
        return RecordBatch(partition_id, self.first_id, self.lengths, self.records, fields, origins, times=times)

    def __repr__(self) -> str:
        return f"RecordBatch({self.partition_id}, [{self.first_id}, {self.end_id}), {self.size_bytes} bytes)"

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def size_bytes(self) -> int:
        return len(self.records)

    @property
    def offsets(self) -> Int64s:
        """Start of each record in ``records``, and its end."""
        if self._offsets is None:
            self._offsets = offsets_of(self.lengths)
        return self._offsets

    @property
    def fields(self) -> RecordFields:
        """The record headers, gathered at once: a structured big-endian array, names as in HEADER_DTYPE."""
        if self._fields is None:
            rows = _gather(self.records, self.offsets[:-1], RECORD_HEADER_BYTES)
            self._fields = rows.view(HEADER_DTYPE).reshape(-1)
        return self._fields

    @property
    def origins(self) -> list[tuple[int, int]]:
        """(client ID, sequence number) of each record."""
        if self._origins is None:
            fields = self.fields
            self._origins = list(zip(fields["client_id"].tolist(), fields["sequence_number"].tolist(), strict=True))
        return self._origins

    def forget_derived(self) -> None:
        """Give up the memory of what has been gathered from the bytes; it can be gathered again."""
        self._offsets = self._fields = self._origins = None

    def data(self, index: int) -> memoryview:
        """The transaction data of record ``index``."""
        start = int(self.offsets[index]) + RECORD_HEADER_BYTES
        return memoryview(self.records)[start : int(self.offsets[index + 1]) - 4]

    def datas(self) -> Iterator[memoryview]:
        """The transaction data of every record, in order."""
        view = memoryview(self.records)
        bounds = self.offsets.tolist()
        for start, end in pairwise(bounds):
            yield view[start + RECORD_HEADER_BYTES : end - 4]

    def slice(self, start: int, end: int) -> RecordBatch:
        """Records [start, end) by position in this batch."""
        if start == 0 and end >= len(self.lengths):
            return self
        view = memoryview(self.records)[int(self.offsets[start]) : int(self.offsets[end])]
        lengths, first_id = self.lengths[start:end], self.first_id + start
        times = times_within(self.times, first_id, first_id + len(lengths))
        return RecordBatch(self.partition_id, first_id, lengths, view, times=times)

    def since(self, transaction_id: int) -> RecordBatch:
        """The records with IDs >= ``transaction_id``."""
        return self.slice(max(0, transaction_id - self.first_id), len(self.lengths))


def _gather(body: bytes | memoryview, starts: Int64s, width: int) -> npt.NDArray[np.uint8]:
    """Rows of ``width`` bytes of ``body`` beginning at ``starts``: shape (n, width), contiguous."""
    if not len(starts):
        return np.zeros((0, width), dtype=np.uint8)
    # All windows of the body, overlapping, without a copy: sliding_window_view takes twenty microseconds for the same.
    windows = np.ndarray((len(body) - width + 1, width), np.uint8, body, strides=(1, 1))
    return np.ascontiguousarray(windows[starts])


def split(body: bytes | memoryview, lengths: Int32s) -> list[memoryview]:
    """The parts of a body."""
    view = memoryview(body)
    if len(lengths) == 1:
        return [view]
    return [view[start:end] for start, end in pairwise(offsets_of(lengths).tolist())]


def build_records(
    partition_id: int,
    first_id: int,
    client_ids: Int32s | int,
    generations: Int32s | int,
    batch_columns: tuple[Int32s, Int32s, Int32s, UInt32s],
    body: bytes | memoryview | Sequence[bytes | memoryview],
) -> RecordBatch:
    """Give consecutive IDs from ``first_id`` and make the record bytes, once.

    ``batch_columns`` = (sequence numbers, headers, data lengths, data checksums) of the n records; ``body`` is their
    data, in one piece or as n parts.
    """
    sequence_numbers, headers, data_lengths, checksums = batch_columns
    count = len(data_lengths)
    fields = np.empty(count, dtype=HEADER_DTYPE)
    fields["transaction_id"] = np.arange(first_id, first_id + count)
    fields["client_id"] = client_ids
    fields["generation"] = generations
    fields["partition_id"] = partition_id
    fields["sequence_number"] = sequence_numbers
    fields["header"] = headers
    fields["data_length"] = data_lengths
    fields["data_checksum"] = checksums

    heads = fields.tobytes()
    head_parts = [heads[i : i + RECORD_HEADER_BYTES] for i in range(0, len(heads), RECORD_HEADER_BYTES)]
    data_parts = split(body, data_lengths) if isinstance(body, bytes | memoryview) else body
    crcs = struct.pack(f">{count}I", *map(crc32, data_parts, map(crc32, head_parts)))
    tail_parts = [crcs[i : i + 4] for i in range(0, len(crcs), 4)]
    records = b"".join(chain.from_iterable(zip(head_parts, data_parts, tail_parts, strict=True)))
    return RecordBatch(partition_id, first_id, data_lengths + np.int32(RECORD_OVERHEAD_BYTES), records, fields)


def few_records(
    partition_id: int, first_id: int, rows: Sequence[tuple[int, int, int, int, int, bytes | memoryview]]
) -> RecordBatch:
    """A batch of rows (client ID, generation, sequence number, header, data checksum, data), made one by one."""
    parts: list[bytes | memoryview] = []
    lengths: list[int] = []
    origins: list[tuple[int, int]] = []
    for transaction_id, (client_id, generation, number, header, checksum, data) in enumerate(rows, first_id):
        size = len(data)
        head = _ONE_HEAD.pack(transaction_id, client_id, generation, partition_id, number, header, size, checksum)
        parts += (head, data, crc32(data, crc32(head)).to_bytes(4, "big"))
        lengths.append(size + RECORD_OVERHEAD_BYTES)
        origins.append((client_id, number))
    return RecordBatch(partition_id, first_id, np.array(lengths, dtype=np.int32), b"".join(parts), None, origins)


def bad_data(parts: Sequence[bytes | memoryview], checksums: UInt32s) -> list[int]:
    """Positions of the parts whose CRC-32 differs from their checksum."""
    actual = np.fromiter(map(crc32, parts), dtype=np.uint32, count=len(parts))
    return [] if np.array_equal(actual, checksums) else np.flatnonzero(actual != checksums).tolist()


def first_bad_record(batch: RecordBatch) -> int:
    """Position of the first record whose length, ID, partition or CRC is wrong, or -1.

    The CRC of a record covers its data, so the inner data checksum needs no pass of its own here.
    """
    if len(batch) <= _FEW_TO_CHECK:
        return _first_bad_of_few(batch)
    if int(batch.lengths.min()) < RECORD_OVERHEAD_BYTES or int(batch.offsets[-1]) != len(batch.records):
        return 0
    return _first_bad_of_many(batch)


def _first_bad_of_few(batch: RecordBatch) -> int:
    lengths, records, start = batch.lengths.tolist(), memoryview(batch.records), 0
    if lengths and (min(lengths) < RECORD_OVERHEAD_BYTES or sum(lengths) != len(records)):
        return 0
    for index, length in enumerate(lengths):
        end = start + length
        transaction_id, _, _, partition_id, _, _, data_length, _ = _ONE_HEAD.unpack_from(records, start)
        place = transaction_id, partition_id, data_length + RECORD_OVERHEAD_BYTES
        if place != (batch.first_id + index, batch.partition_id, length):
            return index
        if crc32(records[start : end - 4]).to_bytes(4, "big") != records[end - 4 : end]:
            return index
        start = end
    return -1


def _first_bad_of_many(batch: RecordBatch) -> int:
    fields = batch.fields
    wrong = (
        (fields["transaction_id"] != np.arange(batch.first_id, batch.end_id))
        | (fields["partition_id"] != batch.partition_id)
        | (fields["data_length"] + RECORD_OVERHEAD_BYTES != batch.lengths)
    )
    if not wrong.any() and are_whole(batch.records, batch.offsets):
        return -1
    return _first_bad_of_few(batch)
