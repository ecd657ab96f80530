"""One connection to a topic port: each request gets at most one reply, and nothing it does makes it keep much.

What has come and may not be handed on yet (too much is outstanding, or the peer does not take its replies) waits in
``_backlog``, and nothing more is read: it is at most what one read had. What has waited for longer than its client does
is dropped without a reply: the client has given it up, and may have sent it again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Collection
from functools import partial

from waltz_ray.errors import BadPayload, InvalidInput, InvariantBroken
from waltz_ray.net.limit import ConnectionLimit
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.net.room import Room
from waltz_ray.net.stream import Patience, Stream
from waltz_ray.topics.codes import RpcMethod
from waltz_ray.topics.framing import HELD_FREELY, TopicFrame, TopicFramer, encode_frame
from waltz_ray.topics.messages import UnknownMethod
from waltz_ray.topics.rpc import FaultName, RpcAnswer, RpcCall, RpcFault, decode_call, encode_reply
from waltz_ray.topics.serving.port import RequestPort, TopicPortCounts, TopicPortLimits
from waltz_ray.topics.wire import TopicResponse, decode_request, encode_response

__all__ = ["TopicConnection", "TopicPortState"]

log = logging.getLogger(__name__)

_REQUEST_BYTES = 512  # of one that waits, besides its message
_TURN_S = 0.01


class TopicPortState:
    """What all connections of a port share."""

    def __init__(
        self, name: str, port: RequestPort, methods: Collection[RpcMethod], limits: TopicPortLimits, outgoing: Outgoing
    ) -> None:
        self.port = port
        self.methods = frozenset(map(int, methods))
        self.limits = limits
        self.outgoing = outgoing
        self.admission = ConnectionLimit(name, limits.connections, limits.connections_per_peer)
        self.room = Room(limits.outstanding_bytes)
        self.frames_room = Room(limits.incoming_bytes)
        self.counts = TopicPortCounts()
        self.connections: set[TopicConnection] = set()
        """Those that are open."""
        self.none_left = asyncio.Event()
        """Set when the last of them goes."""


class TopicConnection(Stream[TopicFrame]):
    """One client."""

    def __init__(self, shared: TopicPortState) -> None:
        limits = shared.limits
        self._framer_of_topics = TopicFramer(limits.blocks, self._hold)
        patience = Patience(limits.first_ms, limits.untaken_ms, limits.busy_bytes)
        super().__init__(self._framer_of_topics, shared.outgoing, patience, shared.admission)
        self.outstanding = 0
        """Requests without an answer."""
        self.stirred = True
        """Something has come since the last look (``look``)."""
        self._shared = shared
        self._limits = limits
        self._room = shared.room
        self._counts = shared.counts
        self._backlog: deque[tuple[TopicFrame, float]] = deque()
        self._arrived_s = 0.0  # what is in work: nothing more is read before all of it is handled, or in the backlog
        self._stalled = False  # what comes goes to the backlog
        self._catching_up = False  # a look at the backlog is due
        self._held_bytes = 0  # of a frame that is not whole

    # ---- in ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self.busy:  # it was admitted
            self._shared.connections.add(self)

    def data_received(self, data: bytes) -> None:
        self._arrived_s = time.monotonic()
        super().data_received(data)

    def on_frame(self, frame: TopicFrame) -> None:
        if self._stalled:
            self._backlog.append((frame, self._arrived_s))
        else:
            self._handle(frame, self._arrived_s)

    def _handle(self, frame: TopicFrame, arrived_s: float) -> None:
        serial, message = frame
        self.stirred = True
        if message is None:
            self._counts.no_room += 1
            text = f"no room for a long message: {self._shared.frames_room.used} bytes of others are coming in"
            self._send(serial, FaultName.OVERFLOW.fault(f"{text}; send it again later"), RpcMethod.SEND_MESSAGE)
            return
        if self._room.full and (self.outstanding or len(message) > HELD_FREELY):
            self._backlog.appendleft((frame, arrived_s))
            self._stall()
            self._room.waiting[self._look_again] = None
            return
        try:
            call = decode_call(message)
        except BadPayload as error:
            self._counts.nonsense += 1
            self._send(serial, FaultName.UNREADABLE.fault(str(error)), 0)
            return
        if call.is_late(int(1000 * (time.monotonic() - arrived_s))):
            self._counts.late += 1
        else:
            self._submit(serial, call, len(message) + _REQUEST_BYTES)

    def _submit(self, serial: int, call: RpcCall, size: int) -> None:
        if call.method not in self._shared.methods:
            self._counts.unknown += 1
            known = ", ".join(map(str, sorted(self._shared.methods)))
            text = f"there is no method {call.method} on this port: it has {known}"
            self._send(serial, FaultName.NO_METHOD.fault(text, call), call.method)
            return
        try:
            request = decode_request(call.method, call.request)
        except BadPayload as error:
            self._counts.nonsense += 1
            self._send(serial, FaultName.UNREADABLE.fault(str(error), call), call.method)
            return
        assert not isinstance(request, UnknownMethod)
        self._counts.requests += 1
        self._room.used += size
        self.outstanding += 1
        self._shared.port.submit(request, call, partial(self._answered, serial, call, size))
        if self.outstanding >= self._limits.outstanding:
            self._stall()

    def _answered(self, serial: int, call: RpcCall, size: int, answer: TopicResponse | RpcFault) -> None:
        self.outstanding -= 1
        if self.outstanding < 0:
            raise InvariantBroken(
                f"{self.peer}: a request was answered twice, the last one was of method {call.method}"
            )
        self._room.give(size)
        if self.ended:
            return
        if isinstance(answer, RpcFault):
            self._send(serial, answer, call.method)
        else:
            method, data = encode_response(answer)
            self._send(serial, RpcAnswer(method, data, call.service_type, call.protocol_ver), call.method)
        if self._stalled and not self._catching_up and self.outstanding <= self._limits.outstanding // 2:
            self._look_again()

    def _hold(self, size: int) -> bool:
        """Whether there is room for so much of a frame that is not whole."""
        more = size - self._held_bytes
        if more > 0 and not self._shared.frames_room.fits(more):
            return False
        if more < 0:
            self._shared.frames_room.give(-more)
        self._held_bytes = size
        if not size:
            self._wait_no_more("frame")
        elif not self._stalled:
            self._await_frame()
        return True

    def _await_frame(self) -> None:
        self._wait("frame", self._limits.frame_ms, f"a frame is not whole after {self._limits.frame_ms} ms")

    # ---- waiting ----------------------------------------------------------------------------------------

    def _stall(self) -> None:
        if not self._stalled:
            self._stalled = True
            self.hold_input("backlog")
            self._wait_no_more("frame")  # its rest is not read

    def _look_again(self) -> None:
        if self._stalled and not self._catching_up:
            self._catching_up = True
            self._loop.call_soon(self._catch_up)

    def _catch_up(self) -> None:
        """Hand on what has waited, for some milliseconds; read again when it is all done."""
        self._catching_up = False
        until = time.monotonic() + _TURN_S
        with self._outgoing:
            while not (self.ended or self.busy or self.outstanding >= self._limits.outstanding):
                if not self._backlog:
                    self._stalled = False
                    self.release_input("backlog")
                    if self._held_bytes:
                        self._await_frame()
                    self.on_turn_end()
                    return
                waiting = len(self._backlog)
                self._handle(*self._backlog.popleft())
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
        error = self._framer_of_topics.error
        if error is not None and self._cause is None and not self._frames and not self._backlog:
            self._broken(error)

    # ---- out --------------------------------------------------------------------------------------------

    def _send(self, serial: int, reply: RpcAnswer | RpcFault, method: int) -> None:
        try:
            frame = encode_frame(serial, encode_reply(reply))
        except InvalidInput as error:
            log.error("the reply to a request of method %d cannot be sent: %s", method, error)
            frame = encode_frame(serial, encode_reply(FaultName.OVERFLOW.fault(str(error))))
        self.send_bytes(frame)

    def look(self) -> None:
        """Called now and then: an end for who was quiet since the last look."""
        if not (self.stirred or self.outstanding or self.busy):
            self.finish(f"it has been idle for more than {self._limits.idle_ms} ms")
        self.stirred = False

    def on_impatience(self, reason: str) -> None:
        log.info("closing the connection with %s: %s", self.peer, reason)

    def on_closed(self, error: Exception) -> None:
        self._shared.frames_room.give(self._held_bytes)
        self._held_bytes = 0
        self._backlog.clear()
        self._room.waiting.pop(self._look_again, None)
        self._shared.connections.discard(self)
        if not self._shared.connections:
            self._shared.none_left.set()
