"""Messages over a channel: HELLO, frames, and one pool of open streams per purpose."""

from __future__ import annotations

import asyncio
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from waltz_ray.client.directory import Location
from waltz_ray.client.transport import Channel, Transport
from waltz_ray.errors import WireError
from waltz_ray.wire.codec import BATCH_VERSION, CLIENT_VERSIONS, ClientMessage, decode_client, encode_client
from waltz_ray.wire.framing import (
    FRAME_HEADER_BYTES,
    MAGIC_CLIENT,
    MAGIC_HELLO,
    Frame,
    FrameDecoder,
    Hello,
    decode_hello,
    encode_hello,
    frame_header,
    negotiate,
)
from waltz_ray.wire.primitives import BytesLike

__all__ = ["Stream", "StreamPool", "check_version", "hello_frame"]

_HELLO_TIMEOUT_S = 5.0
_JOINED_BYTES = 16 * 1024  # parts that are smaller on the average are joined


def hello_frame() -> bytes:
    """Our HELLO: every version of the client protocol, and who we are for the server's log."""
    return encode_hello(Hello(CLIENT_VERSIONS, f"waltz_ray client {socket.gethostname()}/{os.getpid()}"))


def check_version(frame: Frame) -> None:
    """The peer's first frame must be a HELLO that leads to version 5."""
    if frame.magic != MAGIC_HELLO:
        raise WireError(f"the server's first frame is not HELLO but magic 0x{frame.magic:02X}; is this the right port?")
    version = negotiate(CLIENT_VERSIONS, decode_hello(frame.payload).versions)
    if version < BATCH_VERSION:
        raise WireError(f"the server speaks version {version} at most, this client needs {BATCH_VERSION}; upgrade it")


class Stream(ABC):
    """One connection to one server, from HELLO to its end. Subclasses take the messages. IO thread only."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._decoder = FrameDecoder(max_frame_bytes)
        self._channel: Channel | None = None
        self._hello: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._greeted = False
        self._error: Exception | None = None
        self.ended = False
        self.over = asyncio.Event()
        self.on_end: Callable[[], None] = lambda: None

    async def open(self, transport: Transport, location: Location) -> None:
        """Connect and greet; ``OSError`` or ``WireError`` if that fails."""
        try:
            self._channel = await transport.connect(location, self)
            if self._error is not None:  # the server's first bytes came before we had the channel to close
                self._channel.close()
            self._channel.write([hello_frame()])
            await asyncio.wait_for(asyncio.shield(self._hello), _HELLO_TIMEOUT_S)
        except BaseException:
            self._hello.cancel()
            self.close()
            raise

    @property
    def busy(self) -> bool:
        """The wire is not free: gather a larger batch."""
        return self._channel is None or self._channel.busy

    def send(self, message: ClientMessage) -> None:
        """Send one message; nothing happens on a stream that has ended (``stream_lost`` says so)."""
        if self._channel is not None and not self.ended:
            self.send_parts(encode_client(BATCH_VERSION, message))

    def send_parts(self, parts: list[BytesLike]) -> None:
        """Send the payload that ``parts`` make together, as ``send`` does."""
        if self._channel is None or self.ended:
            return
        size = sum(map(len, parts))
        header = frame_header(MAGIC_CLIENT, BATCH_VERSION, size)
        # A buffer costs the event loop as much as copying a kilobyte does.
        joined = size < _JOINED_BYTES * len(parts)
        self._channel.write([b"".join((header, *parts))] if joined else [header, *parts])

    def close(self, error: Exception | None = None) -> None:
        """End the stream because of ``error``; ``stream_lost`` follows."""
        self._error = self._error or error
        if self._channel is not None:
            self._channel.close()

    @abstractmethod
    def message_received(self, message: ClientMessage, frame_bytes: int) -> None:
        """One message; ``frame_bytes`` is what it cost of the feed credit. WireError ends the stream."""

    @abstractmethod
    def stream_lost(self, error: Exception) -> None:
        """The stream has ended; called once."""

    def writable(self) -> None:  # noqa: B027 - only a stream with something to send cares
        """The wire is free again."""

    def chunk_ended(self) -> None:  # noqa: B027 - only a stream that gathers answers cares
        """Every message that came together has been handled, or one of them was wrong."""

    def received(self, data: bytes | memoryview) -> None:
        if self.ended:
            return
        try:
            for frame in self._decoder.feed(data):
                if self._greeted:
                    message = decode_client(BATCH_VERSION, frame.payload)
                    self.message_received(message, FRAME_HEADER_BYTES + len(frame.payload))
                else:
                    check_version(frame)
                    self._greeted = True
                    self._decoder.expect(MAGIC_CLIENT, BATCH_VERSION)
                    if not self._hello.done():
                        self._hello.set_result(None)
        except WireError as error:
            self.close(error)
        finally:
            self.chunk_ended()

    def lost(self, error: Exception | None) -> None:
        if self.ended:
            return
        self.ended = True
        self.over.set()
        reason = self._error or error or ConnectionResetError("the server closed the connection")
        if not self._hello.done():
            self._hello.set_exception(reason)
        self.on_end()
        self.stream_lost(reason)


S = TypeVar("S", bound=Stream)


class StreamPool(Generic[S]):
    """At most one stream per server incarnation, opened when first asked for. IO thread only."""

    def __init__(self, transport: Transport, make: Callable[[], S]) -> None:
        self._transport = transport
        self._make = make
        self._streams: dict[tuple[int, object], asyncio.Task[S]] = {}
        self.opened = 0
        """Streams ever opened."""

    async def get(self, location: Location) -> S:
        """The stream to the server of ``location``; ``OSError`` or ``WireError`` if it cannot be had."""
        key = (location.server_id, location.endpoint)
        task = self._streams.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._open(location, key))
            self._streams[key] = task
        return await asyncio.shield(task)  # others may be waiting for the same stream

    async def _open(self, location: Location, key: tuple[int, object]) -> S:
        stream = self._make()
        try:
            stream.on_end = lambda: self._forget(key)
            await stream.open(self._transport, location)
        except BaseException:
            self._forget(key)
            raise
        self.opened += 1
        return stream

    def _forget(self, key: tuple[int, object]) -> None:
        self._streams.pop(key, None)

    async def close(self) -> None:
        """End every stream and wait for what is still being opened."""
        tasks = list(self._streams.values())
        for task in tasks:
            task.cancel()  # one that has its stream is not affected
        for stream in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(stream, Stream):
                stream.close()
                await stream.over.wait()
