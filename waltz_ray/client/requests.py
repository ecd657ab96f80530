"""Appends on their way: one ``Append`` or ``ManyAppend`` per call of the application, gathered into batches.

What a batch takes of an append, and what gets a fate of it, is a ``Piece``: records [start, start + size). A plain
append has one record and stands for its only piece where it waits to be sent: no object is made for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from waltz_ray.client.futures import Fate, LightFuture
from waltz_ray.errors import AccessRefused, AppendFailed, InvalidInput, LockConflict, PartlyAppended, WaltzError
from waltz_ray.protocol.client_monitor import Piece
from waltz_ray.protocol.ids import NO_TRANSACTION
from waltz_ray.protocol.records import MOST_LOCKS, AppendBatch, Int32s, Int64s, LockColumns, UInt32s, offsets_of
from waltz_ray.wire.append_writer import append_head
from waltz_ray.wire.codec import BATCH_VERSION, encode_client
from waltz_ray.wire.primitives import BytesLike

if TYPE_CHECKING:
    from waltz_ray.client.contexts import ContextRun

__all__ = [
    "AppendCall",
    "Sending",
    "LockHashes",
    "ManyAppend",
    "Unsent",
    "check_size",
    "longest_record_bytes",
    "unsent",
]

_FRAME_BYTES = 256  # what a frame needs beside its records, with room to spare
_RECORD_BYTES = 32  # what a record needs beside its data and its locks
_LOCK_BYTES = 12
_INT32_END = 1 << 31

LockHashes = tuple[Sequence[int], Sequence[int], Sequence[int]]  # of write, read and append locks

_NO_HASHES: LockHashes = ((), (), ())


class AppendCall:
    """One proposed record and its future.

    ``run`` is the transaction context this is one attempt of; then ``future`` is not used.
    """

    __slots__ = (
        "checksum",
        "data",
        "future",
        "header",
        "locks",
        "mark",
        "number",
        "retry",
        "run",
        "since",
        "size_bytes",
    )

    count: int = 1
    """Records."""

    def __init__(
        self,
        data: bytes,
        header: int,
        checksum: int,
        retry: bool = True,
        run: ContextRun | None = None,
        future: Fate[Any] | None = None,
    ) -> None:
        self.data = data
        self.header = header
        self.checksum = checksum
        self.size_bytes = len(data) + _RECORD_BYTES  # of a frame, at the most
        self.mark = NO_TRANSACTION
        self.locks: LockHashes | None = None
        self.retry = retry
        self.run = run
        self.number = 0  # that it was taken as; the outbox says
        self.since = 0.0  # when it began to wait for being sent; the outbox says
        self.future: Fate[Any] = LightFuture() if future is None else future

    def take_locks(self, mark: int, locks: LockHashes) -> None:
        """Lock hashes, and the client's high-water mark they are checked against."""
        self.mark = mark
        self.locks = locks
        self.size_bytes += _LOCK_BYTES * sum(map(len, locks))

    def fail(self, error: WaltzError) -> None:
        """End this append with ``error``, unless it has ended."""
        if self.run is not None:
            self.run.fail(error)
        elif not self.future.done():
            self.future.set_exception(self.error_of(error))

    def error_of(self, error: WaltzError) -> WaltzError:
        """What ``error`` is to who made this append."""
        return error


class ManyAppend(AppendCall):
    """n records that share a future. The client's loop alone touches ``ids``, ``missing`` and ``dropped``.

    Locks are taken by each record: the first against ``mark``, each of the others against the ID that the one before it
    has if all of them follow ``mark`` directly.
    """

    __slots__ = ("checksums", "count", "divided", "dropped", "headers", "ids", "lengths", "missing", "offsets")

    def __init__(
        self, data: bytes, headers: Int32s, checksums: UInt32s, lengths: Int32s, future: Fate[Any] | None = None
    ) -> None:
        super().__init__(data, 0, 0, future=future)
        self.headers = headers
        self.checksums = checksums
        self.lengths = lengths
        self.offsets: Int64s = offsets_of(lengths)
        self.count = len(lengths)
        self.missing = self.count  # records that are not known to be in the log
        self.dropped = 0  # of those, records that have not been sent and never will be
        self.divided = False  # parts of it have fates of their own: one may commit though another was refused
        self.ids: Int64s = np.full(self.count, NO_TRANSACTION, dtype=np.int64)

    def committed(self, start: int, transaction_ids: Int64s) -> bool:
        """Records from ``start`` on are in the log; True when all that were sent are, so that ``end`` may follow."""
        if self.future.done():
            return False  # another part of it has already ended in an error
        self.missing -= len(transaction_ids)
        self.ids[start : start + len(transaction_ids)] = transaction_ids
        return self.missing == self.dropped

    def end(self) -> None:
        """All that were sent are in the log: tell it."""
        if self.missing:
            self.fail(AppendFailed("nobody waited for it any more, so the others were not sent"))
        else:
            self.future.set_result(self.ids)

    def size_of(self, start: int, size: int) -> int:
        """Bytes that records [start, start + size) need of a frame, at the most."""
        return int(self.offsets[start + size] - self.offsets[start]) + self._bytes_of_each * size

    def fitting(self, start: int, size: int, max_records: int, max_bytes: int) -> int:
        """How many of the records [start, start + size) fit, from the first on; at least one."""
        sizes = self.offsets[start + 1 : start + size + 1] - self.offsets[start]
        sizes = sizes + self._bytes_of_each * np.arange(1, size + 1)
        return max(1, min(size, max_records, int(np.searchsorted(sizes, max_bytes, side="right"))))

    @property
    def _bytes_of_each(self) -> int:
        """What a record needs beside its data."""
        return _RECORD_BYTES + _LOCK_BYTES * (sum(map(len, self.locks)) if self.locks else 0)

    def error_of(self, error: WaltzError) -> WaltzError:
        """Says how much of it is in the log, where that may be some of it."""
        certain = AccessRefused | AppendFailed | InvalidInput | LockConflict  # of those records that it is about
        if self.missing < self.count or (self.divided and isinstance(error, certain)):
            return PartlyAppended(tuple(self.ids.tolist()), str(error))
        return error


Unsent = AppendCall | Piece[ManyAppend]
"""A piece that waits to be sent: a plain append itself, some records of a ``ManyAppend``."""


def unsent(piece: Piece[AppendCall]) -> Unsent:
    """To be sent again."""
    append = piece.token
    return Piece(append, piece.start, piece.size, 0) if isinstance(append, ManyAppend) else append


class Sending:
    """What goes into one frame, in order."""

    __slots__ = ("count", "pieces", "plain")

    def __init__(self, pieces: list[Unsent], count: int, plain: bool) -> None:
        self.pieces = pieces
        self.count = count
        """Records."""
        self.plain = plain
        """All are plain appends, so a record's position is that of its append."""

    def pieces_of(self, start: int, size: int, offset: int) -> Iterator[Piece[AppendCall]]:
        """Whose the records [start, start + size) of this batch are; their offsets begin at ``offset``."""
        if self.plain:
            for position, one in enumerate(self.pieces[start : start + size]):
                assert isinstance(one, AppendCall)
                yield Piece(one, 0, 1, offset + position)
            return
        begin, end = 0, start + size
        for piece in self.pieces:
            append, first, count = piece[:3] if isinstance(piece, Piece) else (piece, 0, 1)
            taken_from, taken_to = max(begin, start), min(begin + count, end)
            if taken_from < taken_to:
                yield Piece(append, first + taken_from - begin, taken_to - taken_from, offset + taken_from - start)
            begin += count

    def encode(self, address: tuple[int, int, int], first_sequence: int) -> list[BytesLike]:
        """An APPEND_BATCH payload in parts; ``address`` = (client ID, generation, partition ID)."""
        first = (first_sequence + _INT32_END) % (2 * _INT32_END) - _INT32_END  # the low 32 bits
        if not self.plain or first + self.count > _INT32_END:
            return encode_client(BATCH_VERSION, self._columns(address, first_sequence))
        appends: list[AppendCall] = self.pieces  # type: ignore[assignment]
        datas = [one.data for one in appends]
        head = append_head(
            address,
            range(first, first + self.count),
            [one.mark for one in appends],
            ([one.header for one in appends], [*map(len, datas)], [one.checksum for one in appends]),
            [one.locks or _NO_HASHES for one in appends] if any(one.locks for one in appends) else None,
        )
        return [head, *datas]

    def _columns(self, address: tuple[int, int, int], first_sequence: int) -> AppendBatch:
        columns = [_columns_of(piece) for piece in self.pieces]
        headers, lengths, checksums, marks = (
            np.concatenate(column) for column in zip(*(one[:4] for one in columns), strict=True)
        )
        bodies: list[bytes | memoryview] = [one[4] for one in columns]
        locks: list[LockColumns] = []
        if any(_append_of(one).locks for one in self.pieces):
            locks = [
                LockColumns.pack([*chain.from_iterable(_locks_of(one, kind) for one in self.pieces)])
                for kind in range(3)
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


def _columns_of(piece: Unsent) -> tuple[Int32s, Int32s, UInt32s, Int64s, bytes | memoryview]:
    """Headers, lengths, checksums, marks and body."""
    if isinstance(piece, AppendCall):
        return (
            np.array([piece.header], dtype=np.int32),
            np.array([len(piece.data)], dtype=np.int32),
            np.array([piece.checksum], dtype=np.uint32),
            np.array([piece.mark], dtype=np.int64),
            piece.data,
        )
    append, start, size, _ = piece
    end = start + size
    return (
        append.headers[start:end],
        append.lengths[start:end],
        append.checksums[start:end],
        np.arange(append.mark + start, append.mark + end) if append.locks else np.full(size, NO_TRANSACTION),
        memoryview(append.data)[int(append.offsets[start]) : int(append.offsets[end])],
    )


def _locks_of(piece: Unsent, kind: int) -> list[list[int]]:
    """One list of hashes for each record."""
    locks, size = _append_of(piece).locks, 1 if isinstance(piece, AppendCall) else piece.size
    return [list(locks[kind]) if locks else []] * size


def _append_of(piece: Unsent) -> AppendCall:
    return piece if isinstance(piece, AppendCall) else piece.token


def longest_record_bytes(max_frame_bytes: int, locks: int = 0) -> int:
    """The longest data of a record with so many locks: a server takes half a frame (docs/wire.md, "Limits")."""
    return max_frame_bytes // 2 - _LOCK_BYTES * locks - _RECORD_BYTES - _FRAME_BYTES


def check_size(partition_id: int, size: int, locks: int, max_frame_bytes: int) -> None:
    """InvalidInput for a record that no server would take: it is not sent."""
    if locks > MOST_LOCKS:
        raise InvalidInput(f"partition {partition_id}: an append takes {MOST_LOCKS} locks at the most, not {locks}")
    longest = longest_record_bytes(max_frame_bytes, locks)
    if size > longest:
        raise InvalidInput(
            f"partition {partition_id}: a record of {size} bytes is longer than a log takes, {longest} bytes "
            f"(half of ClientConfig.max_frame_bytes); split it or store it elsewhere and append its address"
        )
