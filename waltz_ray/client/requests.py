"""Appends on their way: one ``Append`` per call of the application, packed into batches when they are sent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from waltz_ray.errors import AppendFailed, InvalidInput, WaltzError
from waltz_ray.protocol.ids import NO_TRANSACTION
from waltz_ray.protocol.records import AppendBatch, Int32s, Int64s, LockColumns, UInt32s, offsets_of

if TYPE_CHECKING:
    from waltz_ray.client.contexts import ContextRun

__all__ = ["Append", "LockHashes", "Slice", "check_size", "pack"]

_FRAME_BYTES = 256  # what a frame needs beside its records, with room to spare
_RECORD_BYTES = 32  # what a record needs beside its data and its locks
_LOCK_BYTES = 12

LockHashes = tuple[Sequence[int], Sequence[int], Sequence[int]]  # of write, read and append locks

_NO_HASHES: tuple[int, ...] = ()


class Append:
    """n proposed records that share a future (n = 1 but for ``append_many``).

    ``run`` is the transaction context this is one attempt of; then ``future`` is not used.
    The IO thread alone touches ``ids`` and ``missing``.
    """

    __slots__ = (
        "checksums",
        "count",
        "data",
        "future",
        "headers",
        "ids",
        "lengths",
        "lock_bytes",
        "locks",
        "mark",
        "missing",
        "offsets",
        "retry",
        "run",
        "since",
        "size",
    )

    def __init__(
        self,
        data: bytes,
        headers: int | Int32s,
        checksums: int | UInt32s,
        lengths: Int32s | None = None,
        run: ContextRun | None = None,
    ) -> None:
        self.data = data
        self.headers = headers
        self.checksums = checksums
        self.lengths = lengths
        self.offsets: Int64s | None = None if lengths is None else offsets_of(lengths)
        self.count = 1 if lengths is None else len(lengths)
        self.size = len(data)
        self.mark = NO_TRANSACTION
        self.locks: LockHashes | None = None
        self.lock_bytes = 0
        self.retry = True
        self.run = run
        self.since = time.monotonic()  # when it began to wait for being sent
        self.missing = self.count  # records that are not known to be in the log
        self.ids: Int64s | None = None if lengths is None else np.full(self.count, NO_TRANSACTION, dtype=np.int64)
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()  # an append cannot be called back, so neither can its future

    def take_locks(self, mark: int, locks: LockHashes) -> None:
        """Lock hashes, and the client's high-water mark they are checked against."""
        self.mark = mark
        self.locks = locks
        self.lock_bytes = _LOCK_BYTES * sum(map(len, locks))

    def committed(self, start: int, transaction_ids: Int64s) -> bool:
        """Records from ``start`` on are in the log; True when all are, and the future has its result."""
        if self.future.done():
            return False  # another part of it has already ended in an error
        self.missing -= len(transaction_ids)
        if self.ids is not None:
            self.ids[start : start + len(transaction_ids)] = transaction_ids
        if self.missing:
            return False
        if self.run is None:
            self.future.set_result(int(transaction_ids[0]) if self.ids is None else self.ids)
        return True

    def fail(self, error: WaltzError) -> None:
        """This append ends here, unless it has ended. What of an ``append_many`` is in the log is said."""
        if self.future.done():
            return
        if self.ids is not None and self.missing < self.count:
            known = self.ids[self.ids != NO_TRANSACTION]
            error = AppendFailed(
                f"{len(known)} of {self.count} records are in the log "
                f"(transactions {int(known[0])} to {int(known[-1])}), the others are not known to be: {error}"
            )
        if self.run is not None:
            self.run.fail(error)
        else:
            self.future.set_exception(error)


class Slice(NamedTuple):
    """Records [start, end) of an append: what one batch takes of it."""

    append: Append
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Its part of a frame, at the most."""
        append = self.append
        if append.offsets is None:
            return append.size + _RECORD_BYTES + append.lock_bytes
        return int(append.offsets[self.end] - append.offsets[self.start]) + _RECORD_BYTES * (self.end - self.start)

    def cut(self, records: int, size_bytes: int) -> Slice:
        """The first part of this slice that fits, at least one record."""
        offsets = self.append.offsets
        if offsets is None:
            return self
        sizes = offsets[self.start + 1 : self.end + 1] - offsets[self.start]
        sizes = sizes + _RECORD_BYTES * np.arange(1, len(sizes) + 1)
        fitting = int(np.searchsorted(sizes, size_bytes, side="right"))
        return self._replace(end=self.start + max(1, min(len(sizes), records, fitting)))


def check_size(partition_id: int, size: int, locks: int, max_frame_bytes: int) -> None:
    """InvalidInput for a record that no frame could carry."""
    if size + _LOCK_BYTES * locks + _RECORD_BYTES + _FRAME_BYTES > max_frame_bytes:
        raise InvalidInput(
            f"partition {partition_id}: a record of {size} bytes does not fit in a frame of {max_frame_bytes} bytes "
            f"(ClientConfig.max_frame_bytes); split it or store it elsewhere and append its address"
        )


def pack(client_id: int, generation: int, partition_id: int, first_sequence: int, slices: list[Slice]) -> AppendBatch:
    """One batch of all slices, in order; sequence numbers from ``first_sequence``."""
    if all(one.append.lengths is None for one in slices):
        appends = [one.append for one in slices]
        headers = np.array([a.headers for a in appends], dtype=np.int32)
        checksums = np.array([a.checksums for a in appends], dtype=np.uint32)
        lengths = np.array([a.size for a in appends], dtype=np.int32)
    else:
        headers = np.concatenate([_column(one, one.append.headers) for one in slices]).astype(np.int32)
        checksums = np.concatenate([_column(one, one.append.checksums) for one in slices]).astype(np.uint32)
        lengths = np.concatenate([_column(one, one.append.lengths) for one in slices]).astype(np.int32)
    count = len(lengths)
    sequence_numbers = np.arange(first_sequence, first_sequence + count).astype(np.int32)  # the low 32 bits
    columns: list[LockColumns] = [LockColumns()] * 3
    marks = np.full(count, NO_TRANSACTION, dtype=np.int64)
    if any(one.append.locks for one in slices):
        columns, marks = _locks(slices)
    body = _body(slices)
    return AppendBatch(
        client_id, generation, partition_id, sequence_numbers, marks, headers, lengths, checksums, body, *columns
    )


def _column(one: Slice, column: Any) -> Any:
    if one.append.lengths is None:
        return np.array([one.append.size if column is None else column], dtype=np.int64)
    return column[one.start : one.end]


def _body(slices: list[Slice]) -> bytes:
    parts: list[bytes | memoryview] = []
    for append, start, end in slices:
        if append.offsets is None or end - start == append.count:
            parts.append(append.data)
        else:
            parts.append(memoryview(append.data)[int(append.offsets[start]) : int(append.offsets[end])])
    return parts[0] if len(parts) == 1 and isinstance(parts[0], bytes) else b"".join(parts)


def _locks(slices: list[Slice]) -> tuple[list[LockColumns], Int64s]:
    kinds: tuple[list[list[int]], list[list[int]], list[list[int]]] = ([], [], [])
    marks: list[int] = []
    for append, start, end in slices:
        for kind, hashes in zip(kinds, append.locks or (_NO_HASHES,) * 3, strict=True):
            kind += [list(hashes)] * (end - start)
        marks += [append.mark] * (end - start)
    columns = [LockColumns.pack(kind) if any(kind) else LockColumns() for kind in kinds]
    return columns, np.array(marks, dtype=np.int64)
