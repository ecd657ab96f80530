"""What masters have done, written down and judged: one grant of a partition at a time, and IDs that rise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from waltz_ray.topics.groups.effects import (
    ConsumerAnswer,
    Freeing,
    MasterEffect,
    PartitionFreed,
    PartitionGranted,
    RebalanceOrder,
)
from waltz_ray.topics.groups.table import TopicPartition

__all__ = ["BrokenPromise", "GrantLog"]


class BrokenPromise(AssertionError):
    """What was promised does not hold."""


@dataclass
class GrantLog:
    """Of one group. ``last_id``: the highest of all leaders."""

    holder: dict[TopicPartition, str] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)
    grants: int = 0
    frees: dict[Freeing, int] = field(default_factory=lambda: dict.fromkeys(Freeing, 0))
    last_id: int = 0
    orders: dict[int, tuple[str, RebalanceOrder]] = field(default_factory=dict)

    def takes(self, effects: Sequence[MasterEffect], client_id: str | None = None) -> None:
        """What one event has led to; ``client_id``: who has asked."""
        for effect in effects:
            match effect:
                case PartitionGranted(_, partition, to, grant_id, reported):
                    self.story.append(f"{partition} to {to}{' who has it' if reported else ''}")
                    if partition in self.holder:
                        raise BrokenPromise(f"{partition} is granted to {to}, and {self.holder[partition]} has it")
                    self._rises(grant_id)
                    self.holder[partition] = to
                    self.grants += 1
                case PartitionFreed(_, partition, of, how):
                    self.story.append(f"{partition} free of {of}: {how.name}")
                    if self.holder.pop(partition, None) != of:
                        raise BrokenPromise(f"{partition} is freed of {of}, who does not have it")
                    self.frees[how] += 1
                case ConsumerAnswer(_, _, RebalanceOrder() as order, _):
                    assert client_id is not None
                    self._ordered(client_id, order)

    def leader_changes(self) -> None:
        """The new one knows of no grants."""
        self.holder.clear()

    def _ordered(self, client_id: str, order: RebalanceOrder) -> None:
        before = self.orders.get(order.rebalance_id)
        if before is None:
            self._rises(order.rebalance_id)
            self.orders[order.rebalance_id] = client_id, order
        elif before != (client_id, order):
            raise BrokenPromise(f"two orders have one ID: {before} and {client_id} {order}")

    def _rises(self, found: int) -> None:
        # Grants and orders of one step are told in the order they were made in.
        if found <= self.last_id:
            raise BrokenPromise(f"ID {found} comes after {self.last_id}")
        self.last_id = found
