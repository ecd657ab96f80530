"""The rules of groups, each by its name: who has which share, when a partition may change hands, who is gone.

Each answers one question and changes nothing. When it is asked, and what follows, is ``group.py``'s. The walks of
``tests/topics/groups/test_walks.py`` break them, and something must notice it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from waltz_ray.topics.groups.effects import GroupRefusal, RebalanceOrder
from waltz_ray.topics.groups.events import GroupTerms, OrderReport, OrderStatus, RebalanceOp
from waltz_ray.topics.groups.table import SlotPlace, TopicPartition

__all__ = [
    "difference",
    "first_id",
    "has_moved",
    "is_fulfilled",
    "is_gone",
    "is_overdue",
    "is_sent",
    "is_settled",
    "is_word_on",
    "left_by",
    "may_be_granted",
    "merged_offset",
    "session_ends",
    "shares",
    "surplus",
]


def first_id(epoch: int) -> int:
    """Rebalance IDs of a leader are above this, and below that of the next epoch: they rise with the leaders."""
    return epoch << 32


def shares(members: Mapping[str, int], partitions: int) -> dict[str, int]:
    """How many partitions each member should have; ``members``: how many each has.

    As many for all, or one more for some: for those that have most, so that the fewest move; of equals the first.
    """
    if not members:
        return {}
    least, more = divmod(partitions, len(members))
    ranked = sorted(members, key=lambda client: (-members[client], client))
    return {client: least + (rank < more) for rank, client in enumerate(ranked)}


def surplus(
    owned: Collection[TopicPartition], connected: Collection[TopicPartition], share: int
) -> list[TopicPartition]:
    """What a member that has ``owned`` gives away: what is above its share; first what it does not consume yet."""
    ranked = sorted(owned, key=lambda partition: (partition not in connected, partition))
    return ranked[share:]


def may_be_granted(owner: str | None, leaving: Collection[str]) -> bool:
    """Whether a partition may be given to somebody: nobody has it, nor may still have it (release before assign)."""
    return owner is None and not leaving


def is_settled(now_ms: int, settled_at_ms: int) -> bool:
    """Whether who consumed under the leader before would have come by now: himself, or nevermore (his time is over)."""
    return now_ms >= settled_at_ms


def is_gone(seen_ms: int, now_ms: int, client_ms: int) -> bool:
    """Whether a client was silent for too long."""
    return now_ms - seen_ms >= client_ms


def is_overdue(told_ms: int | None, now_ms: int, order_ms: int) -> bool:
    """Whether a consumer has not done what it was told; ``told_ms``: when it was first told, since it last did."""
    return told_ms is not None and now_ms - told_ms >= order_ms


def is_sent(beats: int) -> bool:
    """Whether an order goes with a heartbeat; ``beats``: how many there were since it was made.

    With the first two, then with every second: a reply may be lost. Not with each: foreign clients do what comes twice
    twice, and say so with one heartbeat for each, so one that was stuck would be busy for long with what is over.
    """
    return beats == 1 or beats % 2 == 0


def is_word_on(rebalance_id: int, report: OrderReport) -> bool:
    """Whether a report is about the order that is under way, and ends it.

    An older one may come twice, and late. PROCESSING is no end; TODO is one: clients that are told to stop give
    orders back like this.
    """
    return report.rebalance_id == rebalance_id and report.status is not OrderStatus.PROCESSING


def is_fulfilled(order: RebalanceOrder, reported: Collection[TopicPartition]) -> bool:
    """Whether a list shows that an order is done, without a word on it: a CONNECT, if it has all of it.

    Never a DISCONNECT: a list that lacks something may be older than its CONNECT.
    """
    return order.op is RebalanceOp.CONNECT and all(partition in reported for partition, _ in order.partitions)


def left_by(
    ordered: Collection[TopicPartition], report: OrderReport, reported: Collection[TopicPartition] | None
) -> set[TopicPartition]:
    """Which of the partitions that a consumer was told to leave it has left: only after it has done the order.

    What a list does not have, without a word on the order, may be about to be connected by an order before.
    """
    if report.status is not OrderStatus.DONE:
        return set()
    return set(ordered) - set(reported or ())


def has_moved(known: SlotPlace, place: SlotPlace | None) -> bool:
    """Whether a consumer has to connect anew, because its slot is at another address; None: the slot has none now."""
    return place is not None and place != known


def session_ends(incomplete_since_ms: int | None, now_ms: int, session_ms: int) -> bool:
    """Whether another session may take the place of a bound one: it lacks members, for too long."""
    return incomplete_since_ms is not None and now_ms - incomplete_since_ms >= session_ms


def merged_offset(offsets: Sequence[int], select_big: bool) -> int:
    """Where a partition begins for which several members have named an offset."""
    return max(offsets) if select_big else min(offsets)


def difference(group: str, has: GroupTerms, wants: GroupTerms) -> tuple[GroupRefusal, str] | None:
    """In what a newcomer does not agree with its group: the first that is found, in words."""
    if has.topics != wants.topics:
        found = _sides(has.topics, wants.topics)
        return GroupRefusal.TOPICS_DIFFER, f"group {group} has other topics: {found}; {_REMEDY}"
    for topic in sorted(has.topics):
        ours, theirs = has.filters.get(topic, frozenset()), wants.filters.get(topic, frozenset())
        if ours != theirs:
            found = _sides(ours, theirs) if ours and theirs else "of one of the two it has none, which is all messages"
            return GroupRefusal.FILTERS_DIFFER, f"group {group} has other filters of topic {topic}: {found}; {_REMEDY}"
    if has.bound is None or wants.bound is None:
        if has.bound is wants.bound:
            return None
        is_bound = "is not bound, and this consumer is" if has.bound is None else "is bound, and this consumer is not"
        return GroupRefusal.BOUND_DIFFERS, f"group {group} {is_bound}; {_REMEDY}"
    for what, ours_, theirs_ in (
        ("session key", has.bound.session_key, wants.bound.session_key),
        ("source count", has.bound.source_count, wants.bound.source_count),
        ("selectBig", has.bound.select_big, wants.bound.select_big),
    ):
        if ours_ != theirs_:
            text = f"group {group} has {what} {ours_!s:.100}, and this consumer {theirs_!s:.100}; {_REMEDY}"
            return GroupRefusal.SESSION_DIFFERS, text
    return None


_REMEDY = "subscribe as the group does, or wait until its consumers are gone, or take another group"


def _sides(has: Collection[str], wants: Collection[str]) -> str:
    """What only one of two has; a few of many."""
    only = [("only the group has", set(has) - set(wants)), ("only this consumer has", set(wants) - set(has))]
    return ", ".join(f"{who} {_few(sorted(names))}" for who, names in only if names)


def _few(names: Sequence[str]) -> str:
    shown = " ".join(f"{name:.100}" for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
