"""What a cursor's owner may count as done, when that is to be written, and where a cursor may begin. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from waltz_ray.client.bounds import Bound, FeedPlan, Partitions
from waltz_ray.errors import InvalidInput, Trimmed

__all__ = ["WRITE_EVERY_S", "CursorCall", "CursorProgress", "cursor_starts", "first_trimmed"]

WRITE_EVERY_S = 1.0
"""What a cursor has done is written so often at the most, but for ``commit`` and the end."""


@dataclass(frozen=True)
class CursorCall:
    """What ``client.cursor`` was asked for."""

    name: str
    partitions: Partitions
    start: Bound
    hold: bool | None
    auto_commit: bool

    def __post_init__(self) -> None:
        """InvalidInput."""
        if self.hold is not None and not isinstance(self.hold, bool):
            raise InvalidInput(f"hold is True, False or None (as it was), not {self.hold!r:.60}")

    @property
    def moves_with_the_log(self) -> bool:
        """Whether its start is another one when more has been trimmed."""
        return isinstance(self.start, str | datetime)

    def plan(self, count: int) -> FeedPlan:
        """Of a space with ``count`` partitions. InvalidInput."""
        return FeedPlan.of(self.partitions, count, self.start, None)

    def check(self, there: Iterable[int], count: int) -> None:
        """InvalidInput if a cursor that is there is about other partitions."""
        has, wanted = sorted(there), list(self.plan(count).partitions)
        if self.partitions is not None and has != wanted:
            raise InvalidInput(
                f"cursor {self.name!r} is about the partitions {_listed(has)}, not {_listed(wanted)}: "
                f"leave partitions= out, or take another name"
            )


class CursorProgress:
    """What of a cursor was given out, what of that is done, and what of that is written. Positions are next IDs.

    What was given out is done when the application asks for more, or says so (``finish``).
    """

    def __init__(self, positions: Mapping[int, int]) -> None:
        self._done = dict(positions)
        self._given: dict[int, int] = {}  # and not done
        self._unwritten: dict[int, int] = {}  # but done
        self._wrote_s = float("-inf")

    @property
    def positions(self) -> dict[int, int]:
        """Up to where it is done."""
        return dict(self._done)

    def give(self, partition_id: int, transaction_id: int) -> None:
        """That transaction, and what is before it, was given out."""
        self._given[partition_id] = transaction_id + 1

    def finish(self) -> None:
        """All that was given out is done."""
        if self._given:  # of one partition, if it is asked for transactions one by one
            self._done.update(self._given)
            self._unwritten.update(self._given)
            self._given.clear()

    @property
    def unwritten(self) -> dict[int, int]:
        """What is done and not written, by partition."""
        return dict(self._unwritten)

    def due_s(self, now_s: float) -> float | None:
        """In how many seconds something is to be written; None: there is nothing."""
        return max(0.0, self._wrote_s + WRITE_EVERY_S - now_s) if self._unwritten else None

    def tried(self, now_s: float) -> None:
        """It is being written: not again so soon, whatever comes of it."""
        self._wrote_s = now_s

    def wrote(self, positions: Mapping[int, int], now_s: float) -> None:
        """They are written; more may have been done meanwhile."""
        left = {p: position for p, position in self._unwritten.items() if positions.get(p) != position}
        self._unwritten, self._wrote_s = left, now_s


def cursor_starts(
    plan: FeedPlan, moves_with_the_log: bool, marks: Mapping[int, int], first_ids: Mapping[int, int]
) -> dict[int, int]:
    """Where a cursor begins: partition -> next ID, given the servers' marks and the first IDs that were not trimmed.

    A start that ``moves_with_the_log``, or is a time, begins where there is something. Trimmed for an ID below that;
    InvalidInput for one that is above the next to come: a cursor is never ahead of what is committed.
    """
    starts = plan.first_ids(marks)
    for p, position in starts.items():
        if position > marks[p] + 1:
            raise InvalidInput(f"partition {p}: a cursor stands at {marks[p] + 1} at the most just now, not {position}")
    if moves_with_the_log:
        return {p: max(position, first_ids[p]) for p, position in starts.items()}
    if (trimmed := first_trimmed(starts, first_ids)) is not None:
        raise trimmed
    return starts


def first_trimmed(positions: Mapping[int, int], first_ids: Mapping[int, int]) -> Trimmed | None:
    """The error for a cursor of which a position was trimmed away; None if nothing was."""
    for p, position in sorted(positions.items()):
        if position < first_ids[p]:
            return Trimmed(p, position, first_ids[p])
    return None


def _listed(partitions: Sequence[int]) -> str:
    return ", ".join(map(str, partitions[:8])) + (", ..." if len(partitions) > 8 else "")
