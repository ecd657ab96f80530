"""A server's stream to a simulated replica: one turn at a time, of all that has arrived meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from tests.simulation.network import Stream
from tests.simulation.replica_turns import Turn
from waltz_ray.errors import WireError
from waltz_ray.protocol.messages.replica import (
    ReplicaReply,
    ReplicaRequest,
    Truncate,
)
from waltz_ray.wire.framing import (
    MAGIC_HELLO,
    MAGIC_REPLICA,
    FrameDecoder,
    Hello,
    decode_hello,
    encode_frame,
    encode_hello,
    negotiate,
)
from waltz_ray.wire.replica_codec import (
    REPLICA_VERSION,
    REPLICA_VERSIONS,
    decode_replica,
    encode_replica,
)

if TYPE_CHECKING:
    from tests.simulation.replica import SimReplica

__all__ = ["Connection"]

_COPIED_TURNS = 5  # after a cut


class Connection(asyncio.Protocol):
    """One server's stream to the replica."""

    def __init__(self, replica: SimReplica) -> None:
        self._replica = replica
        self._decoder = FrameDecoder(64 * 1024 * 1024)
        self._transport: Stream | None = None
        self._greeted = False
        self._waiting: list[ReplicaRequest] = []
        self._busy = False
        self._cut_lately: dict[int, int] = {}
        self.peer = "?"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(Stream, transport)
        self.peer = self._transport.other.loop.name
        self._transport.write(encode_hello(Hello(REPLICA_VERSIONS, self._replica.loop.name)))

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        try:
            for frame in self._decoder.feed(data):
                if not self._greeted:
                    if frame.magic != MAGIC_HELLO:
                        raise WireError("the first frame must be a HELLO")
                    negotiate(REPLICA_VERSIONS, decode_hello(frame.payload).versions)
                    self._greeted = True
                    self._decoder.expect(MAGIC_REPLICA, REPLICA_VERSION)
                else:
                    self._waiting.append(cast(ReplicaRequest, decode_replica(frame.payload)))
        except WireError as error:
            self._replica.world.scheduler.fail(error)  # nobody damages bytes here, so it is a bug
        if self._busy:
            return
        if self._replica.happens(self._replica.late):
            self._busy = True
            self._transport.loop.call_later(self._replica.random.uniform(0.002, 0.06), self._turn)
        else:
            self._turn()

    def _turn(self) -> None:
        requests, self._waiting = self._waiting, []
        self._busy = bool(requests)
        if self._replica.delays_truncate and any(isinstance(request, Truncate) for request in requests):
            self._late(requests)
        elif requests:
            turn = Turn(self, requests)
            if self._is_abandoned(turn):
                turn.abandoned = True
                self._lose()
                self._replica.world.history.faults["connection lost in a turn"] += 1
                self._replica.tell(f"takes its time for {len(requests)} requests of {self.peer}, which has gone")
            self._replica.handle(turn)

    def _is_abandoned(self, turn: Turn) -> bool:
        """Most often soon after a cut, while it is copied to: the server comes back and cuts again."""
        self._cut_lately.update(dict.fromkeys(turn.cuts(), _COPIED_TURNS))
        if not turn.appends:
            return False
        lately = [partition_id for partition_id in turn.partitions() if self._cut_lately.get(partition_id, 0) > 0]
        for partition_id in lately:
            self._cut_lately[partition_id] -= 1
        return self._replica.happens(self._replica.abandoned * (50.0 if lately else 1.0))

    def _lose(self) -> None:
        """The server loses this connection now."""
        assert self._transport is not None
        self._transport.other.hear_of_the_end(0.0002, ConnectionResetError("connection reset by the peer"))

    def _late(self, requests: list[ReplicaRequest]) -> None:
        """The server loses this connection now; the replica comes to these orders, still in its buffer, later."""
        self._replica.delays_truncate = False
        self._replica.tell(f"is late with {requests}, and {self.peer} has gone")
        self._lose()
        asyncio.get_running_loop().call_later(self._replica.random.uniform(0.05, 0.8), self._handle, requests)

    def _handle(self, requests: list[ReplicaRequest]) -> None:
        self._replica.handle(Turn(self, requests))

    def answer(self, replies: list[ReplicaReply]) -> None:
        assert self._transport is not None
        self._transport.write(
            b"".join(encode_frame(MAGIC_REPLICA, REPLICA_VERSION, *encode_replica(reply)) for reply in replies)
        )
        self._turn()
