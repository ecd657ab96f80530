"""Where mounts are: appends go out, fates and feeds come in, for every partition that a client has mounted at a server.

Clients of one loop that are told of nothing but their own appends share their connections, if their transports are of
the same kind: sixty-four of them that each wait for one append are one frame's way for the server and one wake-up for
the process, not sixty-four. The first one's messages are sent as they are, those of the others in channels
(docs/wire.md, "Channels"). Who is fed what others append has a connection of its own, so that nobody waits behind that.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from waltz_ray.client.directory import Location
from waltz_ray.client.stream import ClientStream, StreamPool
from waltz_ray.client.transport import Transport
from waltz_ray.errors import WireError
from waltz_ray.net.shared import SharedByLoop
from waltz_ray.protocol.messages.client import (
    AppendedBatch,
    ChannelClosed,
    ErrorMessage,
    FeedBatch,
    FeedRecords,
    InChannel,
    LockFailureBatch,
    Mounted,
    NotAllowed,
    NotReady,
    PartitionStateResponse,
    Rejected,
)
from waltz_ray.protocol.mounting_types import MountMessage
from waltz_ray.wire.channel_codec import channel_head
from waltz_ray.wire.codec import BATCH_VERSION, ClientMessage, decode_client, encode_client
from waltz_ray.wire.framing import FRAME_HEADER_BYTES, MAGIC_CLIENT, encode_frame
from waltz_ray.wire.primitives import BytesLike

__all__ = ["MountStream", "MountStreams", "Mountable"]

_GATHERED_BYTES = 16 * 1024  # larger frames are worth a write of their own
_APPENDS_AT_ONCE = 32  # of one partition: the server begins with them while this process makes the next ones
_MOST_SHARE = 200  # clients of one connection: fewer than a server takes


class Mountable(Protocol):
    """A partition that mounts over a stream."""

    def stream_message(self, stream: MountStream, message: MountMessage, frame_bytes: int) -> None: ...

    def stream_lost(self, stream: MountStream, error: Exception) -> None: ...

    def stream_writable(self) -> None: ...

    def send_due(self) -> None: ...

    @property
    def waits(self) -> bool: ...


class MountStream:
    """One client's way to one server. Hands every message to the partition it is about; one that has left gets nothing
    any more. ``channel``: 0 = its messages are sent as they are."""

    def __init__(self, connection: _MountConnection, channel: int) -> None:
        self.channel = channel
        self._connection = connection
        self._head = [channel_head(channel)] if channel else []
        self._partitions: dict[int, Mountable] = {}
        self._due: dict[Mountable, None] = {}

    @property
    def ended(self) -> bool:
        """Nothing is sent or comes any more."""
        return self._connection.ended

    @property
    def busy(self) -> bool:
        """So much is unsent that it is better to gather more."""
        return self._connection.busy

    @property
    def expects(self) -> bool:
        """Whether its client waits for something."""
        return any(partition.waits for partition in self._partitions.values())

    def attach(self, partition_id: int, partition: Mountable) -> None:
        """From now on messages about ``partition_id`` go to ``partition``."""
        self._partitions[partition_id] = partition

    def detach(self, partition_id: int, partition: Mountable) -> None:
        """``partition`` takes no more messages from here."""
        if self._partitions.get(partition_id) is partition:
            del self._partitions[partition_id]

    def send(self, message: ClientMessage) -> None:
        """Send one message; nothing happens on a stream that has ended (``stream_lost`` says so)."""
        if not self._connection.ended:
            self.send_parts(encode_client(BATCH_VERSION, message))

    def send_parts(self, parts: list[BytesLike]) -> None:
        """Send the payload that ``parts`` make together, as ``send`` does."""
        self._connection.send_for_one([*self._head, *parts] if self._head else parts)

    def send_appends(self, partition_id: int, parts: list[BytesLike]) -> None:
        """As ``send_parts``, of a batch of appends to this partition."""
        self.send_parts(parts)
        self._connection.appends_sent(partition_id)

    def send_later(self, partition: Mountable) -> None:
        """Call ``partition.send_due`` when all messages that came together have been handled.

        A hundred fates in a hundred frames then lead to one batch of what they set off, not to a hundred of one.
        """
        if not self._due:
            self._connection.due.append(self)
        self._due[partition] = None

    # ---- from the connection

    def send_due(self) -> None:
        due, self._due = self._due, {}
        for partition in due:
            partition.send_due()

    def take(self, message: ClientMessage, frame_bytes: int) -> None:
        """A message to this client, whose frame had so many bytes. WireError ends the connection."""
        if isinstance(message, FeedRecords):
            partition_id = message.batch.partition_id
        elif isinstance(message, Mounted):
            partition_id = message.req_id.partition_id
        elif isinstance(message, AppendedBatch | FeedBatch | LockFailureBatch | NotReady | Rejected):
            partition_id = message.partition_id
        elif isinstance(message, PartitionStateResponse):
            return  # a sign of life
        elif isinstance(message, NotAllowed):
            raise WireError(f"the server refuses what no mount asks for: {message.message}")
        elif isinstance(message, ErrorMessage):
            raise WireError(f"the server closes the connection: {message.message}")
        else:
            raise WireError(f"the server sent {type(message).__name__}, which is none of its answers to a mount")
        partition = self._partitions.get(partition_id)
        if partition is not None:
            partition.stream_message(self, message, frame_bytes)

    def lost(self, error: Exception) -> None:
        partitions = list(self._partitions.values())
        self._partitions.clear()
        for partition in partitions:
            partition.stream_lost(self, error)

    def writable(self) -> None:
        for partition in list(self._partitions.values()):
            partition.stream_writable()


class _MountConnection(ClientStream):
    """The connection of one client, or of several that share it."""

    def __init__(self, max_frame_bytes: int, silent_ms: int, cluster_key: str) -> None:
        super().__init__(max_frame_bytes, silent_ms, cluster_key)
        self.due: list[MountStream] = []
        """Those with something to send when what came together has been handled."""
        self._streams: dict[int, MountStream] = {}
        self._next_channel = 0
        self._gathers = False
        self._gathered: dict[int, int] = {}  # batches of appends that are held back, by partition

    @property
    def expects(self) -> bool:
        return any(stream.expects for stream in self._streams.values())

    def join(self) -> MountStream:
        """One more client's stream."""
        stream = MountStream(self, self._next_channel)
        self._next_channel += 1
        self._streams[stream.channel] = stream
        return stream

    def leave(self, stream: MountStream) -> None:
        """What comes for it is dropped. Its client has unmounted everything."""
        del self._streams[stream.channel]
        if stream.channel:
            self.send(ChannelClosed(stream.channel))

    def send_for_one(self, parts: list[BytesLike]) -> None:
        """As ``send_parts``; what several clients send in one turn of the loop leaves together."""
        if len(self._streams) == 1 or sum(map(len, parts)) > _GATHERED_BYTES:
            self.send_parts(parts)
            return
        if not self._gathers:
            self._gathers = True
            self._outgoing.depth += 1
            self._loop.call_soon(self._let_go)
        self.send_bytes(encode_frame(MAGIC_CLIENT, BATCH_VERSION, *parts))

    def appends_sent(self, partition_id: int) -> None:
        """So many for one partition are a turn of the server and a sync: they do not wait for those that follow.

        Clients, server and replicas otherwise take turns, and each waits for the others.
        """
        if self._gathers:
            gathered = self._gathered[partition_id] = self._gathered.get(partition_id, 0) + 1
            if gathered == _APPENDS_AT_ONCE:
                self._gathered.clear()
                self.send_held()

    def _let_go(self) -> None:
        self._gathers = False
        self._gathered.clear()
        self._outgoing.depth -= 1
        if not self._outgoing.depth:
            self._outgoing.flush()

    def on_turn_end(self) -> None:
        due, self.due = self.due, []
        for stream in due:
            stream.send_due()

    def on_frame(self, frame: memoryview) -> None:
        message = decode_client(BATCH_VERSION, frame)
        channel = 0
        if isinstance(message, InChannel):
            channel, message = message.channel, decode_client(BATCH_VERSION, message.message)
        stream = self._streams.get(channel)
        if stream is not None:
            stream.take(message, FRAME_HEADER_BYTES + len(frame))
        elif isinstance(message, ErrorMessage):
            raise WireError(f"the server closes the connection: {message.message}")

    def stream_lost(self, error: Exception) -> None:
        for stream in list(self._streams.values()):
            stream.lost(error)

    def on_writable(self) -> None:
        for stream in list(self._streams.values()):
            stream.writable()


_shared: SharedByLoop[StreamPool[_MountConnection]] = SharedByLoop()


class MountStreams:
    """One client's streams, one per server incarnation, made when first asked for. On the client's loop only."""

    def __init__(
        self, transport: Transport, max_frame_bytes: int, silent_ms: int, cluster_key: str, shares: bool
    ) -> None:
        """``shares``: it is told of nothing but its own appends, and may share connections with others that are."""
        self._transport = transport
        self._settings = max_frame_bytes, silent_ms, cluster_key
        self._may_share = shares and transport.shared is not None
        self._pool: StreamPool[_MountConnection] | None = None
        self._streams: dict[_MountConnection, MountStream] = {}

    async def get(self, location: Location) -> MountStream:
        """The stream to the server of ``location``; ``OSError`` or ``WireError`` if it cannot be had."""
        if self._pool is None:
            self._pool = _shared.take(self._key, self._new_pool, _MOST_SHARE) if self._may_share else self._new_pool()
        connection = await self._pool.get(location)
        stream = self._streams.get(connection)
        if stream is None:
            for gone in [one for one in self._streams if one.ended]:
                del self._streams[gone]
            stream = self._streams[connection] = connection.join()
        return stream

    def _new_pool(self) -> StreamPool[_MountConnection]:
        return StreamPool(self._transport, lambda: _MountConnection(*self._settings))

    @property
    def _key(self) -> Hashable:
        return self._transport.shared, self._settings

    async def close(self) -> None:
        """Leave every server. Idempotent."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        streams, self._streams = self._streams, {}
        for connection, stream in streams.items():
            connection.leave(stream)
        if not self._may_share or _shared.leave(self._key, pool):
            await pool.close()
