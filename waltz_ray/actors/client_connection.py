"""One client's connection to a partition server, of any protocol version from 0 to 5.

Messages of version 5 are the machine's own vocabulary; versions 0-4 go through ``OriginalDialect``. Requests that
only read (``client_requests``) are answered in the background so that they never hold up appends.

Several clients of one process may share a connection: each but the first has a *channel* of it (``ClientChannel``).

What a peer can make the server keep is bounded (docs/wire.md, "Limits"): while it takes nothing it is sent no more
feed and no more answers, and after a while it is closed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from waltz_ray.actors.access_guard import MOST_REFUSALS, ConnectionAccess, comer_at, refusal
from waltz_ray.actors.client_peer import CLIENTS_OF_A_CONNECTION, ClientPeer
from waltz_ray.actors.client_requests import Answers, RpcRequest
from waltz_ray.errors import WireError
from waltz_ray.net.half_frames import HalfFrame
from waltz_ray.net.stream import GreetedStream, Patience
from waltz_ray.protocol.access import Comer, is_of_clients
from waltz_ray.protocol.dialect import DialectEffect, OriginalDialect, ToClient, ToPartition
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.client import ChannelClosed, ErrorMessage, FeedBatch, FeedRecords, InChannel, ShowToken
from waltz_ray.protocol.messages.original import AppendRequest, FeedRequest, FlushRequest, MountRequest
from waltz_ray.protocol.partition.events import FlushReceived, ServerMessage
from waltz_ray.wire.channel_codec import channel_head
from waltz_ray.wire.codec import (
    BATCH_VERSION,
    CLIENT_TABLE,
    CLIENT_VERSIONS,
    ClientMessage,
    decode_client,
    encode_client,
)
from waltz_ray.wire.framing import FRAME_HEADER_BYTES, MAGIC_CLIENT, cluster_meant, encode_frame

if TYPE_CHECKING:
    from waltz_ray.actors.server import Server

__all__ = ["ClientChannel", "ClientConnection"]

_OF_SERVERS = {row.number: row.cls.__name__ for row in CLIENT_TABLE.rows.values() if not is_of_clients(row.cls)}
_LEAST_UNSENT_BYTES = 1024 * 1024  # so much waits for everybody now and then
_UNSENT_BYTES = 8 * 1024 * 1024  # at this the feed and the answers wait for the peer to take some


def _decoded(version: int, payload: memoryview, channel: bool = False) -> ClientMessage:
    """Of what only servers say nothing is read: it may be long, and is of whoever reaches the port."""
    if payload and payload[0] in _OF_SERVERS:
        where = "a channel" if channel else f"version {version}"
        raise WireError(f"a client must not send {_OF_SERVERS[payload[0]]} in {where}")
    return decode_client(version, payload)


class ClientConnection(ClientPeer, GreetedStream):
    """One client's connection to a partition server; all methods run in the event loop."""

    def __init__(self, connection_id: int, server: Server) -> None:
        config = server.config
        self._most_unsent_bytes = max(config.client_unsent_bytes, _LEAST_UNSENT_BYTES)
        self._one_frame_bytes = 0
        busy_bytes = min(_UNSENT_BYTES, self._most_unsent_bytes // 2)
        ClientPeer.__init__(self, connection_id, server)
        GreetedStream.__init__(
            self,
            MAGIC_CLIENT,
            CLIENT_VERSIONS,
            config.max_frame_bytes,
            "waltz_ray server",
            server.outgoing,
            Patience(config.hello_timeout_ms, config.client_stall_ms, busy_bytes),
            server.limit,
        )
        self._server = server
        self._half_frame = HalfFrame(server.half_frames, self._greeted, self)
        self._channels: dict[int, ClientChannel] = {}
        self._dialect: OriginalDialect | None = None
        self._answers = Answers(self, server)
        self._access: ConnectionAccess | None = None  # while there are rights of clients

    # ---- in ---------------------------------------------------------------------------------------------

    def on_ready(self) -> None:
        super().on_ready()
        self._check_cluster(cluster_meant(self._greeted.hello.message))
        if self.version < BATCH_VERSION:
            self._dialect = OriginalDialect(self.connection_id, self.version, self._high_water_mark)
        self._server.connections[self.connection_id] = self
        guard = self._server.guard
        if guard is not None and guard.rules is not None:
            self._access = ConnectionAccess(guard, self._comer(), self.peer)

    def _check_cluster(self, meant: str) -> None:
        """Addresses are used again: who only knew one may have come to another cluster's server."""
        info = self._server.info
        if meant not in ("", str(info.cluster_key)):
            raise WireError(
                f"this is a server of cluster {info.name!r}, and not of the one that is meant ({meant[:40]!r}), whose "
                "server had this address before: ask its ZooKeeper again"
            )

    def _comer(self) -> Comer:
        member = self._transport is not None and bool(self._transport.get_extra_info("waltz_member"))
        return replace(comer_at(self._transport), member=member)

    def rights_changed(self) -> None:
        """What this connection could do before it may perhaps not do any more: then it ends."""
        guard = self._server.guard
        assert guard is not None
        if guard.rules is None:
            self._access = None
        elif self._access is None:
            self._end_with("clients have rights here from now on: connect again")
        elif why := self._access.lost():
            self._end_with(why)

    def _end_with(self, why: str) -> None:
        if self.version >= BATCH_VERSION:
            self.write(ErrorMessage(why))
        self.finish(why)

    def on_frame(self, frame: memoryview) -> None:
        message = _decoded(self.version, frame)
        channel = 0
        if isinstance(message, InChannel):
            channel, message = message.channel, _decoded(BATCH_VERSION, message.message, channel=True)
        if self._access is not None and (why := self._access.why_not(message)):
            self._answer_refused(self._access, message, why, channel)
        elif channel:
            self._channel(channel).on_message(message)
        elif self.take(message):
            pass
        elif isinstance(message, ChannelClosed):
            self._close_channel(message.channel)
        elif isinstance(message, FlushRequest):
            self.tell(message.req_id.partition_id, FlushReceived(self.connection_id, message.req_id))
        elif isinstance(message, RpcRequest):
            self._answers.ask(message)
        elif isinstance(message, ShowToken):
            if self._access is not None:
                self._access.show(message.token)
        elif isinstance(message, MountRequest | AppendRequest | FeedRequest) and self._dialect is not None:
            if isinstance(message, MountRequest):
                self.check_client(message.req_id)
            self._carry_out(self._dialect.receive(message))
        else:
            raise WireError(f"a client must not send {type(message).__name__} in version {self.version}")

    def on_turn_end(self) -> None:
        self._half_frame.look()

    def release_input(self, why: str) -> None:
        if not self.reads:
            self._half_frame.read_again()
        super().release_input(why)

    def _answer_refused(self, access: ConnectionAccess, message: ClientMessage, why: str, channel: int) -> None:
        answer = refusal(message, why, self.version >= BATCH_VERSION)
        if answer is None or access.refusals > MOST_REFUSALS:
            self._end_with(why)
        elif channel:
            head, parts = channel_head(channel), encode_client(BATCH_VERSION, answer)
            self.send_frame(encode_frame(MAGIC_CLIENT, BATCH_VERSION, head, *parts))
        else:
            self.write(answer)

    @property
    def takes_nothing(self) -> bool:
        return self.busy

    def _channel(self, number: int) -> ClientChannel:
        channel = self._channels.get(number)
        if channel is None:
            if len(self._channels) >= CLIENTS_OF_A_CONNECTION:
                raise WireError(f"more than {CLIENTS_OF_A_CONNECTION} channels of one connection; open another one")
            channel = ClientChannel(number, self._server.next_connection_id(), self._server, self)
            self._channels[number] = self._server.connections[channel.connection_id] = channel
        return channel

    def _close_channel(self, number: int) -> None:
        channel = self._channels.pop(number, None)
        if channel is not None:
            channel.gone()

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
        self.send_frame(encode_frame(MAGIC_CLIENT, self.version, *encode_client(self.version, message)))

    def send_frame(self, frame: bytes) -> None:
        """Queue one frame, of whichever client it is."""
        had_bytes = self.unsent_bytes
        if had_bytes <= self._most_unsent_bytes:
            self._one_frame_bytes = len(frame)  # beside that, or a record that is longer could be sent to nobody
        self.send_bytes(frame)
        if self.unsent_bytes > self._most_unsent_bytes + self._one_frame_bytes:
            self.abort(f"the client has not taken {self.unsent_bytes} bytes")
        elif self._cause is None and not self._server.untaken.allows(len(frame), had_bytes):
            self.give_up(f"it has not taken {had_bytes} bytes, nor have others what they were sent")

    def deliver(self, message: ServerMessage) -> None:
        """What a partition's machine tells this client."""
        if self._dialect is None:
            self.write(message)
        else:
            self._carry_out(self._dialect.deliver(message))

    def deliver_feed(self, message: FeedBatch | FeedRecords, frames: bytes) -> None:
        """A feed message; ``frames`` is its encoding in this version, shared with other connections."""
        self.send_frame(frames)
        if self._dialect is not None:
            assert isinstance(message, FeedBatch)
            self._carry_out(self._dialect.feed_sent(message))

    def on_busy(self) -> None:
        """Nothing that can wait is sent until the peer has taken most of what was."""
        self._answers.pause()
        for peer in (self, *self._channels.values()):
            peer.pause_feed()

    def on_writable(self) -> None:
        self._answers.resume()
        for peer in (self, *self._channels.values()):
            peer.resume_feed()

    # ---- end --------------------------------------------------------------------------------------------

    def on_protocol_error(self, error: WireError) -> None:
        if self.version >= BATCH_VERSION:
            self.write(ErrorMessage(str(error)))

    def on_closed(self, error: Exception) -> None:
        self._half_frame.gone()
        for peer in (self, *self._channels.values()):
            peer.gone()


class ClientChannel(ClientPeer):
    """One of several clients that share a connection (docs/wire.md, "Channels"): it mounts and appends, no more."""

    version = BATCH_VERSION

    def __init__(self, number: int, connection_id: int, server: Server, shared: ClientConnection) -> None:
        super().__init__(connection_id, server)
        self._head = channel_head(number)
        self._shared = shared

    @property
    def takes_nothing(self) -> bool:
        return self._shared.busy

    def check_client(self, req_id: ReqId) -> None:
        if self._clients - {req_id.client_id}:
            raise WireError("a channel is one client's; open another one")
        super().check_client(req_id)

    def on_message(self, message: ClientMessage) -> None:
        """WireError: it does not belong here."""
        if not self.take(message):
            raise WireError(f"a client must not send {type(message).__name__} in a channel")

    def deliver(self, message: ServerMessage) -> None:
        """What a partition's machine tells this client."""
        self._shared.send_frame(
            encode_frame(MAGIC_CLIENT, BATCH_VERSION, self._head, *encode_client(BATCH_VERSION, message))
        )

    def deliver_feed(self, message: FeedBatch | FeedRecords, frames: bytes) -> None:
        """A feed message; ``frames`` is the frame for clients without a channel."""
        payload = memoryview(frames)[FRAME_HEADER_BYTES:]
        self._shared.send_frame(encode_frame(MAGIC_CLIENT, BATCH_VERSION, self._head, payload))
