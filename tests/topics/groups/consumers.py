"""Consumers of a test, as foreign clients are: orders are done one after the other, also one that comes twice."""

from __future__ import annotations

from dataclasses import dataclass, field

from waltz_ray.topics.groups.effects import RebalanceOrder
from waltz_ray.topics.groups.events import (
    ConsumerBeats,
    ConsumerRegisters,
    GroupTerms,
    OrderReport,
    OrderStatus,
    RebalanceOp,
)
from waltz_ray.topics.groups.table import SlotPlace, TopicPartition

__all__ = ["FakeConsumer"]

LIST_EVERY = 3  # beats


@dataclass
class FakeConsumer:
    """What a client keeps. ``skips``: what it has done it does not do again, but says so again: its
    word was lost. ``lists``: with a
    word on an order it says all that it has."""

    client_id: str
    terms: GroupTerms
    group: str = "g"
    skips: bool = False
    lists: bool = True
    held: dict[TopicPartition, SlotPlace] = field(default_factory=dict)
    inbox: list[RebalanceOrder] = field(default_factory=list)
    results: list[OrderReport] = field(default_factory=list)
    beats: int = 0
    newest: int = 0
    ended: dict[int, OrderReport] = field(default_factory=dict)

    def registers(self, call: int) -> ConsumerRegisters:
        return ConsumerRegisters(call, self.client_id, self.group, "127.0.0.1", self.terms, dict(self.held))

    def beat(self, call: int) -> ConsumerBeats:
        self.beats += 1
        word = self.results.pop(0) if self.results else None
        has = dict(self.held) if (word is not None and self.lists) or self.beats % LIST_EVERY == 0 else None
        return ConsumerBeats(call, self.client_id, self.group, has, word)

    def told(self, order: RebalanceOrder) -> None:
        if self.skips and order.rebalance_id <= self.newest:
            said = self.ended.get(order.rebalance_id)
            if said is not None and said not in self.results:
                self.results.append(said)
            return
        self.newest = max(self.newest, order.rebalance_id)
        self.inbox.append(order)

    def works(self, admits: set[TopicPartition] | None = None, status: OrderStatus = OrderStatus.DONE) -> None:
        """Do the first order. ``admits``: what the slots admit of a CONNECT, None: all. Another status: it fails."""
        order = self.inbox.pop(0)
        if order.op in (RebalanceOp.REPORT, RebalanceOp.STOPREBALANCE):
            return
        if status is OrderStatus.DONE:
            for partition, place in order.partitions:
                if order.op is RebalanceOp.DISCONNECT:
                    self.held.pop(partition, None)
                elif partition not in self.held and (admits is None or partition in admits):
                    self.held[partition] = place
        word = self.ended[order.rebalance_id] = OrderReport(order.rebalance_id, status)
        self.results.append(word)
