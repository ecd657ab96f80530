"""One client's connection to a partition server, of any protocol version from 0 to 5.

Messages of version 5 are the machine's own vocabulary; versions 0-4 go through ``OriginalDialect``. Requests that
only read (``client_requests``) are answered in the background so that they never hold up appends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from waltz_ray.actors.client_requests import RpcRequest, answer
from waltz_ray.actors.framed_stream import FramedStream
from waltz_ray.actors.original_dialect import OriginalDialect
from waltz_ray.errors import WireError
from waltz_ray.protocol.partition_types import (
    AppendReceived,
    ConnectionClosed,
    CreditReceived,
    Event,
    FlushReceived,
    MountReceived,
    ServerMessage,
    UnmountReceived,
)
from waltz_ray.protocol.records import AppendBatch
from waltz_ray.wire.batches import ErrorMessage, FeedBatch, FeedCredit, FeedRecords, Mount, Unmount
from waltz_ray.wire.client_messages import AppendRequest, FeedRequest, FlushRequest, MountRequest
from waltz_ray.wire.codec import BATCH_VERSION, CLIENT_VERSIONS, ClientMessage, decode_client, encode_client
from waltz_ray.wire.framing import MAGIC_CLIENT, encode_frame

if TYPE_CHECKING:
    from waltz_ray.actors.server import Server

__all__ = ["ClientConnection"]


class ClientConnection(FramedStream):
    """See the module's docstring. All methods run in the event loop."""

    def __init__(self, connection_id: int, server: Server) -> None:
        limit = server.config.max_frame_bytes
        super().__init__(MAGIC_CLIENT, CLIENT_VERSIONS, limit, "waltz_ray server", server.outgoing)
        self.connection_id = connection_id
        self._server = server
        self._partitions: set[int] = set()
        self._dialect: OriginalDialect | None = None

    # ---- in ---------------------------------------------------------------------------------------------

    def on_ready(self) -> None:
        if self.version < BATCH_VERSION:
            self._dialect = OriginalDialect(self)
        self._server.connected(self)

    def on_payload(self, payload: memoryview) -> None:
        message = decode_client(self.version, payload)
        if isinstance(message, AppendBatch):
            self.tell(message.partition_id, AppendReceived(self.connection_id, message))
        elif isinstance(message, FeedCredit):
            self.tell(message.partition_id, CreditReceived(self.connection_id, message.credit_bytes))
        elif isinstance(message, Mount):
            self.tell(message.req_id.partition_id, MountReceived(self.connection_id, message))
        elif isinstance(message, Unmount):
            self.tell(message.partition_id, UnmountReceived(self.connection_id, message.client_id))
        elif isinstance(message, FlushRequest):
            self.tell(message.req_id.partition_id, FlushReceived(self.connection_id, message.req_id))
        elif isinstance(message, RpcRequest):
            self._server.spawn(self._answer(message))
        elif isinstance(message, MountRequest | AppendRequest | FeedRequest) and self._dialect is not None:
            self._dialect.receive(message)
        else:
            raise WireError(f"a client must not send {type(message).__name__} in version {self.version}")

    def tell(self, partition_id: int, event: Event) -> None:
        """Hand an event to a partition of this server."""
        if not 0 <= partition_id < self._server.partitions:
            raise WireError(f"partition {partition_id} does not exist: there are {self._server.partitions} partitions")
        self._partitions.add(partition_id)
        self._server.driver(partition_id).handle(event)

    def high_water_mark(self, partition_id: int) -> int:
        """The server's mark of one of its partitions."""
        return self._server.driver(partition_id).machine.high_water_mark

    async def _answer(self, request: RpcRequest) -> None:
        try:
            self.write(await answer(self._server, request))
        except Exception:
            self.abort(f"{type(request).__name__} failed")  # a request without an answer would hang the client
            raise

    # ---- out --------------------------------------------------------------------------------------------

    def write(self, message: ClientMessage) -> None:
        """Encode in this connection's version and queue."""
        self.send(encode_frame(MAGIC_CLIENT, self.version, *encode_client(self.version, message)))
        self._server.check_unsent(self)

    def deliver(self, message: ServerMessage) -> None:
        """What a partition's machine tells this client."""
        if self._dialect is None:
            self.write(message)
        else:
            self._dialect.deliver(message)

    def deliver_feed(self, message: FeedBatch | FeedRecords, frame: bytes) -> None:
        """A feed message; ``frame`` is its encoding in version 5, shared with other connections."""
        if self._dialect is None:
            self.send(frame)
        else:
            assert isinstance(message, FeedBatch)
            self._dialect.deliver_feed(message)

    # ---- end --------------------------------------------------------------------------------------------

    def on_protocol_error(self, error: WireError) -> None:
        if self.version >= BATCH_VERSION:
            self.write(ErrorMessage(str(error)))

    def on_closed(self, reason: str) -> None:
        for partition_id in self._partitions:
            self._server.driver(partition_id).handle(ConnectionClosed(self.connection_id))
        self._server.disconnected(self)
