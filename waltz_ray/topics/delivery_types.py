"""What ``delivery.py`` is told, and what it orders. Every order ends in exactly one fact, which has its number. Pure.

Offsets are transaction IDs of the partition; an offset that somebody *is at* is the ID that comes next.
"""

from __future__ import annotations

from collections.abc import Sequence

from waltz_ray.protocol.value import value
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.flow_rules import FlowRules

__all__ = [
    "NO_OFFSET",
    "BatchNotRead",
    "BatchRead",
    "BatchTrimmed",
    "ConfirmAsked",
    "DeliveryEffect",
    "DeliveryEvent",
    "DeliveryLimits",
    "DeliveryReply",
    "DeliveryRequest",
    "DeliveryStatus",
    "DeliveryStops",
    "FlowChanged",
    "LeaseRenewed",
    "LeasesDue",
    "OffsetFenced",
    "OffsetKept",
    "OffsetTaken",
    "OffsetUnknown",
    "PartitionGivenBack",
    "PartitionLost",
    "PartitionWanted",
    "ProgressAsked",
    "PullAsked",
    "ReadBatch",
    "ResetAsked",
    "StoreOffset",
    "TakeOffset",
]

NO_OFFSET = -1


@value()
class DeliveryLimits:
    """``lease_ms``: a consumer that gives no sign of life for so long loses the partition. ``waiting``: requests that
    may wait for the one in work. ``reads``: so many pieces of the log are looked at for one pull, if filters leave
    nothing. ``skipped``: an offset that only filters have moved is stored every so many transactions."""

    lease_ms: int = 30_000
    waiting: int = 16
    batch_messages: int = 500
    batch_bytes: int = 1 << 20
    reads: int = 4
    skipped: int = 10_000


# ---- requests; ``token``: what the reply carries


@value()
class PartitionWanted:
    """m15, register. ``read_status``: 0 from where the group is, or the first; 1 the same, or the end; 2 from the end.
    ``offset``: from there instead, NO_OFFSET = not said."""

    token: int
    consumer: str
    read_status: int
    offset: int
    filters: frozenset[str]


@value()
class PartitionGivenBack:
    """m15, logout. ``last_consumed``: what was pulled last has been consumed (``readStatus`` is 0)."""

    token: int
    consumer: str
    last_consumed: bool


@value()
class LeaseRenewed:
    """m16, for this partition: the consumer is alive."""

    token: int
    consumer: str


@value()
class PullAsked:
    """m17."""

    token: int
    consumer: str
    last_consumed: bool
    manual: bool


@value()
class ConfirmAsked:
    """m18."""

    token: int
    consumer: str
    consumed: bool


@value()
class ProgressAsked:
    """m101: of a consumer that reads the log itself. ``offset``: below it all is consumed, NO_OFFSET = nothing new;
    ``read_bytes``: of messages that it has read since the last time. ``end``: of the log now; ``lag_bytes``: what it
    has behind ``offset``, about. ``term``: of the lease there was when it said so."""

    token: int
    consumer: str
    offset: int
    read_bytes: int
    filtered: bool
    end: int
    lag_bytes: int
    term: int


@value()
class ResetAsked:
    """Somebody wants the group to go on at ``offset``: a number, or what a time or an end of the log came to."""

    token: int
    offset: int


# ---- facts


@value()
class OffsetTaken:
    """``offset``: what is stored, None = nothing yet; ``epoch``: one more than that of whoever took it before. The log
    has [first, end)."""

    number: int
    offset: int | None
    epoch: int
    first: int
    end: int


@value()
class OffsetKept:
    """The offset is stored."""

    number: int


@value()
class OffsetFenced:
    """It is not: the offset has been taken with a higher epoch."""

    number: int


@value()
class OffsetUnknown:
    """Nobody can say whether it is stored, or taken."""

    number: int
    reason: str


@value()
class BatchRead:
    """Looked at: what lies from the offset ordered up to ``next_offset``. ``messages`` (of any kind): those the filters
    let through; ``lag_bytes``: what the log has behind ``next_offset``, about."""

    number: int
    messages: Sequence[object]
    next_offset: int
    end: int
    read_bytes: int
    lag_bytes: int


@value()
class BatchTrimmed:
    """The log begins only with ``first``, behind the offset ordered."""

    number: int
    first: int


@value()
class BatchNotRead:
    """The log could not be read just now."""

    number: int
    reason: str


@value()
class FlowChanged:
    """How fast the group may consume from now on."""

    rules: FlowRules


@value()
class LeasesDue:
    """Time has passed: to be told now and then."""


@value()
class DeliveryStops:
    """The partition's slot is not served here any more."""


DeliveryRequest = PartitionWanted | PartitionGivenBack | PullAsked | ConfirmAsked | ProgressAsked | ResetAsked
DeliveryEvent = (
    DeliveryRequest
    | LeaseRenewed
    | OffsetTaken
    | OffsetKept
    | OffsetFenced
    | OffsetUnknown
    | BatchRead
    | BatchTrimmed
    | BatchNotRead
    | FlowChanged
    | LeasesDue
    | DeliveryStops
)


# ---- orders


@value()
class TakeOffset:
    """Read the stored offset, and raise its epoch by one, in one step. Ends in OffsetTaken or OffsetUnknown: also if
    ``asked``, where the group is to go on (-1 = nobody says), is in the log and not known here yet."""

    number: int
    asked: int = NO_OFFSET


@value()
class StoreOffset:
    """Store ``offset``, unless the epoch is another one. Ends in OffsetKept, OffsetFenced or OffsetUnknown; after that
    it must not happen any more, or a late one would undo the next (compare-and-set of the item's version)."""

    number: int
    offset: int
    epoch: int


@value()
class ReadBatch:
    """Read from ``offset`` on, up to ``end`` (None: of the log), or until there is enough; at least one message if
    there is one, and what there is at once, without waiting. Ends in BatchRead, BatchTrimmed or BatchNotRead."""

    number: int
    offset: int
    end: int | None
    filters: frozenset[str]
    max_messages: int
    max_bytes: int


@value()
class DeliveryReply:
    """``offset``: where the batch begins, or the group is; ``next_offset`` and ``end``: where batch and log end; -1 =
    not known. ``wait_ms``: do not ask again before that (minLimitTime); ``slow``: filters have left little."""

    token: int
    code: TopicCode
    text: str = ""
    messages: Sequence[object] = ()
    offset: int = NO_OFFSET
    next_offset: int = NO_OFFSET
    end: int = NO_OFFSET
    lag_bytes: int = NO_OFFSET
    wait_ms: int = 0
    slow: bool = False


@value()
class PartitionLost:
    """The consumer has the partition no longer, without having given it back."""

    consumer: str
    reason: str


DeliveryEffect = TakeOffset | StoreOffset | ReadBatch | DeliveryReply | PartitionLost


@value()
class DeliveryStatus:
    """Of one (group, topic, partition): ``consumer`` "" = nobody has it. ``delivered``: up to there, of which
    ``confirmed``, of which ``stored``. ``lost``: transactions that were trimmed before the group had them. ``term``: of
    the consumer's lease, another one after each registration; 0 = nobody has it."""

    consumer: str
    epoch: int
    delivered: int
    confirmed: int
    stored: int
    end: int
    lag_bytes: int
    lost: int
    waiting: int
    term: int
