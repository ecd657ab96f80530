"""Messages of one partition on their way into the log, in the order in which they came, whatever is refused.

A message is appended with the mark of the fold, and the log may refuse it falsely: after a move of the partition's
server locks are as new as its log, so what was under way is older than they are. It is appended again; what came after
it must not get ahead of it meanwhile. So all that is under way at a time has *one* mark: locks only get newer; where
the log refuses one message, it refuses all behind it. New ones then stand in line, until the fate of all that is under
way is known and the fold has come to what was in the way; then all are appended in their order, with the mark of then.

The mark does not rise while messages come without a pause. That costs nothing: the only lock that they rest on is the
slot's, which nobody takes while the partition is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from waltz_ray.client.append_fates import AppendFates
from waltz_ray.errors import InvalidInput
from waltz_ray.topics.records import TopicMessage
from waltz_ray.topics.serving.fates import AppendedMessage, MessageFate, MessageLost, MessageRefused, NotServed
from waltz_ray.topics.serving.partition_fold import PartitionFold

__all__ = ["MessageLine"]

Told = Callable[[MessageFate], None]


class _Entry(NamedTuple):
    number: int
    message: TopicMessage
    told: Told


class MessageLine:
    """``append(message, mark, fates)`` asks the log; ``serving``: whether the partition is ours. In one event loop."""

    def __init__(
        self,
        append: Callable[[TopicMessage, int, AppendFates], None],
        fold: PartitionFold,
        serving: Callable[[], bool],
    ) -> None:
        self._append, self._fold, self._serving = append, fold, serving
        self._mark = self._conflict = -1
        self._number = 0
        self._under_way = 0
        self._again: list[_Entry] = []
        self._closed = False

    def put(self, message: TopicMessage, told: Told) -> None:
        """Append; ``told`` is called once."""
        self._number += 1
        entry = _Entry(self._number, message, told)
        if self._again:
            self._again.append(entry)
        else:
            self._ask(entry)

    def close(self) -> None:
        """What stands in line is not appended, nor is what will be refused: the fold goes on no more. Idempotent."""
        self._closed = True
        waiting, self._again = self._again, []
        for entry in waiting:
            entry.told(NotServed())

    def _ask(self, entry: _Entry) -> None:
        if not self._under_way:
            self._mark = self._fold.mark

        def committed(transaction_id: int) -> None:
            self._landed()
            entry.told(AppendedMessage(transaction_id))

        def refused(conflict: int) -> None:
            if self._closed:
                self._landed()
                entry.told(NotServed())
                return
            self._again.append(entry)
            self._conflict = max(self._conflict, conflict)
            self._landed()

        def lost(reason: str) -> None:
            self._landed()
            entry.told(MessageLost(reason))

        try:
            self._append(entry.message, self._mark, AppendFates(committed, refused, lost))
        except InvalidInput as error:
            entry.told(MessageRefused(str(error)))
        else:
            self._under_way += 1

    def _landed(self) -> None:
        self._under_way -= 1
        if self._again and not self._under_way:
            self._fold.after(self._conflict, self._go_on)

    def _go_on(self) -> None:
        waiting, self._again = sorted(self._again, key=lambda entry: entry.number), []
        for entry in waiting:
            if self._serving():
                self._ask(entry)
            else:
                entry.told(NotServed())
