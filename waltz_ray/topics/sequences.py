"""What is remembered of native producers' messages, so that one sent again is not appended twice. Pure.

A native producer numbers its messages to a partition, 1, 2, 3 ... (gaps do no harm), and sends a message whose fate it
does not know again under the same number. Its partition's owner asks ``ask`` before it appends. All of this is folded
from the log: the number is in the record, so a new owner knows what the former one did once it has folded the log from
``FORGOTTEN_MINUTES`` (and one) ago on.

Bounded three ways, and what follows from that:

- of a producer the last ``window`` numbers are remembered. An older one is refused (TOO_OLD), never appended: its fate
  is unknown for ever. So a producer has fewer than ``window`` messages without an answer at a time.
- a producer is forgotten ten minutes after its last message, by the clock of the records. What it sends again after
  that is appended again: it must have given up by then.
- if all have more than ``most`` numbers together, the one that has been quiet for the longest is forgotten before its
  time, with the same consequence; ``forgotten_early`` counts these.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Iterable

__all__ = ["FORGOTTEN_MINUTES", "SequenceFate", "Sequences", "is_past_minutes", "is_too_old"]

FORGOTTEN_MINUTES = 10
"""After its last message a producer is remembered so long, and for up to a minute more."""

_MINUTE_MS = 60_000


class SequenceFate(enum.Enum):
    """Of a message that has not been appended for certain. NEW: append it. UNDER_WAY: its first copy is being appended;
    answer this one as that one. TOO_OLD: nobody can say; refuse it."""

    NEW = "new"
    UNDER_WAY = "under way"
    TOO_OLD = "too old"


def is_past_minutes(minute: int, now_minute: int) -> bool:
    """Whose last message was in ``minute``: is it forgotten?"""
    return minute + FORGOTTEN_MINUTES < now_minute


def is_too_old(sequence: int, highest: int, window: int) -> bool:
    """Whether the number has left the window that ends with the highest appended."""
    return sequence <= highest - window


class _Producer:
    """``known``: sequence -> transaction ID; ``order``: a heap of these sequences."""

    __slots__ = ("highest", "known", "minute", "order")

    def __init__(self) -> None:
        self.highest = 0
        self.minute = 0
        self.known: dict[int, int] = {}
        self.order: list[int] = []


class Sequences:
    """Of one partition; the ID of a producer is a number > 0, 0 is a foreign client, of whom nothing is remembered."""

    def __init__(self, window: int = 1_024, most: int = 200_000) -> None:
        self._window = window
        self._most = most
        self._producers: dict[int, _Producer] = {}  # who has written last is last
        self._under_way: set[tuple[int, int]] = set()
        self._count = 0
        self.forgotten_early = 0

    def __len__(self) -> int:
        """Numbers remembered."""
        return self._count

    def ask(self, producer: int, sequence: int) -> int | SequenceFate:
        """The transaction ID that this message got when it was sent before, or what is to be done with it. After NEW,
        ``appended`` or ``not_appended`` follows."""
        if not producer:
            return SequenceFate.NEW
        known = self._producers.get(producer)
        if known is not None and sequence in known.known:
            return known.known[sequence]
        if (producer, sequence) in self._under_way:
            return SequenceFate.UNDER_WAY
        if sequence < 1 or (known is not None and is_too_old(sequence, known.highest, self._window)):
            return SequenceFate.TOO_OLD
        self._under_way.add((producer, sequence))
        return SequenceFate.NEW

    def not_appended(self, producer: int, sequence: int) -> None:
        """It is certain that the message is not in the log, and will not be: it may be tried again. As long as that is
        not certain, nothing is said: every append has its fate in the end, this one or ``appended``."""
        self._under_way.discard((producer, sequence))

    def appended(self, producer: int, sequence: int, transaction_id: int, at_ms: int) -> None:
        """The message is in the log: by its record, or by the answer to the append. ``at_ms``: of the record's append,
        Unix time; told twice it changes nothing."""
        if not producer:
            return
        self._under_way.discard((producer, sequence))
        known = self._producers.pop(producer, None) or _Producer()
        self._producers[producer] = known
        known.minute = max(known.minute, at_ms // _MINUTE_MS)
        known.highest = max(known.highest, sequence)
        if sequence not in known.known and not is_too_old(sequence, known.highest, self._window):
            known.known[sequence] = transaction_id  # the first one, should there be two in spite of all
            heapq.heappush(known.order, sequence)
            self._count += 1
        while known.order and is_too_old(known.order[0], known.highest, self._window):
            del known.known[heapq.heappop(known.order)]
            self._count -= 1
        self._make_room(known.minute)

    def fold(self, records: Iterable[tuple[int, int, int, int]]) -> None:
        """Records of the log, in their order: (producer, sequence, transaction ID, time of the append in ms)."""
        for producer, sequence, transaction_id, at_ms in records:
            self.appended(producer, sequence, transaction_id, at_ms)

    def forget_idle(self, now_ms: int) -> None:
        """Forget who has sent nothing for long."""
        self._make_room(now_ms // _MINUTE_MS)

    def _make_room(self, now_minute: int) -> None:
        while self._producers:
            quietest = next(iter(self._producers))
            known = self._producers[quietest]
            if not is_past_minutes(known.minute, now_minute):
                if self._count <= self._most or len(self._producers) == 1:
                    return
                self.forgotten_early += 1
            self._count -= len(known.known)
            del self._producers[quietest]
