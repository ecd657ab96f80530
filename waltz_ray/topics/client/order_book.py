"""What the master has ordered a consumer to do, one order at a time, and what it is told about that. Pure.

An order may come again, until the master has heard how it ended: then it is not done again, but told again. Orders
have rising numbers; one that is older than what was done is of a master that is none any more.
"""

from __future__ import annotations

from waltz_ray.topics.groups.events import OrderStatus
from waltz_ray.topics.messages import EventProto

__all__ = ["OrderBook"]


class OrderBook:
    """Of one registration."""

    def __init__(self) -> None:
        self._last = -1
        self._under_way = False
        self._told: EventProto | None = None

    def take(self, order: EventProto) -> bool:
        """Whether it is to be begun now; ``done`` follows."""
        number = -1 if order.rebalance_id is None else order.rebalance_id
        if self._under_way or number <= self._last:
            return False
        self._last, self._under_way, self._told = number, True, None
        return True

    def done(self, order: EventProto) -> None:
        """It was carried out, as far as it could be: what we have says the rest."""
        self._under_way = False
        self._told = EventProto(order.rebalance_id, order.op_type, OrderStatus.DONE, order.subscribe_info)

    @property
    def report(self) -> EventProto | None:
        """What the next heartbeat says of the last order; None: there was none, or it is under way."""
        return self._told
