"""The one request of a partition that is worked off, and the orders that it waits for. Pure."""

from __future__ import annotations

from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.delivery_place import DeliveryPlace
from waltz_ray.topics.delivery_types import (
    NO_OFFSET,
    BatchRead,
    DeliveryEffect,
    DeliveryLimits,
    DeliveryRequest,
    ReadBatch,
    StoreOffset,
    TakeOffset,
)

__all__ = ["DeliveryOrders", "DeliveryWork"]


class DeliveryWork:
    """``term``: of the lease it was begun under. ``taking``, ``storing``, ``reading``: the numbers of the orders that
    are not answered yet, 0 = none. ``more``: there is more to look at than one pull does."""

    def __init__(self, request: DeliveryRequest, term: int) -> None:
        self.request = request
        self.term = term
        self.taking = self.storing = self.reading = 0
        self.stored_offset = NO_OFFSET
        self.reads = 0
        self.more = False
        self.wait_ms = 0
        self.failed: tuple[TopicCode, str] | None = None
        self.batch: BatchRead | None = None

    @property
    def waits(self) -> bool:
        """For an answer to an order."""
        return bool(self.taking or self.storing or self.reading)


class DeliveryOrders:
    """Gives the orders their numbers and gathers the effects of one step."""

    def __init__(self, limits: DeliveryLimits) -> None:
        self.effects: list[DeliveryEffect] = []
        self._limits = limits
        self._number = 0

    def taken(self) -> list[DeliveryEffect]:
        """The effects since the last time."""
        effects, self.effects = self.effects, []
        return effects

    def take(self, work: DeliveryWork, asked: int) -> None:
        """The offset, with the next epoch; ``asked``: where the group is to go on."""
        self._number += 1
        work.taking = self._number
        self.effects.append(TakeOffset(work.taking, asked))

    def store(self, work: DeliveryWork, offset: int, epoch: int) -> None:
        """Where the group is now."""
        self._number += 1
        work.storing, work.stored_offset = self._number, offset
        self.effects.append(StoreOffset(work.storing, offset, epoch))

    def read(self, work: DeliveryWork, place: DeliveryPlace, filters: frozenset[str]) -> None:
        """What the group is to have next."""
        self._number += 1
        work.reading = self._number
        work.reads += 1
        most = self._limits.batch_messages, self._limits.batch_bytes
        self.effects.append(ReadBatch(work.reading, place.position, place.batch_end, filters, *most))
