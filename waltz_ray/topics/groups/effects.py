"""What the master of topics has done: answers to clients, the log of grants, offsets to be stored."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from waltz_ray.protocol.value import value
from waltz_ray.topics.groups.events import OrderStatus, RebalanceOp
from waltz_ray.topics.groups.table import SlotPlace, TopicPartition, TopicShape

__all__ = [
    "ConsumerAnswer",
    "Freeing",
    "GroupRefusal",
    "MasterEffect",
    "PartitionFreed",
    "PartitionGranted",
    "ProducerAnswer",
    "RebalanceOrder",
    "RefuseClient",
    "StoreOffsets",
    "TellClosed",
]


class GroupRefusal(enum.Enum):
    """Why a client is refused; the gateway knows the code of each."""

    STANDBY = "another actor leads"  # the client goes to the next one
    NO_NODE = "not registered, or not any more"  # the client registers again
    BAD_REQUEST = "something in the request cannot be"
    TOPICS_DIFFER = "its group has other topics"
    FILTERS_DIFFER = "its group has other filters"
    BOUND_DIFFERS = "its group is bound, or is not"
    SESSION_DIFFERS = "its group has another session"
    GROUP_FULL = "its group has all its members"
    TOO_MANY = "a limit of the master"


class Freeing(enum.Enum):
    """How a partition became free. But for the first two its consumer has not said so, and may still read it."""

    REPORTED = "its consumer has disconnected"
    WITHDRAWN = "its consumer was never told of it"
    CLOSED = "its consumer has closed"
    GONE = "its consumer was silent for too long"
    OVERDUE = "its consumer did not do what it was told"
    REPLACED = "another session has taken the place of its consumer's"


@value()
class RebalanceOrder:
    """What a consumer is to do: with which partitions, at which address. It may come again until it is answered."""

    rebalance_id: int
    op: RebalanceOp
    status: OrderStatus
    partitions: tuple[tuple[TopicPartition, SlotPlace], ...]


@value()
class ConsumerAnswer:
    """To a register or a heartbeat. ``topics``: those of the group that there are."""

    call: int
    not_allocated: bool
    order: RebalanceOrder | None
    topics: Mapping[str, TopicShape]


@value()
class ProducerAnswer:
    """To a register or a heartbeat. ``slots``: None, if the client has them. ``topics``: of its own those there are."""

    call: int
    checksum: int
    slots: Mapping[int, SlotPlace] | None
    topics: Mapping[str, TopicShape]


@value()
class TellClosed:
    """To a close, also a second one."""

    call: int


@value()
class RefuseClient:
    """``message``: what was wrong, and what to do."""

    call: int
    reason: GroupRefusal
    message: str


@value()
class PartitionGranted:
    """A consumer has a partition from now on. ``grant_id`` rises from grant to grant, also with the leaders: it can
    serve as the owner's epoch. ``reported``: it said so itself, to a master who did not know. If not, the slot ends
    the lease of anybody else: he is no member any more, or was heard of by no leader, and may go on for long.
    """

    group: str
    partition: TopicPartition
    client_id: str
    grant_id: int
    reported: bool


@value()
class PartitionFreed:
    """A consumer has a partition no more."""

    group: str
    partition: TopicPartition
    client_id: str
    how: Freeing


@value()
class StoreOffsets:
    """From where a bound group begins; ends in OffsetsStored or OffsetsNotStored. Nothing is granted before."""

    group: str
    session_key: str
    offsets: Mapping[TopicPartition, int]


MasterEffect = (
    ConsumerAnswer | ProducerAnswer | TellClosed | RefuseClient | PartitionGranted | PartitionFreed | StoreOffsets
)
