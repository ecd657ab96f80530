"""What is decided about the delivery of one partition to one group: each rule one thing, changing nothing. Pure.

The walks break them by their names.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.delivery_types import NO_OFFSET, ConfirmAsked, PartitionGivenBack, PullAsked

__all__ = [
    "after_trim",
    "batch_end",
    "counted_as_lost",
    "has_to_store",
    "holder_code",
    "is_expired",
    "is_given_up",
    "is_in_the_log",
    "is_of_this_lease",
    "is_present",
    "known_to_the_log",
    "may_confirm",
    "memory_counts",
    "pull_confirms",
    "pull_rewinds",
    "resumed_at",
    "says_consumed",
    "start_at",
]


def is_expired(until_ms: int, now_ms: int) -> bool:
    """Whether a lease that lasts until then is over."""
    return now_ms >= until_ms


def holder_code(holder: str | None, consumer: str) -> TopicCode:
    """OK if ``consumer`` is who has the partition (None: nobody has): only then may it pull, confirm, give back."""
    if holder is None:
        return TopicCode.HB_NO_NODE
    return TopicCode.OK if holder == consumer else TopicCode.DUPLICATE_PARTITION


def may_confirm(delivered: int, term: int) -> bool:
    """Whether a consumer may confirm by hand what was ``delivered`` under that lease (0 = nothing is to be confirmed).
    What it got before it registered again comes again, so it must not be told that it is confirmed."""
    return delivered in (0, term)


def is_of_this_lease(term: int, now: int) -> bool:
    """Whether what a consumer has read by itself, under the lease ``term``, may be confirmed under the one that it has
    ``now``: between the two the group may have been set back, and it would pass what comes again."""
    return term == now


def pull_confirms(last_consumed: bool, manual: bool) -> bool:
    """Whether a pull confirms what was delivered before it."""
    return last_consumed and not manual


def pull_rewinds(last_consumed: bool, manual: bool) -> bool:
    """Whether a pull asks for what was delivered before it once more. Who confirms by hand says that with a confirm."""
    return not last_consumed and not manual


def is_present(connection: int, newest: int) -> bool:
    """Whether what a consumer asks for over ``connection`` is what it wants now; ``newest``: that it has asked over.

    Who opens another connection has given up what was under way on the one before: a pull that comes late would bring
    what nobody gets, and a confirm would confirm what was delivered since.
    """
    return connection >= newest


def is_given_up(pull: PullAsked, since: Iterable[object]) -> bool:
    """Whether who pulls has asked for something else ``since``: what the pull brought he would not look for, and what
    he says in that request of what was delivered before it would be said of this, too."""
    later = PullAsked | ConfirmAsked | PartitionGivenBack
    return any(isinstance(each, later) and each.consumer == pull.consumer for each in since)


def says_consumed(request: PullAsked | ConfirmAsked | PartitionGivenBack) -> bool | None:
    """What a request says of all that was delivered before it: consumed, not consumed, or (None) nothing."""
    match request:
        case PullAsked(_, _, last_consumed, manual):
            if pull_confirms(last_consumed, manual):
                return True
            return False if pull_rewinds(last_consumed, manual) else None
        case ConfirmAsked(_, _, consumed) | PartitionGivenBack(_, _, consumed):
            return consumed


def batch_end(ends: Sequence[int], position: int) -> int | None:
    """Where the batch ended that was delivered from here before, so that the same is delivered again; None: this is
    the first time. ``ends``: of the batches delivered and not confirmed, in order."""
    at = bisect_right(ends, position)
    return ends[at] if at < len(ends) else None


def memory_counts(known_epoch: int | None, epoch: int) -> bool:
    """Whether what we remember is still so, now that the offset was taken with ``epoch``: nobody has had it between."""
    return known_epoch is not None and epoch == known_epoch + 1


def resumed_at(stored: int | None, remembered: int | None) -> int | None:
    """Where the group is: at what is stored, or at what its consumer has confirmed since, in vain (``remembered``)."""
    if remembered is None or stored is None:
        return stored if remembered is None else remembered
    return max(stored, remembered)


def known_to_the_log(stored: int | None, end: int) -> int | None:
    """Where the group is in this log: what is stored may be of a longer one, of which this is what a backup had. Then
    it is at the end: what comes now is new, though it has offsets of what the group had consumed there."""
    return None if stored is None else min(stored, end)


def start_at(read_status: int, asked: int, resumed: int | None, first: int, end: int) -> int:
    """Where a consumer begins. Never lower than where the group is, unless it was asked for."""
    if asked != NO_OFFSET:
        return asked
    if read_status == 2:
        return end if resumed is None else max(end, resumed)
    if resumed is not None:
        return resumed
    return end if read_status == 1 else first


def after_trim(offset: int, first: int) -> int:
    """Where somebody at ``offset`` goes on in a log that begins with ``first``."""
    return max(offset, first)


def counted_as_lost(offset: int, first: int, counted_below: int) -> int:
    """How many transactions from ``offset`` on are gone that were not counted yet."""
    return max(0, first - max(offset, counted_below))


def has_to_store(told: int, confirmed: int, stored: int, skipped: int) -> bool:
    """Whether the offset is written before the next answer: ``told``, what a consumer has said it has consumed, always;
    what filters have skipped (up to ``confirmed``) only from time to time."""
    return told > stored or confirmed - stored >= skipped


def is_in_the_log(offset: int, end: int) -> bool:
    """Whether a group can go on there when it is asked for: nobody knows what will be behind the log's end."""
    return 0 <= offset <= end
