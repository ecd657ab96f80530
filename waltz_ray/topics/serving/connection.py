"""One connection to a topic port: each request gets at most one reply, and nothing it does makes it keep much.

What waits meanwhile: ``net/backlog.py``. What has waited for longer than its client does is dropped without a reply:
the client has given it up, and may have sent it again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Collection
from functools import partial

from waltz_ray.errors import BadPayload, InvalidInput, InvariantBroken
from waltz_ray.net.backlog import BackloggedStream, BacklogLimits
from waltz_ray.net.limit import ConnectionLimit
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.net.room import Room
from waltz_ray.net.stream import Patience
from waltz_ray.net.untaken import Untaken
from waltz_ray.topics.codes import RpcMethod, TopicCode
from waltz_ray.topics.framing import HELD_FREELY, TopicFrame, TopicFramer, encode_frame
from waltz_ray.topics.messages import ClusterMeantRequest, ClusterMeantResponse, UnknownMethod
from waltz_ray.topics.rpc import FaultName, RpcAnswer, RpcCall, RpcFault, decode_call, encode_reply
from waltz_ray.topics.serving.port import RequestPort, TopicPortCounts, TopicPortLimits
from waltz_ray.topics.wire import TopicResponse, decode_request, encode_response

__all__ = ["TopicConnection", "TopicPortState"]

log = logging.getLogger(__name__)

_NUMBERS = itertools.count(1)  # of all ports: those of a port rise
_ANOTHER = ClusterMeantResponse(False, TopicCode.MOVED, "another cluster is served here, and not the one that is meant")
_REQUEST_BYTES = 512  # of one that waits, besides its message


class TopicPortState:
    """What all connections of a port share."""

    def __init__(
        self,
        name: str,
        port: RequestPort,
        methods: Collection[RpcMethod],
        limits: TopicPortLimits,
        outgoing: Outgoing,
        cluster_key: str,
    ) -> None:
        self.port = port
        self.cluster_key = cluster_key
        self.methods = frozenset(map(int, methods))
        self.limits = limits
        self.outgoing = outgoing
        self.admission = ConnectionLimit(name, limits.connections, limits.connections_per_peer)
        self.room = Room(limits.outstanding_bytes)
        self.frames_room = Room(limits.incoming_bytes)
        self.counts = TopicPortCounts()
        self.connections: dict[TopicConnection, None] = {}
        """Those that are open, in the order of their coming."""
        self.untaken = Untaken(limits.untaken_bytes, lambda: self.connections)
        self.none_left = asyncio.Event()
        """Set when the last of them goes."""


Arrived = tuple[TopicFrame, float]
"""A frame, and when it came, by the monotonic clock."""


class TopicConnection(BackloggedStream[TopicFrame, Arrived]):
    """One client."""

    def __init__(self, shared: TopicPortState) -> None:
        limits = shared.limits
        super().__init__(
            TopicFramer(limits.blocks, self._hold),
            shared.outgoing,
            Patience(limits.first_ms, limits.untaken_ms, limits.busy_bytes),
            shared.admission,
            BacklogLimits(limits.outstanding, limits.frame_ms),
            shared.room,
            shared.frames_room,
        )
        self.stirred = True
        """Something has come since the last look (``look``)."""
        self._number = next(_NUMBERS)
        self._shared = shared
        self._limits = limits
        self._counts = shared.counts
        self._arrived_s = 0.0  # what is in work: nothing more is read before all of it is handled, or in the backlog

    # ---- in ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self.busy:  # it was admitted
            self._shared.connections[self] = None

    def data_received(self, data: bytes) -> None:
        self._arrived_s = time.monotonic()
        super().data_received(data)

    def on_frame(self, frame: TopicFrame) -> None:
        self._take((frame, self._arrived_s))

    def _handle(self, entry: Arrived) -> None:
        (serial, message), arrived_s = entry
        self.stirred = True
        if message is None:
            self._counts.no_room += 1
            text = f"no room for a long message: {self._shared.frames_room.used} bytes of others are coming in"
            self._send(serial, FaultName.OVERFLOW.fault(f"{text}; send it again later"), RpcMethod.SEND_MESSAGE)
            return
        if self._room.full and (self.outstanding or len(message) > HELD_FREELY):
            self._put_back(entry)
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
        if isinstance(request, ClusterMeantRequest):
            self._on_cluster_meant(serial, request.cluster_key, call)
            return
        self._counts.requests += 1
        self._room.used += size
        self.outstanding += 1
        self._shared.port.submit(request, call, self._number, partial(self._answered, serial, call, size))
        if self.outstanding >= self._limits.outstanding:
            self._stall()

    def _on_cluster_meant(self, serial: int, cluster_key: str, call: RpcCall) -> None:
        meant = self._shared.cluster_key in ("", cluster_key)
        answer = ClusterMeantResponse(True, TopicCode.OK, "") if meant else _ANOTHER
        method, data = encode_response(answer)
        self._send(serial, RpcAnswer(method, data, call.service_type, call.protocol_ver), call.method)
        if not meant:
            text = "%s means another cluster, of which there was an actor at this address before"
            self.say(log, logging.INFO, text, self.peer)
            self.finish(_ANOTHER.err_msg)

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
        self._one_less()

    # ---- out --------------------------------------------------------------------------------------------

    def _send(self, serial: int, reply: RpcAnswer | RpcFault, method: int) -> None:
        try:
            frame = encode_frame(serial, encode_reply(reply))
        except InvalidInput as error:
            log.error("the reply to a request of method %d cannot be sent: %s", method, error)
            frame = encode_frame(serial, encode_reply(FaultName.OVERFLOW.fault(str(error))))
        had_bytes = self.unsent_bytes
        self.send_bytes(frame)
        if self._leaving:
            return
        too_much = self.unsent_bytes > self._limits.unsent_bytes
        if too_much or not self._shared.untaken.allows(len(frame), had_bytes):  # no reply is left out: it is lost so
            self._leaving = True
            self.give_up(f"it has not taken {self.unsent_bytes} bytes of what it has asked for")

    def look(self) -> None:
        """Called now and then: an end for who was quiet since the last look."""
        if not (self.stirred or self.outstanding or self.busy):
            self.finish(f"it has been idle for more than {self._limits.idle_ms} ms")
        self.stirred = False

    def on_impatience(self, reason: str) -> None:
        self.say(log, logging.INFO, "closing the connection with %s: %s", self.peer, reason)

    def on_closed(self, error: Exception) -> None:
        super().on_closed(error)
        self._shared.connections.pop(self, None)
        if not self._shared.connections:
            self._shared.none_left.set()
