"""What a scrub checks next, how fast, and what has come of it. Pure: it is told the time and what was read.

A *pass* checks every closed segment that there is when it begins, partition by partition. What is closed meanwhile is
the next pass's. Passes begin ``interval_s`` after each other, or at once if the last one took longer.

What was damaged when the replica ended is checked first of all, and counts for no pass: it is only known again when it
has been read, and till then nothing says that there is a copy less."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

__all__ = ["MOST_DAMAGED", "ScrubPlan", "ScrubProgress", "ScrubRecord", "ScrubTarget"]

MOST_DAMAGED = 256
"""So many damaged segments are kept for the next start; of a disk that has more, these are enough to say so."""


@dataclass(frozen=True)
class ScrubTarget:
    """The closed segment of a partition that has the records [first_id, end_id), in ``size_bytes`` with its index."""

    partition_id: int
    first_id: int
    end_id: int
    size_bytes: int


@dataclass(frozen=True)
class ScrubProgress:
    """``done_bytes`` of ``total_bytes`` of the running pass, or of the last one. Times are Unix milliseconds, None =
    never.

    ``last_pass_ms``: when the last full pass ended. ``found``, ``repaired``: damages since the replica started.
    """

    done_bytes: int = 0
    total_bytes: int = 0
    began_ms: int | None = None
    last_pass_ms: int | None = None
    found: int = 0
    repaired: int = 0


class ScrubRecord(NamedTuple):
    """What the next start goes on with: when the pass began, when the last full one ended (Unix milliseconds, None =
    never), and the segment to be checked next; both None: the pass is over. ``damaged``: segments, as (partition, first
    ID), of which that was known."""

    began_ms: int
    last_pass_ms: int | None
    partition_id: int | None
    first_id: int | None
    damaged: tuple[tuple[int, int], ...] = ()


class ScrubPlan:
    """Ask ``pause_s`` how long to wait, then ``begin`` or check ``current``, and tell what was done."""

    def __init__(self, bytes_per_s: int, interval_s: float) -> None:
        """``bytes_per_s``: 0 = as fast as may be."""
        self._bytes_per_s, self._interval_s = bytes_per_s, interval_s
        self._waiting: deque[ScrubTarget] = deque()
        self._free_s = self._next_pass_s = 0.0
        self._checked_bytes = 0  # of the targets before the current one
        self._in_pass = False
        self._known: set[tuple[int, int]] = set()
        self._from = (-1, -1)  # where the pass goes on that a start has interrupted
        self._interrupted_ms: int | None = None  # when that began
        self._suspects: deque[ScrubTarget] = deque()
        self.damaged_before: tuple[tuple[int, int], ...] = ()
        """By the record of the last start: for ``suspect``."""
        self.progress = ScrubProgress()

    def go_on(self, now_s: float, now_ms: int, record: ScrubRecord) -> None:
        """Before anything else: the replica was started anew. A record of the future is not believed."""
        self.damaged_before = record.damaged
        if record.began_ms > now_ms:
            return
        self.progress = ScrubProgress(began_ms=record.began_ms, last_pass_ms=record.last_pass_ms)
        if record.partition_id is not None and record.first_id is not None:
            self._from, self._interrupted_ms = (record.partition_id, record.first_id), record.began_ms
        else:
            self._next_pass_s = now_s + self._interval_s - (now_ms - record.began_ms) / 1000

    def record(self) -> ScrubRecord | None:
        """What is to be kept of this; None before the first pass."""
        progress = self.progress
        if progress.began_ms is None:
            return None
        place: tuple[int | None, int | None] = (None, None)
        if self._waiting:
            place = self._waiting[0].partition_id, self._waiting[0].first_id
        elif self._interrupted_ms is not None:
            place = self._from
        suspected = {*self.damaged_before, *((each.partition_id, each.first_id) for each in self._suspects)}
        damaged = tuple(sorted(self._known | suspected))
        return ScrubRecord(progress.began_ms, progress.last_pass_ms, *place, damaged[:MOST_DAMAGED])

    @property
    def current(self) -> ScrubTarget | None:
        """What is to be checked, or went on with; None between two passes."""
        return self._suspects[0] if self._suspects else self._waiting[0] if self._waiting else None

    def suspect(self, targets: Sequence[ScrubTarget]) -> None:
        """Those of ``damaged_before`` that are there still: they are checked now."""
        self._suspects.extend(targets)
        self.damaged_before = ()

    def wait_for_pass_s(self, now_s: float) -> float:
        """For how long no pass is to begin; 0 while one is running."""
        return 0.0 if self._in_pass else max(0.0, self._next_pass_s - now_s)

    def begin(self, now_s: float, now_ms: int, targets: Sequence[ScrubTarget]) -> None:
        """A pass over ``targets``, in their order; or the rest of one that was interrupted."""
        left = [target for target in targets if (target.partition_id, target.first_id) >= self._from]
        total_bytes = sum(target.size_bytes for target in targets)
        self._waiting, self._in_pass = deque(left), True
        self._checked_bytes = total_bytes - sum(target.size_bytes for target in left)
        began_ms = now_ms if self._interrupted_ms is None else self._interrupted_ms
        self._next_pass_s = now_s + self._interval_s - (now_ms - began_ms) / 1000
        self._from, self._interrupted_ms = (-1, -1), None
        done_bytes = self._checked_bytes
        self.progress = replace(self.progress, done_bytes=done_bytes, total_bytes=total_bytes, began_ms=began_ms)
        self._end_if_over(now_ms)

    def has_read(self, now_s: float, size_bytes: int) -> float:
        """So much was read; for how long to pause, so that the rate holds over any time."""
        if not self._bytes_per_s:
            return 0.0
        self._free_s = max(self._free_s, now_s) + size_bytes / self._bytes_per_s
        return self._free_s - now_s

    def has_checked(self, size_bytes: int) -> None:
        """So much of the current target has been checked."""
        if self._suspects:
            return
        target = self._waiting[0]
        done = self.progress.done_bytes + size_bytes
        self.progress = replace(self.progress, done_bytes=min(done, self._checked_bytes + target.size_bytes))

    def done(self, now_ms: int) -> None:
        """The current target is checked, or is not there any more."""
        if self._suspects:
            self._suspects.popleft()
            return
        self._checked_bytes += self._waiting.popleft().size_bytes
        self.progress = replace(self.progress, done_bytes=self._checked_bytes)
        self._end_if_over(now_ms)

    def found(self, partition_id: int, first_id: int) -> None:
        """This segment is damaged. Told again, it is the same damage until it is repaired."""
        if (partition_id, first_id) not in self._known:
            self._known.add((partition_id, first_id))
            self.progress = replace(self.progress, found=self.progress.found + 1)

    def repaired(self, partition_id: int, first_id: int) -> None:
        """It is whole again."""
        self.found(partition_id, first_id)
        self._known.discard((partition_id, first_id))
        self.progress = replace(self.progress, repaired=self.progress.repaired + 1)

    def _end_if_over(self, now_ms: int) -> None:
        if not self._waiting:
            self._in_pass = False
            self.progress = replace(self.progress, last_pass_ms=now_ms)
