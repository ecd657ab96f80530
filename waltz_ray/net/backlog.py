"""A stream whose frames are handed on only as long as there is room: what a port for strangers needs.

What has come and may not be handed on yet (too much is outstanding, or the peer does not take its answers) waits in a
backlog, and nothing more is read: it is at most what one read had. How much of a frame that is not whole is kept is
bounded for all connections together, and it has to be whole in some time.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from waltz_ray.errors import WireError
from waltz_ray.net.framer import Framer
from waltz_ray.net.limit import ConnectionLimit
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.net.room import Room
from waltz_ray.net.stream import Patience, Stream

__all__ = ["BacklogLimits", "BackloggedStream"]

_TURN_S = 0.01

F = TypeVar("F")
Entry = TypeVar("Entry")


class BoundedFramer(Framer[F], Protocol[F]):
    """A framer that says what is wrong behind the last good frame, and cuts nothing more then."""

    @property
    def error(self) -> WireError | None: ...


@dataclass(frozen=True)
class BacklogLimits:
    """``outstanding``: what one connection may have without an answer. ``frame_ms``: until a long frame is whole."""

    outstanding: int
    frame_ms: int


class BackloggedStream(Stream[F], Generic[F, Entry]):
    """One connection. The subclass makes entries of frames (``on_frame``), counts ``outstanding`` and calls ``_stall``
    at too many, and gives its framer ``_hold``."""

    def __init__(
        self,
        framer: BoundedFramer[F],
        outgoing: Outgoing,
        patience: Patience,
        admission: ConnectionLimit,
        limits: BacklogLimits,
        room: Room,
        frames_room: Room,
    ) -> None:
        """``room``: of what is outstanding; ``frames_room``: of frames that are not whole; of all connections."""
        super().__init__(framer, outgoing, patience, admission)
        self.outstanding = 0
        """What has no answer."""
        self._bounded_framer = framer
        self._backlog_limits = limits
        self._room = room
        self._frames_room = frames_room
        self._backlog: deque[Entry] = deque()
        self._stalled = False  # what comes goes to the backlog
        self._catching_up = False  # a look at the backlog is due
        self._leaving = False  # it is about to end: nothing more is taken
        self._held_bytes = 0  # of a frame that is not whole

    @abstractmethod
    def _handle(self, entry: Entry) -> None:
        """Hand it on, or ``_put_back``."""

    def _take(self, entry: Entry) -> None:
        """It has come."""
        if self._stalled:
            self._backlog.append(entry)
        else:
            self._handle(entry)

    def _put_back(self, entry: Entry) -> None:
        """There is no room for what it asks: it waits until there is some."""
        self._backlog.appendleft(entry)
        self._stall()
        self._room.waiting[self._look_again] = None

    def _hold(self, size: int) -> bool:
        """Whether there is room for so much of a frame that is not whole."""
        more = size - self._held_bytes
        if more > 0 and not self._frames_room.fits(more):
            return False
        if more < 0:
            self._frames_room.give(-more)
        self._held_bytes = size
        if not size:
            self._wait_no_more("frame")
        elif not self._stalled:
            self._await_frame()
        return True

    def _await_frame(self) -> None:
        limit_ms = self._backlog_limits.frame_ms
        self._wait("frame", limit_ms, f"a frame is not whole after {limit_ms} ms")

    def _stall(self) -> None:
        if not self._stalled:
            self._stalled = True
            self.hold_input("backlog")
            self._wait_no_more("frame")  # its rest is not read

    def _look_again(self) -> None:
        if self._stalled and not self._catching_up and not self._leaving:
            self._catching_up = True
            self._loop.call_soon(self._catch_up)

    def _one_less(self) -> None:
        """Something outstanding has its answer: look whether more may be taken."""
        if self._stalled and not self._catching_up and self.outstanding <= self._backlog_limits.outstanding // 2:
            self._look_again()

    def _catch_up(self) -> None:
        """Hand on what has waited, for some milliseconds; read again when it is all done."""
        self._catching_up = False
        until, most = time.monotonic() + _TURN_S, self._backlog_limits.outstanding
        with self._outgoing:
            while not (self.ended or self._leaving or self.busy or self.outstanding >= most):
                if not self._backlog:
                    self._stalled = False
                    self.release_input("backlog")
                    if self._held_bytes:
                        self._await_frame()
                    self.on_turn_end()
                    return
                waiting = len(self._backlog)
                self._handle(self._backlog.popleft())
                if len(self._backlog) == waiting:  # put back: it waits for room
                    return
                if time.monotonic() > until:
                    self._look_again()
                    return

    def on_busy(self) -> None:
        self._stall()

    def on_writable(self) -> None:
        self._look_again()

    def on_turn_end(self) -> None:
        """What is wrong behind the last good frame ends the connection once the good ones are handled."""
        error = self._bounded_framer.error
        if error is not None and self._cause is None and not self._frames and not self._backlog:
            self._broken(error)

    def on_closed(self, error: Exception) -> None:
        self._frames_room.give(self._held_bytes)
        self._held_bytes = 0
        self._backlog.clear()
        self._room.waiting.pop(self._look_again, None)
