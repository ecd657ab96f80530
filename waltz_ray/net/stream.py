"""An asyncio stream of frames: whole frames in, whole frames out, one end. For servers, for links, for clients.

What cuts the frames is given (``framer``). The subclass gets ``on_ready`` once the peer has said what has to come
first, ``on_frame`` for each frame after that, and ``on_closed`` exactly once.

What one peer has sent at once may be thousands of frames. They are worked off for some milliseconds a turn of the
loop; until all are done nothing more is read from that peer. What a peer can make this side keep is bounded in the same
way: ``on_busy`` says that it does not take what it is sent, ``on_writable`` that it has taken most of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from waltz_ray.errors import AuthenticationFailed, WireError
from waltz_ray.net.carried import Carried, carried
from waltz_ray.net.connector import Opening, keep_alive
from waltz_ray.net.framer import Framer
from waltz_ray.net.handshake import Handshake, Prove, handshake_of
from waltz_ray.net.limit import ConnectionLimit
from waltz_ray.net.outgoing import Outgoing, Outlet
from waltz_ray.net.tls import peer_channel
from waltz_ray.wire.authentication import AUTHENTICATION_VERSION
from waltz_ray.wire.framing import MAGIC_AUTHENTICATION, GreetedDecoder, Hello, encode_frame, encode_hello

__all__ = ["FOREVER", "GreetedStream", "Patience", "Stream", "least_bytes"]

log = logging.getLogger(__name__)

_LEAST_BYTES_PER_S = 1024
_TURN_S = 0.01  # half of what any step of a server's loop may take (docs/wire.md, "Limits")

F = TypeVar("F")


def least_bytes(timeout_ms: int) -> int:
    """Who gets on by less in this time with what is long, one way or the other, stands still."""
    return max(1, timeout_ms * _LEAST_BYTES_PER_S // 1000)


@dataclass(frozen=True)
class Patience:
    """How much of a peer's silence is put up with. 0: all of it."""

    first_ms: int = 0
    """From being connected until it has said what has to come first."""
    untaken_ms: int = 0
    """While it takes too little of what waits for it, less than 1 KiB a second: over a thin line it takes its time."""
    busy_bytes: int = 0
    """At so many unsent bytes it does. 0: what the transport thinks."""


FOREVER = Patience()


class Stream(Opening, Generic[F]):
    """One connection. All methods run in the event loop."""

    def __init__(
        self,
        framer: Framer[F],
        outgoing: Outgoing,
        patience: Patience = FOREVER,
        limit: ConnectionLimit | None = None,
        first: bytes = b"",
    ) -> None:
        """``limit`` may refuse the peer's address; ``first`` is sent as soon as it is connected."""
        self.address = "?"
        """Of the peer's host."""
        self.peer = "?"
        """Who it is, for the log."""
        self.ended = False
        self.busy = True
        """So much is unsent that it is better to gather more; also before it is connected."""
        self._framer = framer
        self._ready = False
        self._frames: deque[F] = deque()  # have come and are not worked off
        self._holds: set[str] = set()  # why nothing is read from the peer at the moment
        self._outgoing = outgoing
        self._patience = patience
        self._limit = limit
        self._lines = None if limit is None else limit.lines
        self._first = first
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._transport: asyncio.Transport | None = None
        self._outlet: Outlet | None = None
        self._loop = asyncio.get_running_loop()
        self._cause: Exception | None = None  # of its end, if that is known on this side

    # ---- for the subclass -------------------------------------------------------------------------------

    def on_ready(self) -> None:
        """The peer has said what has to come first. A WireError raised here closes the connection."""

    def on_frame(self, frame: F) -> None:
        """One frame. A WireError raised here closes the connection after ``on_protocol_error``."""
        raise NotImplementedError

    def on_turn_end(self) -> None:
        """All frames of this turn have been handled, or one of them was wrong."""

    def on_busy(self) -> None:
        """The peer does not take what it is sent: what can wait should."""

    def on_writable(self) -> None:
        """Called when the peer has taken most of what was waiting to be written."""

    def on_protocol_error(self, error: WireError) -> None:
        """The peer broke the protocol; the connection is closed right after, once what is unsent has left."""

    def on_broken(self, error: WireError) -> None:
        """The peer broke the protocol, or could not prove who it is: a line for the log."""
        self.say(log, logging.WARNING, "closing the connection with %s: %s", self.peer, error)

    def on_impatience(self, reason: str) -> None:
        """The peer has taken too long, or too much, and the connection is closed right after: a line for the log."""
        self.say(log, logging.WARNING, "closing the connection with %s: %s", self.peer, reason)

    def on_closed(self, error: Exception) -> None:
        """The connection is gone, because of ``error``; who it was is in it. Called once."""

    def say(self, logger: logging.Logger, level: int, text: str, *arguments: object) -> None:
        """A line for the log, of those that there may be about the connections of one port."""
        if self._lines is None:
            logger.log(level, text, *arguments)
        else:
            self._lines.say(logger, level, text, *arguments)

    def hold_input(self, why: str) -> None:
        """Read nothing from the peer until ``release_input(why)``; what has been read already is still handled."""
        if not self._holds and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
        self._holds.add(why)

    def release_input(self, why: str) -> None:
        """The reason ``why`` is over."""
        if why not in self._holds:
            return
        self._holds.remove(why)
        if not self._holds and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    @property
    def reads(self) -> bool:
        """Whether what the peer sends is read at the moment."""
        return not self._holds

    # ---- out --------------------------------------------------------------------------------------------

    def send_bytes(self, frame: bytes) -> None:
        """Send one whole frame: at once, or with the others of this piece of input (``outgoing``)."""
        if self._outlet is not None and not self.ended:
            self._outlet.write(frame)

    def send_held(self) -> None:
        """Send now what is held (``outgoing``)."""
        if self._outlet is not None and not self.ended:
            self._outlet.flush()

    def send_pieces(self, pieces: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send one whole frame that is too large to be joined, at once."""
        if self._outlet is not None and self._transport is not None and not self._transport.is_closing():
            if self._outlet.held:
                self._outlet.flush()
            if isinstance(self._loop, asyncio.BaseEventLoop):
                # Its own writelines, from Python 3.12 on, does not always tell a protocol to pause (CVE-2024-12254)
                # and fails once the peer has gone; until then it joined, too. uvloop's is sound.
                self._transport.write(b"".join(pieces))
            else:
                self._transport.writelines(pieces)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the peer has not taken yet."""
        return 0 if self._outlet is None else self._outlet.unsent_bytes

    def carried(self) -> Carried | None:
        """What has gone through it so far; None if that is not known."""
        return None if self._transport is None else carried(self._transport.get_extra_info("socket"))

    def abort(self, why: str | Exception) -> None:
        """Close at once, dropping what is unsent; if it is not connected yet, as soon as it is."""
        self._because(why)
        if self._outlet is not None and not self.ended:
            self._outlet.abort()

    def give_up(self, reason: str) -> None:
        """The peer has taken too long, or too much."""
        self.on_impatience(reason)
        self.abort(reason)

    def finish(self, why: str | Exception) -> None:
        """Close after what is unsent has been sent, unless the peer takes too long for that."""
        self._because(why)
        if self._outlet is not None and not self.ended:
            self._outlet.close()
            if self.unsent_bytes:
                self._await_taking()

    def _because(self, why: str | Exception) -> None:
        if self._cause is None:
            self._cause = why if isinstance(why, Exception) else ConnectionAbortedError(f"{self.peer}: {why}")

    def _wait(self, what: str, timeout_ms: int, reason: str) -> None:
        """Abort after so long, unless ``_wait_no_more(what)``."""

        if timeout_ms and what not in self._timers:
            self._timers[what] = self._loop.call_later(timeout_ms / 1000, self.give_up, reason)

    def _await_taking(self) -> None:
        timeout_ms = self._patience.untaken_ms
        if timeout_ms and "taking" not in self._timers:
            there = self.carried()
            taken = 0 if there is None else there.acknowledged_bytes
            self._timers["taking"] = self._loop.call_later(timeout_ms / 1000, self._look_what_is_taken, taken)

    def _look_what_is_taken(self, before: int) -> None:
        """``before``: what it had taken in all when the clock was set."""
        timeout_ms, there = self._patience.untaken_ms, self.carried()
        taken = 0 if there is None else there.acknowledged_bytes - before
        if self._cause is None and taken >= least_bytes(timeout_ms):
            self._wait_no_more("taking")
            self._await_taking()
        else:
            some = f"only {taken}" if taken else "nothing"
            self.give_up(f"it has taken {some} of {self.unsent_bytes} bytes for {timeout_ms} ms")

    def _wait_no_more(self, what: str) -> None:
        timer = self._timers.pop(what, None)
        if timer is not None:
            timer.cancel()

    # ---- asyncio ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address, self.peer = (str(peer[0]), f"{peer[0]}:{peer[1]}") if isinstance(peer, tuple) else [str(peer)] * 2
        if self._limit is not None and not self._limit.admits(self.address):
            self._limit = None
            self._because("too many connections")
        if self._cause is not None:  # also: nobody waits for it any more
            self._transport.abort()
            return
        keep_alive(transport.get_extra_info("socket"))
        if self._patience.busy_bytes:
            self._transport.set_write_buffer_limits(high=self._patience.busy_bytes)
        self.busy = False
        self._outlet = Outlet(self._outgoing, self._transport)
        self._wait("first", self._patience.first_ms, f"no HELLO for {self._patience.first_ms} ms")
        if self._first:
            self._outlet.write(self._first)

    def data_received(self, data: bytes) -> None:
        outgoing = self._outgoing
        outgoing.depth += 1  # as "with outgoing", which is two calls for each piece
        try:
            frames: Sequence[F] = self._framer.feed(data)
            if not self._ready:
                frames = self._before_the_first(frames)
            self._frames.extend(frames)
            self._work_off()
        except WireError as error:
            self._broken(error)
            self.on_turn_end()
        finally:
            outgoing.depth -= 1
            if outgoing.filled and not outgoing.depth:
                outgoing.flush()

    def _before_the_first(self, frames: Sequence[F]) -> Sequence[F]:
        """What of the frames is for ``on_frame``."""
        if self._framer.ready:
            self._begin()
        return frames

    def _begin(self) -> None:
        self._ready = True
        self._wait_no_more("first")
        self.on_ready()

    def _work_off(self) -> None:
        frames, until = self._frames, time.monotonic() + _TURN_S
        try:
            while frames:
                if self.ended:
                    return
                self.on_frame(frames.popleft())
                if frames and time.monotonic() > until:
                    self.hold_input("frames")
                    self._loop.call_soon(self._go_on)
                    return
        except WireError as error:
            self._broken(error)
        finally:
            self.on_turn_end()

    def _go_on(self) -> None:
        self.release_input("frames")
        with self._outgoing:
            self._work_off()

    def _broken(self, error: WireError) -> None:
        self._frames.clear()
        self.on_broken(error)
        kind = AuthenticationFailed if isinstance(error, AuthenticationFailed) else WireError
        self._because(kind(f"{self.peer}: {error}"))
        self.on_protocol_error(error)
        self.finish(error)

    def pause_writing(self) -> None:
        self.busy = True
        self._await_taking()
        self.on_busy()

    def resume_writing(self) -> None:
        self.busy = False
        self._wait_no_more("taking")
        if self.unsent_bytes and self._transport is not None and self._transport.is_closing():
            self._await_taking()  # it has taken some, and has to take the rest
        self.on_writable()

    def eof_received(self) -> bool:
        try:
            if self._cause is None:
                self._framer.eof()
        except WireError as error:
            self.say(log, logging.WARNING, "%s: %s", self.peer, error)
            self._because(WireError(f"{self.peer}: {error}"))
        if self.unsent_bytes:  # the transport closes once that is taken: by a peer that may only have stopped sending
            self._await_taking()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        if self.ended:
            return
        self.ended = True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._frames.clear()
        if self._outlet is not None:
            self._outlet.lost()
        if self._limit is not None:
            self._limit.left(self.address)
        self.on_closed(self._cause or self._named(exc))

    def _named(self, exc: Exception | None) -> Exception:
        if isinstance(exc, OSError) and exc.errno is not None:
            return OSError(exc.errno, f"{self.peer}: {exc.strerror}")
        return exc or ConnectionResetError(f"{self.peer}: closed by the peer")


class GreetedStream(Stream[memoryview]):
    """A stream of our own frames, HELLO first; frames are payloads of ``magic`` in ``version``."""

    def __init__(
        self,
        magic: int,
        versions: tuple[int, ...],
        max_frame_bytes: int,
        greeting: str,
        outgoing: Outgoing,
        patience: Patience = FOREVER,
        limit: ConnectionLimit | None = None,
        prove: Prove | None = None,
    ) -> None:
        """``greeting`` says who this is, for the peer's log. ``prove``: what comes behind the HELLOs."""
        self.version = -1
        """Agreed on; -1 before the peer's HELLO."""
        self._prove = prove
        self._handshake: Handshake | None = None
        self._greeted = GreetedDecoder(magic, versions, max_frame_bytes, authenticates=prove is not None)
        super().__init__(self._greeted, outgoing, patience, limit, encode_hello(Hello(versions, greeting)))

    def on_ready(self) -> None:
        """HELLOs are exchanged, what was to be proved is, ``version`` is set."""
        self.version = self._greeted.version

    def _before_the_first(self, frames: Sequence[memoryview]) -> Sequence[memoryview]:
        if not self._greeted.authenticating:
            return super()._before_the_first(frames)
        if self._handshake is None:
            assert self._prove is not None
            self._handshake = handshake_of(self._prove, self._encryption())
            self._say(self._handshake, self._handshake.begin())
        for payload in frames:
            self._say(self._handshake, self._handshake.take(payload))
        if self._handshake.done:
            self._greeted.admit()
            self._begin()
        return ()

    def _encryption(self) -> bytes:
        return b"" if self._transport is None else peer_channel(self._transport.get_extra_info("ssl_object"))

    def _say(self, handshake: Handshake, payload: bytes | None) -> None:
        if payload is not None:
            self.send_bytes(encode_frame(MAGIC_AUTHENTICATION, AUTHENTICATION_VERSION, payload))
        if handshake.failure:
            raise AuthenticationFailed(handshake.failure)

    def _broken(self, error: WireError) -> None:
        self.version = self._greeted.version  # what is wrong may have come with the HELLO
        super()._broken(error)
