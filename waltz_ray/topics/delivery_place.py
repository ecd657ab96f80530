"""Where a group is in one partition: what was delivered, of that confirmed, of that stored. Pure.

::

        stored      confirmed              position                    ends[-1]
    ──────┼─────────────┼─────────┼───────────┼─────────────┼─────────────┼──────►
                        │  delivered, not yet │    was delivered before,
                        │      confirmed      │  comes again in the same batches
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from waltz_ray.errors import InvariantBroken
from waltz_ray.topics import delivery_rules as rules
from waltz_ray.topics.delivery_types import NO_OFFSET, OffsetTaken, PartitionWanted

__all__ = ["DeliveryPlace"]


class DeliveryPlace:
    """``told``: the last offset of which a consumer has said that it has consumed what is below it; what filters have
    skipped may have moved ``confirmed`` beyond. ``ends``: of the batches that were delivered and are not confirmed."""

    def __init__(self) -> None:
        self.position = self.confirmed = self.told = self.stored = NO_OFFSET
        self.ends: list[int] = []
        self.lost = 0
        self._counted_below = 0

    def begin(self, start: int, stored: int, same_batches: bool) -> None:
        """A consumer begins at ``start``. ``same_batches``: what was delivered from there before and not confirmed
        comes again as it was."""
        if not same_batches or start != self.confirmed:
            self.ends.clear()
        self.position = self.confirmed = start
        self.told, self.stored = min(start, stored), stored

    def take_up(self, wanted: PartitionWanted, taken: OffsetTaken, known: bool, same_filters: bool) -> None:
        """Begin where a consumer wants to, and may. ``known``: what is remembered here is still so."""
        stored = rules.known_to_the_log(taken.offset, taken.end)
        resumed = rules.resumed_at(stored, self.confirmed if known else None)
        start = rules.start_at(wanted.read_status, wanted.offset, resumed, taken.first, taken.end)
        self.begin(start, NO_OFFSET if taken.offset is None else taken.offset, known and same_filters)
        if start < taken.first:
            self.trimmed(taken.first)

    def confirm(self) -> None:
        """What was delivered has been consumed."""
        if self.position > self.confirmed:
            self.confirmed = self.told = self.position
        self.ends = [end for end in self.ends if end > self.confirmed]

    def confirm_to(self, offset: int) -> None:
        """A consumer that reads by itself has consumed what is below ``offset``."""
        if offset > self.confirmed:
            self.confirmed = self.told = offset
            self.position = max(self.position, offset)
            self.ends = [end for end in self.ends if end > offset]

    def rewind(self) -> None:
        """What was delivered and not confirmed is to come again."""
        self.position = self.confirmed

    def read(self, messages: Sequence[object], next_offset: int) -> None:
        """The log was looked at up to ``next_offset``; ``messages`` are delivered."""
        if next_offset < self.position:
            raise InvariantBroken(f"a read from {self.position} ended before it, at {next_offset}")
        if messages:
            self.position = next_offset
            at = bisect_left(self.ends, next_offset)  # nearly always the last one, of any number: nobody need confirm
            if at == len(self.ends) or self.ends[at] != next_offset:
                self.ends.insert(at, next_offset)
        else:
            self._skip_to(next_offset)

    def trimmed(self, first: int) -> None:
        """What was below ``first`` is gone."""
        self.lost += rules.counted_as_lost(self.position, first, self._counted_below)
        self._counted_below = max(self._counted_below, first)
        self._skip_to(rules.after_trim(self.position, first))
        self.ends = [end for end in self.ends if end > self.confirmed]

    def _skip_to(self, offset: int) -> None:
        """Nothing of what lies up to ``offset`` is delivered: it is confirmed as soon as all before it is."""
        if self.position == self.confirmed:
            self.confirmed = offset
        self.position = offset

    @property
    def batch_end(self) -> int | None:
        """Where what comes next ended when it was delivered before; None: it was not."""
        return rules.batch_end(self.ends, self.position)

    def has_to_store(self, skipped: int) -> bool:
        """Whether the next answer has to wait for the store."""
        return rules.has_to_store(self.told, self.confirmed, self.stored, skipped)
