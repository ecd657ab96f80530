"""How far a group is behind: by what there is to be consumed, not by the log's end.

Who owns a partition is said in the partition, also behind its last message: a group that has consumed everything may
never come to the log's end. So the last message is looked for, backwards from there: mostly it is the last record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from waltz_ray.errors import Trimmed
from waltz_ray.topics.offset_item import OffsetItem
from waltz_ray.topics.records import is_message

__all__ = ["Behind", "behind", "messages_end"]

_MOST_AT_A_TIME = 1024

ReadRecords = Callable[[int, int], Iterable[tuple[int, bytes]]]
"""(first ID, end ID): the (ID, data) of transactions, in their order; Trimmed."""


class Behind(NamedTuple):
    """Transactions. ``lag``: from where the group goes on to the last message; 0 = there is none. ``lost``: trimmed
    before the group came to them."""

    lag: int
    lost: int


def messages_end(read: ReadRecords, begin: int, end: int) -> int:
    """The offset behind the last message of [begin, end), ``begin`` if there is none."""
    stop, step = end, 1
    while stop > begin:
        start = max(begin, stop - step)
        try:
            found = [number for number, data in read(start, stop) if is_message(data)]
        except Trimmed as trimmed:
            begin = max(begin + 1, trimmed.first_id)
            continue
        if found:
            return found[-1] + 1
        stop, step = start, min(2 * step, _MOST_AT_A_TIME)
    return begin


def behind(item: OffsetItem, first: int, end: int, read: ReadRecords) -> Behind:
    """Of a group at ``item`` in a log that has [first, end). A group that has confirmed nothing is at its beginning."""
    going_on = max(item.offset, first)
    gone = max(0, first - item.offset) if item.offset >= 0 else 0
    return Behind(max(0, messages_end(read, going_on, end) - going_on), item.lost + gone)
