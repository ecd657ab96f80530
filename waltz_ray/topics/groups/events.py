"""What the master of topics is told. ``call`` is the caller's: one effect with it answers each request."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from waltz_ray.protocol.value import value
from waltz_ray.topics.groups.table import SlotPlace, TopicPartition, TopicTable

__all__ = [
    "BalanceDue",
    "BoundTerms",
    "ConsumerBeats",
    "ConsumerCloses",
    "ConsumerRegisters",
    "GroupTerms",
    "HoldBalance",
    "MasterEvent",
    "OffsetsNotStored",
    "OffsetsStored",
    "OrderReport",
    "OrderStatus",
    "ProducerBeats",
    "ProducerCloses",
    "ProducerRegisters",
    "RebalanceOp",
    "SteppedDown",
    "TableKnown",
    "TookOver",
    "WantReports",
]


class RebalanceOp(enum.IntEnum):
    """What a consumer is told to do; the numbers are the public protocol's.

    We send 1, 2, 3 and 5. Clients answer 1, 2, 10 and 20 when it is done, and nothing to 3 and 5. REFRESH is never
    sent: clients take it for an invalid number.
    """

    CONNECT = 1
    DISCONNECT = 2
    REPORT = 3
    REFRESH = 4
    STOPREBALANCE = 5
    ONLY_CONNECT = 10
    ONLY_DISCONNECT = 20


class OrderStatus(enum.IntEnum):
    """How far an order is; the numbers are the public protocol's."""

    TODO = 0
    PROCESSING = 1
    DONE = 2
    UNKNOWN = -1
    FAILED = -2


@value()
class OrderReport:
    """A client's word about an order: ``rebalance_id`` of the order, and how it ended."""

    rebalance_id: int
    status: OrderStatus


@value()
class BoundTerms:
    """Bound consume: a session of exactly ``source_count`` consumers which starts at given offsets.

    ``session_time_ms``: when the session began, by the client's clock; shown, not compared. ``select_big``: where two
    members name an offset for one partition the greater one counts, else the smaller one.
    """

    session_key: str
    session_time_ms: int
    source_count: int
    select_big: bool
    offsets: Mapping[TopicPartition, int]


@value()
class GroupTerms:
    """What all members of a group must agree on. ``filters``: topic -> message types, none = all messages."""

    topics: frozenset[str]
    filters: Mapping[str, frozenset[str]]
    bound: BoundTerms | None = None


# ---- of the master itself


@value()
class TookOver:
    """This actor leads now, in ``epoch``: higher than that of any leader before.

    ``settle_ms``: how long nothing is granted that nobody has reported, because who consumes it may not have come yet.
    At least a member's time-out; 0 if nobody ever led before.
    """

    epoch: int
    settle_ms: int


@value()
class SteppedDown:
    """This actor leads no more. All that was known of clients is forgotten."""


@value()
class TableKnown:
    """Slots and topics as they are now."""

    table: TopicTable


@value()
class BalanceDue:
    """A balance period is over."""


@value()
class OffsetsStored:
    """Answer to StoreOffsets: it is done."""

    group: str
    session_key: str


@value()
class OffsetsNotStored:
    """Answer to StoreOffsets: it failed; it is tried again with the next balance."""

    group: str
    session_key: str
    why: str


@value()
class HoldBalance:
    """An operator has the balance of a group held (or no more): nothing moves, free partitions stay free.

    The next leader has to be told, too.
    """

    group: str
    held: bool


@value()
class WantReports:
    """An operator wants every member of a group to say what it has."""

    group: str


# ---- of producers


@value()
class ProducerRegisters:
    """``checksum``: of the slots that the client knows, -1 of none."""

    call: int
    client_id: str
    host: str
    topics: frozenset[str]
    checksum: int


@value()
class ProducerBeats:
    """``topics`` may have more than at first; one that is missing stays published."""

    call: int
    client_id: str
    topics: frozenset[str]
    checksum: int


@value()
class ProducerCloses:
    call: int
    client_id: str


# ---- of consumers


@value()
class ConsumerRegisters:
    """``reported``: the partitions it has, and where. ``not_allocated``: what it says of its group, None: nothing."""

    call: int
    client_id: str
    group: str
    host: str
    terms: GroupTerms
    reported: Mapping[TopicPartition, SlotPlace]
    not_allocated: bool | None = None


@value()
class ConsumerBeats:
    """``reported``: all partitions it has, None: it does not say. ``order``: its word about the last order."""

    call: int
    client_id: str
    group: str
    reported: Mapping[TopicPartition, SlotPlace] | None = None
    order: OrderReport | None = None


@value()
class ConsumerCloses:
    call: int
    client_id: str
    group: str


MasterEvent = (
    TookOver
    | SteppedDown
    | TableKnown
    | BalanceDue
    | OffsetsStored
    | OffsetsNotStored
    | HoldBalance
    | WantReports
    | ProducerRegisters
    | ProducerBeats
    | ProducerCloses
    | ConsumerRegisters
    | ConsumerBeats
    | ConsumerCloses
)
