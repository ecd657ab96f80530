"""Where reads and feeds begin and end. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from numbers import Integral
from typing import Literal

from waltz_ray.client.application import checked_int
from waltz_ray.client.times import in_milliseconds
from waltz_ray.errors import InvalidInput, Trimmed

__all__ = [
    "Bound",
    "FeedPlan",
    "Partitions",
    "at_time",
    "begun_further_on",
    "check_partition",
    "checked_range",
    "chosen_partitions",
    "resolved",
]

Bound = Literal["earliest", "latest"] | int | datetime | Mapping[int, int]
"""Where a read starts or stops: the log's ends, one transaction ID for all partitions, or one for each; or a point in
time (with its time zone): the first transaction that may have been appended then or later."""

Partitions = int | Sequence[int] | None
"""One partition, several, or None = all."""


def check_partition(partition_id: int, count: int) -> int:
    """``partition_id`` if there is such a partition, else InvalidInput."""
    if type(partition_id) is not int:
        partition_id = checked_int("a partition ID", partition_id)
    if not 0 <= partition_id < count:
        raise InvalidInput(f"there is no partition {partition_id}; this space has {count}: 0 to {count - 1}")
    return partition_id


def chosen_partitions(partitions: Partitions, count: int) -> tuple[int, ...]:
    """In order, each once: of a space with ``count`` of them. InvalidInput."""
    if partitions is None:
        return tuple(range(count))
    several = partitions if isinstance(partitions, Iterable) else [partitions]
    return tuple(sorted({check_partition(partition, count) for partition in several}))


def checked_range(partition_id: int, first_id: int, end_id: int, count: int) -> tuple[int, int, int]:
    """What is to be read, of which partition of ``count``. InvalidInput if there is none, or no such ID can be."""
    partition_id = check_partition(partition_id, count)
    first_id, end_id = checked_int("first_id", first_id), checked_int("end_id", end_id)
    if first_id < 0:
        raise InvalidInput(f"transaction IDs begin at 0, not {first_id}")
    return partition_id, first_id, end_id


def begun_further_on(gone: Trimmed, earliest: bool) -> int:
    """The first ID of a read that found what it wanted to be ``gone``: only who wanted the ``earliest`` there is, and
    has had nothing yet, begins further on. Anybody else is told."""
    if not earliest or gone.first_id <= gone.wanted_id:
        raise gone
    return gone.first_id


def at_time(name: str, bound: Bound, partitions: Iterable[int], first_id_at: Callable[[int, int], int]) -> Bound:
    """``bound``, with the transaction ID of each partition in place of a time; ``first_id_at(partition, ms)`` asks."""
    if not isinstance(bound, datetime):
        return bound
    time_ms = in_milliseconds(name, bound)
    return {partition_id: first_id_at(partition_id, time_ms) for partition_id in partitions}


def resolved(name: str, bound: Bound, partition_id: int, mark: int, beginning: int = 0) -> int:
    """The transaction ID that ``bound``, which is no time, means for a partition that ends with transaction ``mark``.

    ``beginning``: of the first there is.
    InvalidInput for a negative ID, a partition missing from a mapping, or another word.
    """
    if bound == "earliest":
        return beginning
    if bound == "latest":
        return mark + 1
    if isinstance(bound, Mapping):
        if partition_id not in bound:
            raise InvalidInput(f"{name} names no transaction ID for partition {partition_id}; name one for each")
        bound = bound[partition_id]
    if isinstance(bound, bool) or not isinstance(bound, Integral) or not 0 <= bound < 1 << 63:
        raise InvalidInput(
            f"{name} must be 'earliest', 'latest', a transaction ID from 0 to 2^63 - 1 or a mapping of those, or a "
            f"datetime, not {bound!r:.60}"
        )
    return int(bound)


@dataclass(frozen=True)
class FeedPlan:
    """Which partitions ``client.feed`` is about, and where it begins in each."""

    partitions: tuple[int, ...]
    start: Bound
    last: int | None
    earliest: bool
    """It begins at the first transaction that is left, where those before it were trimmed away: no ID was given."""

    @classmethod
    def of(cls, partitions: Partitions, count: int, start: Bound, last: int | None) -> FeedPlan:
        """``partitions`` of ``count``. InvalidInput as early as can be."""
        if last is not None:
            last = checked_int("last", last)
            if last < 0:
                raise InvalidInput(f"last must be a number of transactions, at least 0, not {last}")
            if start != "earliest":
                raise InvalidInput("a feed begins at start= or with the last= transactions: give one of them")
        earliest = start == "earliest" or isinstance(start, datetime)
        plan = cls(chosen_partitions(partitions, count), start, last, earliest)
        if not plan.partitions:
            raise InvalidInput("a feed needs a partition; name one, several, or none at all for all of them")
        if plan.time_ms is None:
            plan.first_ids(dict.fromkeys(plan.partitions, 0))
        return plan

    @property
    def time_ms(self) -> int | None:
        """The point in time at which it begins. None if it is no time."""
        return in_milliseconds("start", self.start) if isinstance(self.start, datetime) else None

    def started_at(self, first_ids: Mapping[int, int]) -> FeedPlan:
        """The same with its point in time looked up."""
        return replace(self, start=first_ids)

    def asked_ms(self, follow: bool) -> int | None:
        """The time of which the servers have to be asked where it begins: then ``started_at`` has to be told the IDs.

        At 0 begins what there is; who follows is told that when it mounts.
        """
        if self.start == "earliest" and self.last is None and not follow:
            return 0
        return self.time_ms

    @property
    def needs_marks(self) -> bool:
        """It cannot be said without the servers' marks."""
        return self.last is not None or self.start == "latest"

    def first_ids(self, marks: Mapping[int, int]) -> dict[int, int]:
        """Partition -> ID of the first transaction, given the servers' high-water marks (any, unless they matter)."""
        if self.last is not None:
            return {p: max(0, marks[p] + 1 - self.last) for p in self.partitions}
        return {p: resolved("start", self.start, p, marks.get(p, -1)) for p in self.partitions}
