"""Where appends wait to be sent, and what bounds a client.

An append is *open* from when it is taken until ``forget``. From then until ``free`` its records and bytes count against
the limits, whether it waits here, is under way, or waits to be sent again. At the limit ``offer`` refuses, and
``stand_in_line`` waits: first come, first served, and nobody is woken in vain. One append larger than the limit passes
when nothing else counts.

A fate is ``free``, then the future's result, then ``forget``: a callback of the future finds room for the next append
before it is given to who stands in line, and whoever looks for open appends misses none whose future has no result yet.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from waltz_ray.client.requests import AppendCall, ManyAppend, Sending, Unsent
from waltz_ray.config import ClientConfig
from waltz_ray.errors import AppendFailed, OutboxFull, PartitionNotReady, WaltzError
from waltz_ray.protocol.client_monitor import Piece

__all__ = ["Bell", "Outbox", "Told", "order_of"]


Told = Callable[[WaltzError | None], None]
"""Tells who stands in line that his append has been taken, or why it never will be."""


class Bell:
    """Makes the loop look, once for all who ring until it does. Its owner clears ``rung`` *before* it looks."""

    __slots__ = ("_look", "_post", "rung")

    def __init__(self, post: Callable[..., None], look: Callable[[], None]) -> None:
        self._post = post
        self._look = look
        self.rung = False
        """The loop is going to look: nobody needs to ring."""

    def ring(self) -> None:
        """Have the loop look at the outbox soon; from any thread."""
        self.rung = True
        try:
            self._post(self._look)
        except BaseException:  # Ctrl-C: it may not have been posted, and nobody would ring again
            self.rung = False
            raise

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call ``function(*args)`` on the loop."""
        self._post(function, *args)


class Outbox:
    """The open appends of one partition.

    ``offer``, ``take_back``, ``stand_in_line``, ``leave_line`` and ``open_appends`` for any thread, the rest for the
    client's loop.
    ``bell`` is rung when there is something to send.
    """

    def __init__(self, partition_id: int, config: ClientConfig, monotonic: Callable[[], float], bell: Bell) -> None:
        self.partition_id = partition_id
        self._monotonic = monotonic
        self._bell = bell
        self._lock = threading.Lock()
        self._line: dict[AppendCall, Told] = {}  # for room, in their order
        self._queue: deque[Unsent] = deque()
        self._open: dict[AppendCall, None] = {}  # in their order: they end in it when the client is closed
        self._records = 0
        self._bytes = 0
        self._max_records = config.outstanding_appends
        self._max_bytes = config.outstanding_bytes
        self._timeout_ms = config.mount_timeout_ms
        self._error: WaltzError | None = None
        self.appends = 0
        """Records ever taken."""
        self.hindrance = ""
        """Why they wait, as the server has said when it was asked; for errors."""

    def offer(self, append: AppendCall, ahead: bool = False) -> bool:
        """Take it, to be sent. False at the limits, or where others stand in line, unless it may go ``ahead`` of them.

        Raises what the outbox was closed with.
        """
        unsent, now_s = append if append.__class__ is AppendCall else _whole(append), self._monotonic()
        try:
            with self._lock:
                if self._error is not None:
                    raise self._closed_error(self._error)
                if self._line and not ahead:
                    return False
                # As in _has_room and _take_in, without the price of two calls: this is most of what an append costs.
                records, size = self._records + append.count, self._bytes + len(append.data)
                if self._records and (records > self._max_records or size > self._max_bytes):
                    return False
                # Whole or not at all: Python looks for Ctrl-C where something is called, and that is the last line.
                self._records, self._bytes = records, size
                self.appends += append.count
                append.number = self.appends
                append.since = now_s
                self._open[append] = None
                self._queue.append(unsent)
            if not self._bell.rung:  # it is cleared before the loop looks, so an append is never overlooked
                self._bell.ring()
        except BaseException:
            if append in self._open:  # Ctrl-C
                self.take_back(append)
            raise
        return True

    def take_back(self, append: AppendCall) -> None:
        """Who has just appended it was interrupted, and does not know it: it is not sent, if that has not begun. For
        any thread."""
        self._bell.call(self._take_back, append)
        self._bell.ring()  # others may have counted on it

    def _take_back(self, append: AppendCall) -> None:
        if self.withdraw(append):  # else it has its fate, or will have it: who waits for all of them sees that
            append.fail(
                AppendFailed(f"partition {self.partition_id}: who appended it was interrupted; it was not sent")
            )

    def stand_in_line(self, append: AppendCall, told: Told) -> None:
        """Take it as soon as there is room; ``told`` is called then, or when the outbox is closed, on any thread."""
        with self._lock:
            error = self._error
            waits = error is None and (bool(self._line) or not self._has_room(append))
            if waits:
                self._line[append] = told
            elif error is None:
                self._take_in(append)  # there was none a moment ago
        if error is not None:
            told(self._closed_error(error))
        elif not waits:
            if not self._bell.rung:
                self._bell.ring()
            told(None)

    def leave_line(self, append: AppendCall) -> bool:
        """True: it does not wait for room any more. False: it did not, its waiter has been told or is being told."""
        with self._lock:
            left = self._line.pop(append, None) is not None
        self._admit()  # it may have been in the way of a smaller one
        return left

    def _has_room(self, append: AppendCall) -> bool:
        records, size = self._records + append.count, self._bytes + len(append.data)
        return not self._records or (records <= self._max_records and size <= self._max_bytes)

    def _take_in(self, append: AppendCall) -> None:
        unsent, now_s = append if append.__class__ is AppendCall else _whole(append), self._monotonic()
        self._records += append.count
        self._bytes += len(append.data)
        self.appends += append.count
        append.number = self.appends
        append.since = now_s
        self._open[append] = None
        self._queue.append(unsent)

    def _admit(self) -> None:
        """Those in line that there is room for."""
        taken: list[Told] = []
        with self._lock:
            while self._line:
                append = next(iter(self._line))
                if not self._has_room(append):
                    break
                taken.append(self._line.pop(append))
                self._take_in(append)
        if taken and not self._bell.rung:
            self._bell.ring()
        for told in taken:
            told(None)

    @staticmethod
    def _closed_error(error: WaltzError) -> WaltzError:
        """Another one for each who is told: a traceback belongs to one."""
        return type(error)(*error.args)

    def no_room_error(self) -> PartitionNotReady:
        """The error for whoever has waited for room as long as may be."""
        return PartitionNotReady(
            f"partition {self.partition_id}: {self._records} appends ({self._bytes} bytes) are without a fate "
            f"and none got one within {self._timeout_ms} ms; this one was not sent{self.why}"
        )

    def full_error(self, waited_s: float) -> OutboxFull:
        """For who has waited for room as long as he wanted."""
        return OutboxFull(
            f"partition {self.partition_id}: {self._records} appends ({self._bytes} bytes) are without a fate "
            f"and no room came within {waited_s:g} s; this one was not sent: append it again{self.why}"
        )

    @property
    def why(self) -> str:
        """What an error about waiting ends with."""
        return f"; its server says: {self.hindrance}" if self.hindrance else ""

    @property
    def blocked(self) -> int:
        """Who stands in line for room."""
        return len(self._line)

    @property
    def outstanding(self) -> int:
        """Records without a fate."""
        return self._records

    def open_appends(self) -> list[AppendCall]:
        """Every append without a fate at this moment."""
        with self._lock:
            return list(self._open)

    @property
    def waiting(self) -> int:
        """Pieces that wait to be sent."""
        return len(self._queue)

    def take(self, max_records: int, max_bytes: int) -> Sending | None:
        """What goes into the next batch, oldest first; an append that is too large is cut. None: nothing may go."""
        taken: list[Unsent] = []
        queue, count, plain = self._queue, 0, True
        while queue and count < max_records:
            one = queue[0]
            if one.__class__ is AppendCall:
                size, records = one.size_bytes, 1
            else:
                append, start, records, _ = one  # type: ignore[misc]
                size = append.size_of(start, records)
            if count + records > max_records or size > max_bytes:
                part = self._take_part(one, max_records - count, max_bytes, not taken)
                if part is not None:
                    taken.append(part)
                    count += 1 if isinstance(part, AppendCall) else part.size
                    plain = plain and isinstance(part, AppendCall)
                break
            taken.append(one)
            queue.popleft()
            count += records
            max_bytes -= size
            plain = plain and one.__class__ is AppendCall
        return Sending(taken, count, plain) if taken else None

    def _take_part(self, one: Unsent, max_records: int, max_bytes: int, first: bool) -> Unsent | None:
        """The part of ``one``, the head of the queue, that fits; of the first at least one record."""
        if isinstance(one, AppendCall):
            if first:
                self._queue.popleft()
            return one if first else None
        if not first and max_bytes <= 0:
            return None
        append, start, size, _ = one
        fitting = append.fitting(start, size, max_records, max_bytes)
        if not first and append.size_of(start, fitting) > max_bytes:
            return None
        if fitting == size:
            self._queue.popleft()
        else:
            append.divided = True
            self._queue[0] = Piece(append, start + fitting, size - fitting, 0)
        return Piece(append, start, fitting, 0)

    def put_back(self, pieces: Iterable[Unsent]) -> None:
        """Send these appends again, before what was taken later: they are known not to be in the log."""
        back, now, queue = sorted(pieces, key=order_of), self._monotonic(), self._queue
        for one in back:
            _append_of(one).since = now
        if back:
            before, last = [], order_of(back[-1])
            while queue and order_of(queue[0]) < last:
                before.append(queue.popleft())  # these were put back a moment ago
            queue.extendleft(sorted(back + before, key=order_of, reverse=True))

    def take_older(self, waited_s: float) -> list[AppendCall]:
        """Take out the appends that have waited for so long.

        Only whole ones: where a part has been sent, its fate may still be open.
        """
        before = self._monotonic() - waited_s
        with self._lock:
            old = [one for one in self._queue if _is_whole(one) and _append_of(one).since < before]
            if old:
                gone = set(old)
                self._queue = deque(one for one in self._queue if one not in gone)
        return [_append_of(one) for one in old]

    def withdraw(self, append: AppendCall) -> bool:
        """Nobody wants it any more: what of it has not been sent never will be, and nothing of it is sent again.

        True if none of it is under way: it is gone. Else the fate of what has been sent is still to come.
        """
        append.retry = False
        with self._lock:
            if append not in self._open:
                return True
            if isinstance(append, ManyAppend):
                append.dropped += self._drop({append})
                if append.dropped < append.missing:
                    return False
            elif append in self._queue:
                self._queue.remove(append)
            else:
                return False
        self.free([append])
        self.forget([append])
        return True

    def drop(self, appends: Iterable[AppendCall]) -> None:
        """These end in an error though parts of them may still wait here: those are not sent any more."""
        cut = {one for one in appends if isinstance(one, ManyAppend) and one.divided}
        if cut:
            with self._lock:
                self._drop(cut)

    def _drop(self, appends: set[ManyAppend]) -> int:
        """Records taken out of the queue."""
        pieces = [one for one in self._queue if isinstance(one, Piece) and one.token in appends]
        if pieces:
            self._queue = deque(one for one in self._queue if _append_of(one) not in appends)
        return sum(piece.size for piece in pieces)

    def free(self, appends: Iterable[AppendCall]) -> None:
        """Give the room of these appends to others, once for each: they have their fates. ``forget`` follows."""
        with self._lock:
            for append in appends:
                if append in self._open:  # else the outbox was closed
                    self._records -= append.count
                    self._bytes -= len(append.data)

    def forget(self, appends: Iterable[AppendCall]) -> None:
        """The futures of these have their results."""
        with self._lock:
            for append in appends:
                self._open.pop(append, None)
        if self._line:
            self._admit()

    def close(self, error: WaltzError, unsent: WaltzError) -> list[tuple[AppendCall, WaltzError]]:
        """Every later ``offer`` raises ``unsent``. Takes out what is open: each with ``unsent`` or else ``error``."""
        with self._lock:
            self._error = unsent
            waiting = {_append_of(one) for one in self._queue if _is_whole(one)}
            left = [(append, unsent if append in waiting else error) for append in self._open]
            self._open.clear()
            self._queue.clear()
            self._records = self._bytes = 0
            line, self._line = self._line, {}
        for told in line.values():
            told(self._closed_error(unsent))
        return left

    def leave_to_parent(self, unsent: WaltzError) -> None:
        """In a forked child: every later ``offer`` raises ``unsent``; what is open is the parent's."""
        self._lock = threading.Lock()  # whoever held it is in the parent
        self._error = unsent


def _whole(append: AppendCall) -> Piece[ManyAppend]:
    assert isinstance(append, ManyAppend)
    return Piece(append, 0, append.count, 0)


def _append_of(one: Unsent) -> AppendCall:
    return one if isinstance(one, AppendCall) else one.token


def order_of(one: Unsent) -> tuple[int, int]:
    """What is sent first: what was taken first, and of one append its first records."""
    return (one.number, 0) if isinstance(one, AppendCall) else (one.token.number, one.start)


def _is_whole(one: Unsent) -> bool:
    return isinstance(one, AppendCall) or one.size == one.token.count
