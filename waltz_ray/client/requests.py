"""Appends on their way: one ``Append`` or ``ManyAppend`` per call of the application, gathered into batches."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from waltz_ray.client.futures import LightFuture
from waltz_ray.errors import AppendFailed, InvalidInput, WaltzError
from waltz_ray.protocol.ids import NO_TRANSACTION
from waltz_ray.protocol.records import AppendBatch, Int32s, Int64s, LockColumns, UInt32s, offsets_of
from waltz_ray.wire.append_writer import append_head
from waltz_ray.wire.codec import BATCH_VERSION, encode_client
from waltz_ray.wire.primitives import BytesLike

if TYPE_CHECKING:
    from waltz_ray.client.contexts import ContextRun

__all__ = ["Append", "Batch", "LockHashes", "ManyAppend", "Part", "Slice", "check_size"]

_FRAME_BYTES = 256  # what a frame needs beside its records, with room to spare
_RECORD_BYTES = 32  # what a record needs beside its data and its locks
_LOCK_BYTES = 12
_INT32_END = 1 << 31

LockHashes = tuple[Sequence[int], Sequence[int], Sequence[int]]  # of write, read and append locks

_NO_HASHES: LockHashes = ((), (), ())


class Append:
    """One proposed record and its future.

    ``run`` is the transaction context this is one attempt of; then ``future`` is not used.
    """

    __slots__ = ("checksum", "data", "future", "header", "locks", "mark", "retry", "run", "since", "size_bytes")

    count: int = 1
    """Records."""

    def __init__(
        self, data: bytes, header: int, checksum: int, retry: bool = True, run: ContextRun | None = None
    ) -> None:
        self.data = data
        self.header = header
        self.checksum = checksum
        self.size_bytes = len(data) + _RECORD_BYTES  # of a frame, at the most
        self.mark = NO_TRANSACTION
        self.locks: LockHashes | None = None
        self.retry = retry
        self.run = run
        self.since = time.monotonic()  # when it began to wait for being sent
        self.future: LightFuture[Any] = LightFuture()

    def take_locks(self, mark: int, locks: LockHashes) -> None:
        """Lock hashes, and the client's high-water mark they are checked against."""
        self.mark = mark
        self.locks = locks
        self.size_bytes += _LOCK_BYTES * sum(map(len, locks))

    def fail(self, error: WaltzError) -> None:
        """This append ends here, unless it has ended."""
        if self.run is not None:
            self.run.fail(error)
        elif not self.future.done():
            self.future.set_exception(error)


class ManyAppend(Append):
    """n records that share a future. The IO thread alone touches ``ids`` and ``missing``."""

    __slots__ = ("checksums", "count", "headers", "ids", "lengths", "missing", "offsets")

    def __init__(self, data: bytes, headers: Int32s, checksums: UInt32s, lengths: Int32s) -> None:
        super().__init__(data, 0, 0)
        self.headers = headers
        self.checksums = checksums
        self.lengths = lengths
        self.offsets: Int64s = offsets_of(lengths)
        self.count = len(lengths)
        self.missing = self.count  # records that are not known to be in the log
        self.ids: Int64s = np.full(self.count, NO_TRANSACTION, dtype=np.int64)

    def committed(self, start: int, transaction_ids: Int64s) -> bool:
        """Records from ``start`` on are in the log; True when all are, so that ``future`` may have its result."""
        if self.future.done():
            return False  # another part of it has already ended in an error
        self.missing -= len(transaction_ids)
        self.ids[start : start + len(transaction_ids)] = transaction_ids
        return not self.missing

    def fail(self, error: WaltzError) -> None:
        """This append ends here, unless it has ended. What of it is in the log is said."""
        if self.missing < self.count:
            known = self.ids[self.ids != NO_TRANSACTION]
            error = AppendFailed(
                f"{len(known)} of {self.count} records are in the log "
                f"(transactions {int(known[0])} to {int(known[-1])}), the others are not known to be: {error}"
            )
        super().fail(error)


class Slice(NamedTuple):
    """Records [start, end) of a ManyAppend: what one batch takes of it."""

    append: ManyAppend
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Its part of a frame, at the most."""
        offsets = self.append.offsets
        return int(offsets[self.end] - offsets[self.start]) + _RECORD_BYTES * (self.end - self.start)

    def cut(self, records: int, size_bytes: int) -> Slice:
        """The first part of this slice that fits, at least one record."""
        offsets = self.append.offsets
        sizes = offsets[self.start + 1 : self.end + 1] - offsets[self.start]
        sizes = sizes + _RECORD_BYTES * np.arange(1, len(sizes) + 1)
        fitting = int(np.searchsorted(sizes, size_bytes, side="right"))
        return self._replace(end=self.start + max(1, min(len(sizes), records, fitting)))


class Part(NamedTuple):
    """Records [start, start + size) of ``append``. ``offset``: where the first of them stands in a fate's arrays."""

    append: Append
    start: int
    size: int  # in records
    offset: int

    @property
    def entry(self) -> Append | Slice:
        """To be sent again."""
        append = self.append
        return Slice(append, self.start, self.start + self.size) if isinstance(append, ManyAppend) else append


class Batch:
    """What goes into one frame, in order: an ``Append`` whole, of a ``ManyAppend`` a slice."""

    __slots__ = ("count", "entries", "plain")

    def __init__(self, entries: list[Append | Slice], count: int, plain: bool) -> None:
        self.entries = entries
        self.count = count
        """Records."""
        self.plain = plain
        """There is no slice among the entries, so a record's position is its entry's."""

    def parts(self, start: int, size: int, offset: int) -> Iterator[Part]:
        """The appends that records [start, start + size) of this batch belong to."""
        if self.plain:
            for position, one in enumerate(self.entries[start : start + size]):
                assert isinstance(one, Append)
                yield Part(one, 0, 1, offset + position)
            return
        begin, end = 0, start + size
        for entry in self.entries:
            append, first, last = entry if isinstance(entry, Slice) else (entry, 0, 1)
            taken_from, taken_to = max(begin, start), min(begin + last - first, end)
            if taken_from < taken_to:
                yield Part(append, first + taken_from - begin, taken_to - taken_from, offset + taken_from - start)
            begin += last - first

    def encode(self, address: tuple[int, int, int], first_sequence: int) -> list[BytesLike]:
        """An APPEND_BATCH payload in parts; ``address`` = (client ID, generation, partition ID)."""
        first = (first_sequence + _INT32_END) % (2 * _INT32_END) - _INT32_END  # the low 32 bits
        if not self.plain or first + self.count > _INT32_END:
            return encode_client(BATCH_VERSION, self._columns(address, first_sequence))
        entries: list[Append] = self.entries  # type: ignore[assignment]
        datas = [one.data for one in entries]
        head = append_head(
            address,
            range(first, first + self.count),
            [one.mark for one in entries],
            ([one.header for one in entries], [*map(len, datas)], [one.checksum for one in entries]),
            [one.locks or _NO_HASHES for one in entries] if any(one.locks for one in entries) else None,
        )
        return [head, *datas]

    def _columns(self, address: tuple[int, int, int], first_sequence: int) -> AppendBatch:
        columns = [_columns_of(entry) for entry in self.entries]
        headers, lengths, checksums, marks = (
            np.concatenate(column) for column in zip(*(one[:4] for one in columns), strict=True)
        )
        bodies: list[bytes | memoryview] = [one[4] for one in columns]
        locks: list[LockColumns] = []
        if any(isinstance(one, Append) and one.locks for one in self.entries):
            locks = [
                LockColumns.pack([*chain.from_iterable(_locks_of(e, kind) for e in self.entries)]) for kind in range(3)
            ]
        return AppendBatch(
            *address,
            np.arange(first_sequence, first_sequence + self.count).astype(np.int32),  # the low 32 bits
            marks,
            headers,
            lengths,
            checksums,
            bodies[0] if len(bodies) == 1 else b"".join(bodies),
            *locks,
        )


def _columns_of(entry: Append | Slice) -> tuple[Int32s, Int32s, UInt32s, Int64s, bytes | memoryview]:
    """Headers, lengths, checksums, marks and body."""
    if isinstance(entry, Append):
        return (
            np.array([entry.header], dtype=np.int32),
            np.array([len(entry.data)], dtype=np.int32),
            np.array([entry.checksum], dtype=np.uint32),
            np.array([entry.mark], dtype=np.int64),
            entry.data,
        )
    append, start, end = entry
    return (
        append.headers[start:end],
        append.lengths[start:end],
        append.checksums[start:end],
        np.full(end - start, NO_TRANSACTION, dtype=np.int64),
        memoryview(append.data)[int(append.offsets[start]) : int(append.offsets[end])],
    )


def _locks_of(entry: Append | Slice, kind: int) -> list[list[int]]:
    """One list of hashes for each record."""
    if isinstance(entry, Slice):
        return [[]] * (entry.end - entry.start)
    return [list(entry.locks[kind])] if entry.locks else [[]]


def check_size(partition_id: int, size: int, locks: int, max_frame_bytes: int) -> None:
    """InvalidInput for a record that no frame could carry."""
    if size + _LOCK_BYTES * locks + _RECORD_BYTES + _FRAME_BYTES > max_frame_bytes:
        raise InvalidInput(
            f"partition {partition_id}: a record of {size} bytes does not fit in a frame of {max_frame_bytes} bytes "
            f"(ClientConfig.max_frame_bytes); split it or store it elsewhere and append its address"
        )
