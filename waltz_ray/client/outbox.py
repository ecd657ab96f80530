"""Where appends wait to be sent, and what bounds a client.

An append is *open* from ``offer`` until ``forget``. From ``offer`` until ``free`` its records and bytes count against
the limits, whether it waits here, is under way, or waits to be sent again. At the limit ``offer`` refuses, and says
when to try again. One append larger than the limit passes when nothing else counts.

A fate is ``free``, then the future's result, then ``forget``: a callback of the future finds room for the next append,
and whoever looks for open appends misses none whose future has no result yet.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable

from waltz_ray.client.requests import AppendCall, ManyAppend, Sending, Unsent
from waltz_ray.config import ClientConfig
from waltz_ray.errors import PartitionNotReady, WaltzError
from waltz_ray.protocol.client_monitor import Piece

__all__ = ["Bell", "Outbox"]


class Bell:
    """Makes the loop look, once for all who ring until it does. Its owner clears ``rung`` *before* it looks."""

    __slots__ = ("_look", "_post", "rung")

    def __init__(self, post: Callable[[Callable[[], None]], None], look: Callable[[], None]) -> None:
        self._post = post
        self._look = look
        self.rung = False
        """The loop is going to look: nobody needs to ring."""

    def ring(self) -> None:
        """Have the loop look at the outbox soon; from any thread."""
        self.rung = True
        self._post(self._look)


class Outbox:
    """The open appends of one partition.

    ``offer``, ``give_up`` and ``open_appends`` for any thread, the rest for the client's loop.
    ``bell`` is rung when there is something to send.
    """

    def __init__(self, partition_id: int, config: ClientConfig, monotonic: Callable[[], float], bell: Bell) -> None:
        self.partition_id = partition_id
        self._monotonic = monotonic
        self._bell = bell
        self._lock = threading.Lock()
        self._when_room: list[Callable[[], None]] = []
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

    def offer(self, append: AppendCall, when_room: Callable[[], None] | None = None) -> bool:
        """Take it, to be sent. False at the limits: then ``when_room`` is called once, as soon as there may be room.

        Raises what the outbox was closed with.
        """
        count = append.count
        size = len(append.data)
        with self._lock:
            if self._error is not None:
                raise type(self._error)(*self._error.args)
            if self._records and (self._records + count > self._max_records or self._bytes + size > self._max_bytes):
                if when_room is not None:
                    self._when_room.append(when_room)
                return False
            self._records += count
            self._bytes += size
            self.appends += count
            append.since = self._monotonic()
            self._open[append] = None
            self._queue.append(append if append.__class__ is AppendCall else _whole(append))
        if not self._bell.rung:  # it is cleared before the loop looks, so an append is never overlooked
            self._bell.ring()
        return True

    def give_up(self, when_room: Callable[[], None]) -> None:
        """Whoever offered does not wait any longer."""
        with self._lock:
            if when_room in self._when_room:
                self._when_room.remove(when_room)

    def no_room_error(self) -> PartitionNotReady:
        """The error for whoever has waited for room as long as may be."""
        return PartitionNotReady(
            f"partition {self.partition_id}: {self._records} appends ({self._bytes} bytes) are without a fate "
            f"and none got one within {self._timeout_ms} ms; this one was not sent"
        )

    @property
    def blocked(self) -> int:
        """Who waits for room."""
        return len(self._when_room)

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
            self._queue[0] = Piece(append, start + fitting, size - fitting, 0)
        return Piece(append, start, fitting, 0)

    def put_back(self, pieces: Iterable[Unsent]) -> None:
        """Send these appends again, before what waits: they are known not to be in the log."""
        now = self._monotonic()
        for one in reversed(list(pieces)):
            _append_of(one).since = now
            self._queue.appendleft(one)

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
        """Nobody wants it any more. True if nothing of it had been sent: it is gone. Else its fate is still to come."""
        with self._lock:
            if append not in self._open:
                return True
            for one in self._queue:
                if _append_of(one) is append and _is_whole(one):
                    break
            else:
                return False
            self._queue.remove(one)
        self.free([append])
        self.forget([append])
        return True

    def free(self, appends: Iterable[AppendCall]) -> None:
        """Give the room of these appends to others, once for each: they have their fates."""
        told: list[Callable[[], None]] = []
        with self._lock:
            for append in appends:
                if append in self._open:  # else the outbox was closed
                    self._records -= append.count
                    self._bytes -= len(append.data)
            if self._when_room:
                told, self._when_room = self._when_room, []
        for when_room in told:
            when_room()

    def forget(self, appends: Iterable[AppendCall]) -> None:
        """The futures of these have their results."""
        with self._lock:
            for append in appends:
                self._open.pop(append, None)

    def close(self, error: WaltzError) -> list[AppendCall]:
        """Every later ``offer`` raises ``error``; takes out what is open."""
        with self._lock:
            self._error = error
            left = list(self._open)
            self._open.clear()
            self._queue.clear()
            self._records = self._bytes = 0
            told, self._when_room = self._when_room, []
        for when_room in told:
            when_room()
        return left


def _whole(append: AppendCall) -> Piece[ManyAppend]:
    assert isinstance(append, ManyAppend)
    return Piece(append, 0, append.count, 0)


def _append_of(one: Unsent) -> AppendCall:
    return one if isinstance(one, AppendCall) else one.token


def _is_whole(one: Unsent) -> bool:
    return isinstance(one, AppendCall) or one.size == one.token.count
