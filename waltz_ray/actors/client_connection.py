"""One client's connection to a partition server, of any protocol version from 0 to 5.

Messages of version 5 are the machine's own vocabulary; versions 0-4 go through ``OriginalDialect``. Requests that
only read (``client_requests``) are answered in the background so that they never hold up appends.

What a peer can make the server keep is bounded (docs/wire.md, "Limits"): while it takes nothing it is sent no more
feed and no more answers, and after a while it is closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from waltz_ray.actors.client_requests import Answers, RpcRequest
from waltz_ray.errors import WireError
from waltz_ray.net.stream import GreetedStream, Patience
from waltz_ray.protocol.dialect import DialectEffect, OriginalDialect, ToClient, ToPartition
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.client import ErrorMessage, FeedBatch, FeedCredit, FeedRecords, Mount, Unmount
from waltz_ray.protocol.messages.original import AppendRequest, FeedRequest, FlushRequest, MountRequest
from waltz_ray.protocol.partition.events import (
    AppendReceived,
    ConnectionClosed,
    CreditReceived,
    Event,
    FeedPaused,
    FeedResumed,
    FlushReceived,
    MountReceived,
    ServerMessage,
    UnmountReceived,
)
from waltz_ray.protocol.records import AppendBatch
from waltz_ray.wire.codec import BATCH_VERSION, CLIENT_VERSIONS, ClientMessage, decode_client, encode_client
from waltz_ray.wire.framing import MAGIC_CLIENT, encode_frame

if TYPE_CHECKING:
    from waltz_ray.actors.server import Server

__all__ = ["CLIENTS_OF_A_CONNECTION", "ClientConnection"]

CLIENTS_OF_A_CONNECTION = 256
"""Client IDs that may mount over one connection (docs/wire.md, "Limits")."""

_UNSENT_BYTES = 8 * 1024 * 1024  # at this the feed and the answers wait for the peer to take some


class ClientConnection(GreetedStream):
    """One client's connection to a partition server; all methods run in the event loop."""

    def __init__(self, connection_id: int, server: Server) -> None:
        config = server.config
        busy_bytes = min(_UNSENT_BYTES, config.client_unsent_bytes // 2)
        super().__init__(
            MAGIC_CLIENT,
            CLIENT_VERSIONS,
            config.max_frame_bytes,
            "waltz_ray server",
            server.outgoing,
            Patience(config.hello_timeout_ms, config.client_stall_ms, busy_bytes),
            server.limit,
        )
        self.connection_id = connection_id
        self._server = server
        self._drivers = server.drivers
        self._most_unsent_bytes = config.client_unsent_bytes
        self._partitions: set[int] = set()
        self._clients: set[int] = set()
        self._dialect: OriginalDialect | None = None
        self._answers = Answers(self, server)

    # ---- in ---------------------------------------------------------------------------------------------

    def on_ready(self) -> None:
        super().on_ready()
        if self.version < BATCH_VERSION:
            self._dialect = OriginalDialect(self.connection_id, self.version, self._high_water_mark)
        self._server.connections[self.connection_id] = self

    def on_frame(self, frame: memoryview) -> None:
        message = decode_client(self.version, frame)
        if isinstance(message, AppendBatch):
            self.tell(message.partition_id, AppendReceived(self.connection_id, message))
        elif isinstance(message, FeedCredit):
            _check_credit(message.credit_bytes)
            self.tell(message.partition_id, CreditReceived(self.connection_id, message.credit_bytes))
        elif isinstance(message, Mount):
            _check_credit(message.credit_bytes)
            self._check_client(message.req_id)
            self.tell(message.req_id.partition_id, MountReceived(self.connection_id, message))
        elif isinstance(message, Unmount):
            self.tell(message.partition_id, UnmountReceived(self.connection_id, message.client_id))
        elif isinstance(message, FlushRequest):
            self.tell(message.req_id.partition_id, FlushReceived(self.connection_id, message.req_id))
        elif isinstance(message, RpcRequest):
            self._answers.ask(message)
        elif isinstance(message, MountRequest | AppendRequest | FeedRequest) and self._dialect is not None:
            if isinstance(message, MountRequest):
                self._check_client(message.req_id)
            self._carry_out(self._dialect.receive(message))
        else:
            raise WireError(f"a client must not send {type(message).__name__} in version {self.version}")

    def _check_client(self, req_id: ReqId) -> None:
        self._clients.add(req_id.client_id)
        if len(self._clients) > CLIENTS_OF_A_CONNECTION:
            raise WireError(f"more than {CLIENTS_OF_A_CONNECTION} clients mount over one connection; open another one")

    def tell(self, partition_id: int, event: Event) -> None:
        """Hand an event to a partition of this server."""
        if not 0 <= partition_id < self._server.partitions:
            raise WireError(f"partition {partition_id} does not exist: there are {self._server.partitions} partitions")
        driver = self._drivers[partition_id]
        if partition_id not in self._partitions:
            self._partitions.add(partition_id)
            if self.busy:
                driver.handle(FeedPaused(self.connection_id))
        driver.handle(event)

    def _high_water_mark(self, partition_id: int) -> int:
        return self._drivers[partition_id].machine.high_water_mark

    def _carry_out(self, effects: list[DialectEffect]) -> None:
        for effect in effects:
            if isinstance(effect, ToPartition):
                self.tell(effect.partition_id, effect.event)
            elif isinstance(effect, ToClient):
                self.write(effect.message)
            else:
                self.finish(effect.reason)

    # ---- out --------------------------------------------------------------------------------------------

    def write(self, message: ClientMessage) -> None:
        """Encode in this connection's version and queue."""
        self.send_bytes(encode_frame(MAGIC_CLIENT, self.version, *encode_client(self.version, message)))
        self._check_unsent()

    def deliver(self, message: ServerMessage) -> None:
        """What a partition's machine tells this client."""
        if self._dialect is None:
            self.write(message)
        else:
            self._carry_out(self._dialect.deliver(message))

    def deliver_feed(self, message: FeedBatch | FeedRecords, frames: bytes) -> None:
        """A feed message; ``frames`` is its encoding in this version, shared with other connections."""
        self.send_bytes(frames)
        self._check_unsent()
        if self._dialect is not None:
            assert isinstance(message, FeedBatch)
            self._carry_out(self._dialect.feed_sent(message))

    def _check_unsent(self) -> None:
        if self.unsent_bytes > self._most_unsent_bytes:
            self.abort(f"the client has not taken {self.unsent_bytes} bytes")

    def on_busy(self) -> None:
        """Nothing that can wait is sent until the peer has taken most of what was."""
        self._answers.pause()
        for partition_id in self._partitions:
            self._drivers[partition_id].handle(FeedPaused(self.connection_id))

    def on_writable(self) -> None:
        self._answers.resume()
        for partition_id in self._partitions:
            self._drivers[partition_id].handle(FeedResumed(self.connection_id))

    # ---- end --------------------------------------------------------------------------------------------

    def on_protocol_error(self, error: WireError) -> None:
        if self.version >= BATCH_VERSION:
            self.write(ErrorMessage(str(error)))

    def on_closed(self, error: Exception) -> None:
        self._server.connections.pop(self.connection_id, None)
        for partition_id in self._partitions:
            self._drivers[partition_id].handle(ConnectionClosed(self.connection_id))


def _check_credit(credit_bytes: int) -> None:
    if credit_bytes < 0:
        raise WireError(f"a feed credit of {credit_bytes} bytes is impossible")
