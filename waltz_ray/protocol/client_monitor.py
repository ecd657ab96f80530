"""The client's transaction monitor: which appends of one partition are still without a fate.

Rule 1: every registered append leaves the monitor exactly once, as committed, failed (known not to be in the
log) or lock-failed. There is no other way out and no way back in; a new attempt is a new registration.

What decides a fate (docs/wire.md, "Rules"):

=====================================  ==========================================================================
fact                                   fate
=====================================  ==========================================================================
own entry with sequence number s       s is committed; every older pending one is failed: the server takes a
                                       client's appends of a partition in order, so it can never be in the log
LOCK_FAILURE_BATCH                     those are lock-failed; others are not touched
REJECTED                               those are failed: they were never admitted
MOUNTED(READY)                         everything pending is failed: the feed has passed all that was admitted
connection lost, NOT_READY             none; open until the next MOUNTED(READY)
=====================================  ==========================================================================

Pending appends are kept as *spans* of consecutive sequence numbers, so a packed append of n records costs the
same as one record. Facts about sequence numbers that are no longer pending are ignored: a feed that is read
again after a reconnect repeats them.

Sequence numbers are 64-bit here and their low 32 bits go over the wire; ``expand`` takes the one nearest to the
next number, so a client may append for ever.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Generic, TypeVar

import numpy as np
from typing_extensions import NamedTuple  # a generic one: of the standard library only from Python 3.11 on

from waltz_ray.protocol.ids import NO_TRANSACTION
from waltz_ray.protocol.records import Int32s, Int64s

__all__ = ["ClientMonitor", "Piece"]

Token = TypeVar("Token")

_FEW = 12  # sequence numbers that are sooner looked at one by one than as a column
_HALF = 1 << 31
_LOW_BITS = (1 << 32) - 1


class Piece(NamedTuple, Generic[Token]):
    """Records [start, start + size) of the append ``token`` got one fate.

    ``offset`` is the position of the first of them in the arrays that told the fate; 0 where there are none.
    """

    token: Token
    start: int
    size: int  # in records
    offset: int


class ClientMonitor(Generic[Token]):
    """Pending appends of one client in one partition; at most ``max_pending`` records.

    ``Token`` is whatever the caller wants back: its own object for the append.
    """

    def __init__(self, max_pending: int) -> None:
        self._max_pending = max_pending
        self._pending = 0
        self.next_number = 0
        """The sequence number of the record that is registered next."""
        # Parallel, ascending: first sequence number of a span, and (token, start, count) of that span.
        self._firsts: list[int] = []
        self._spans: list[tuple[Token, int, int]] = []
        self._server_mark = NO_TRANSACTION
        self._resume_mark = NO_TRANSACTION

    @property
    def pending(self) -> int:
        """Records without a fate."""
        return self._pending

    @property
    def room(self) -> int:
        """Records that may be registered now."""
        return self._max_pending - self._pending

    @property
    def server_mark(self) -> int:
        """The highest server high-water mark heard of, -1 = none."""
        return self._server_mark

    @property
    def resume_mark(self) -> int:
        """Every pending append, if it is in the log, has a higher transaction ID than this.

        A client that is fed nothing but its own entries mounts with it.
        """
        return self._resume_mark

    def register(self, token: Token, start: int, count: int) -> int:
        """Records [start, start + count) of ``token`` are about to be sent; their first sequence number."""
        assert 0 < count <= self.room, f"{count} records for room of {self.room}"
        if not self._pending:
            # What has not been sent yet gets an ID above every mark heard of so far.
            self._resume_mark = max(self._resume_mark, self._server_mark)
        first = self.next_number
        self._firsts.append(first)
        self._spans.append((token, start, count))
        self.next_number += count
        self._pending += count
        return first

    def leave_out_a_number(self) -> None:
        """So the server sees that what is registered next was not sent unaware of what it has refused before."""
        self.next_number += 1

    def expand(self, wire: Int32s) -> Int64s:
        """64-bit sequence numbers from those on the wire."""
        distance: Int64s = (wire.astype(np.int64) - self.next_number).astype(np.int32).astype(np.int64)
        return distance + self.next_number

    def mark_seen(self, high_water_mark: int) -> None:
        """The server told its high-water mark."""
        self._server_mark = max(self._server_mark, high_water_mark)

    def committed(
        self, wire: Int32s, transaction_ids: Int64s, gapless: bool = True
    ) -> tuple[list[Piece[Token]], list[Piece[Token]]]:
        """Own entries in the order of the log: (committed pieces, failed pieces).

        ``wire`` and ``transaction_ids`` are parallel and rise; a committed piece's offset points into them.
        ``gapless``: all own entries before these have been told. If not, nothing follows for others than these.
        """
        done: list[Piece[Token]] = []
        failed: list[Piece[Token]] = []
        for first, end, offset in self._runs(wire):
            if gapless:
                failed += self.fail_before(first)
            done += self._take(first, end, offset)
        if len(transaction_ids):
            last = int(transaction_ids[-1])
            if gapless:
                self._resume_mark = max(self._resume_mark, last)
            self.mark_seen(last)
        return done, failed

    def lock_failed(self, wire: Int32s) -> list[Piece[Token]]:
        """A lock refused these; offsets point into ``wire``."""
        return self._taken_runs(wire)

    def rejected(self, wire: Int32s) -> list[Piece[Token]]:
        """The server never admitted these; offsets point into ``wire``."""
        return self._taken_runs(wire)

    def mounted_ready(self, high_water_mark: int) -> list[Piece[Token]]:
        """The feed has passed everything sent before this mount: what is still pending is not in the log."""
        self.mark_seen(high_water_mark)
        return self.fail_before(self.next_number)

    def drain(self) -> list[Piece[Token]]:
        """Take everything out although its fate is open: the client is being closed."""
        return self.fail_before(self.next_number)

    def broken(self) -> str | None:
        """Which invariant does not hold; looks at every span."""
        end = count = 0
        for first, (_, start, size) in zip(self._firsts, self._spans, strict=True):
            if first < end or start < 0 or size <= 0:
                return f"the span of {size} records from sequence number {first} on follows one that ends before {end}"
            end, count = first + size, count + size
        if count != self._pending or count > self._max_pending:
            return f"{self._pending} records of {self._max_pending} are pending, the spans have {count}"
        if end > self.next_number:
            return f"sequence number {end - 1} is pending, the next one is {self.next_number}"
        return None

    def fail_before(self, end: int) -> list[Piece[Token]]:
        """Take out what is pending below ``end``: it is not in the log, nor will it be."""
        if not self._firsts or self._firsts[0] >= end:
            return []  # nearly always
        return [piece._replace(offset=0) for piece in self._take(0, end, 0)]

    def _runs(self, wire: Int32s) -> list[tuple[int, int, int]]:
        """(first, end, position of first) of every stretch of consecutive numbers, expanded."""
        if len(wire) > _FEW:
            return _runs(self.expand(wire))
        runs: list[tuple[int, int, int]] = []
        nearest = self.next_number - _HALF
        first = end = start = 0
        for position, low in enumerate(wire.tolist()):
            number = ((low - nearest) & _LOW_BITS) + nearest
            if number != end or not position:
                if position:
                    runs.append((first, end, start))
                first, start = number, position
            end = number + 1
        return [*runs, (first, end, start)] if len(wire) else runs

    def _taken_runs(self, wire: Int32s) -> list[Piece[Token]]:
        taken: list[Piece[Token]] = []
        for first, end, offset in self._runs(wire):
            taken += self._take(first, end, offset)
        return taken

    def _take(self, first: int, end: int, origin: int) -> list[Piece[Token]]:
        """Remove the pending sequence numbers in [first, end); offset = origin + distance from ``first``."""
        firsts, spans = self._firsts, self._spans
        low = bisect_right(firsts, first) - 1
        if low < 0 or firsts[low] + spans[low][2] <= first:
            low += 1
        high = bisect_left(firsts, end)
        if low >= high:
            return []
        if high - low == 1 and firsts[low] == first:
            token, start, count = spans[low]
            if count == end - first:  # a whole span, nearly always
                del firsts[low], spans[low]
                self._pending -= count
                return [Piece(token, start, count, origin)]
        pieces: list[Piece[Token]] = []
        kept_firsts: list[int] = []
        kept_spans: list[tuple[Token, int, int]] = []
        for begin, (token, start, count) in zip(firsts[low:high], spans[low:high], strict=True):
            taken_from, taken_to = max(begin, first), min(begin + count, end)
            pieces.append(Piece(token, start + taken_from - begin, taken_to - taken_from, origin + taken_from - first))
            self._pending -= taken_to - taken_from
            if begin < taken_from:
                kept_firsts.append(begin)
                kept_spans.append((token, start, taken_from - begin))
            if taken_to < begin + count:
                kept_firsts.append(taken_to)
                kept_spans.append((token, start + taken_to - begin, begin + count - taken_to))
        firsts[low:high] = kept_firsts
        spans[low:high] = kept_spans
        return pieces


def _runs(numbers: Int64s) -> list[tuple[int, int, int]]:
    """(first, end, position of first) of every stretch of consecutive numbers."""
    if not len(numbers):
        return []
    breaks = (np.nonzero(np.diff(numbers) != 1)[0] + 1).tolist()
    starts = [0, *breaks]
    ends = [*breaks, len(numbers)]
    return [(int(numbers[a]), int(numbers[b - 1]) + 1, a) for a, b in zip(starts, ends, strict=True)]
