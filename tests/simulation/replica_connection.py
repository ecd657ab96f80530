"""A server's stream to a simulated replica: one turn at a time, of all that has arrived meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from tests.simulation.changes import changed_requests
from tests.simulation.network import Stream
from tests.simulation.replica_turns import Turn
from waltz_ray.errors import WireError
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.net.stream import GreetedStream
from waltz_ray.protocol.messages.replica import (
    ReplicaReply,
    ReplicaRequest,
    Truncate,
)
from waltz_ray.wire.framing import (
    MAGIC_REPLICA,
    encode_frame,
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


class Connection(GreetedStream):
    """One server's stream to the replica."""

    def __init__(self, replica: SimReplica) -> None:
        super().__init__(
            MAGIC_REPLICA,
            REPLICA_VERSIONS,
            64 * 1024 * 1024,
            replica.loop.name,
            Outgoing(),  # nobody proves anything here (``Trusting``): orders may come in one piece with the HELLO
        )
        self._replica = replica
        self._waiting: list[ReplicaRequest] = []
        self._in_turn = False
        self._cut_lately: dict[int, int] = {}

    def on_frame(self, frame: memoryview) -> None:
        self._waiting.append(cast(ReplicaRequest, decode_replica(frame)))

    def on_protocol_error(self, error: WireError) -> None:
        self._replica.world.scheduler.fail(error)  # nobody damages bytes here, so it is a bug

    def on_turn_end(self) -> None:
        if self._in_turn:
            return
        if self._replica.happens(self._replica.late):
            self._in_turn = True
            self._loop.call_later(self._replica.random.uniform(0.002, 0.06), self._turn)
        else:
            self._turn()

    def _turn(self) -> None:
        requests, self._waiting = self._waiting, []
        self._in_turn = bool(requests)
        if self._replica.changes_appends:
            requests = changed_requests(self._replica, requests)
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
        cast(Stream, self._transport).other.hear_of_the_end(
            0.0002, ConnectionResetError("connection reset by the peer")
        )

    def _late(self, requests: list[ReplicaRequest]) -> None:
        """The server loses this connection now; the replica comes to these orders, still in its buffer, later."""
        self._replica.delays_truncate = False
        self._replica.tell(f"is late with {requests}, and {self.peer} has gone")
        self._lose()
        asyncio.get_running_loop().call_later(self._replica.random.uniform(0.05, 0.8), self._handle, requests)

    def _handle(self, requests: list[ReplicaRequest]) -> None:
        self._replica.handle(Turn(self, requests))

    def answer(self, replies: list[ReplicaReply]) -> None:
        self.send_pieces(encode_frame(MAGIC_REPLICA, REPLICA_VERSION, *encode_replica(reply)) for reply in replies)
        self._turn()
