"""Messages over a stream of the client's: HELLO, frames, and one pool of open streams per purpose."""

from __future__ import annotations

import asyncio
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from waltz_ray.client.directory import Location
from waltz_ray.client.liveness import Liveness, WhatToDo
from waltz_ray.client.transport import Introducing, Transport
from waltz_ray.errors import WireError
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.net.stream import GreetedStream, Patience
from waltz_ray.protocol.messages.client import PartitionStateRequest, ShowToken
from waltz_ray.wire.codec import BATCH_VERSION, CLIENT_VERSIONS, ClientMessage, encode_client
from waltz_ray.wire.framing import MAGIC_CLIENT, frame_header, meaning_cluster
from waltz_ray.wire.primitives import BytesLike

__all__ = ["ClientStream", "StreamPool", "check_version", "greeting"]

_HELLO_TIMEOUT_MS = 5000
_BUSY_BYTES = 1024 * 1024
_JOINED_BYTES = 16 * 1024  # parts that are smaller on the average are joined
_NOBODYS = -1  # the number of a question whose answer is only a sign of life
_NO_PARTITION = -1  # whose state anybody may ask for, whatever rights clients need


def greeting(cluster_key: str) -> str:
    """Who we are, for the server's log, and which cluster is meant."""
    return meaning_cluster(f"waltz_ray client {socket.gethostname()}/{os.getpid()}", cluster_key)


def check_version(version: int) -> None:
    """What was agreed on must be version 5."""
    if version < BATCH_VERSION:
        raise WireError(f"the server speaks version {version} at most, this client needs {BATCH_VERSION}; upgrade it")


class ClientStream(GreetedStream, Introducing, ABC):
    """One connection to one server, from HELLO to its end. Subclasses take the frames. IO thread only."""

    def __init__(self, max_frame_bytes: int, silent_ms: int, cluster_key: str = "") -> None:
        """``silent_ms``: a server that says nothing for so long, though asked, is given up; 0: never. ``cluster_key``:
        of the cluster whose server it has to be, "" if that is not known."""
        patience = Patience(first_ms=_HELLO_TIMEOUT_MS, busy_bytes=_BUSY_BYTES)
        super().__init__(MAGIC_CLIENT, CLIENT_VERSIONS, max_frame_bytes, greeting(cluster_key), Outgoing(), patience)
        self._hello: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._token = ""
        self.over = asyncio.Event()
        self.on_end: Callable[[], None] = lambda: None
        self._liveness = Liveness(silent_ms / 1000) if silent_ms else None
        self._beat: asyncio.TimerHandle | None = None

    def introduce(self, token: str) -> None:
        self._token = token

    async def open(self, transport: Transport, location: Location) -> None:
        """Connect and greet; ``OSError`` or ``WireError`` if that fails."""
        try:
            await transport.connect(location, self)
            await self._hello
        except BaseException as error:
            self._hello.cancel()
            self.close(error if isinstance(error, Exception) else None)
            raise

    def send(self, message: ClientMessage) -> None:
        """Send one message; nothing happens on a stream that has ended (``stream_lost`` says so)."""
        if not self.ended:
            self.send_parts(encode_client(BATCH_VERSION, message))

    def send_parts(self, parts: list[BytesLike]) -> None:
        """Send the payload that ``parts`` make together, as ``send`` does."""
        size = sum(map(len, parts))
        header = frame_header(MAGIC_CLIENT, BATCH_VERSION, size)
        # A buffer costs the event loop as much as copying a kilobyte does.
        joined = size < _JOINED_BYTES * len(parts)
        self.send_pieces([b"".join((header, *parts))] if joined else [header, *parts])

    def close(self, error: Exception | None = None) -> None:
        """End the stream because of ``error``, dropping what is unsent; ``stream_lost`` follows."""
        self.abort(error or "closed by this client")

    @property
    @abstractmethod
    def expects(self) -> bool:
        """Whether something is waited for, so that the server has to be heard soon."""

    def _listen(self, liveness: Liveness, before_s: float) -> None:
        now_s, come = self._loop.time(), self.carried()
        if come is None:
            return  # no TCP connection: whoever carries it knows when it is over
        verdict = liveness.passed(now_s - before_s, come, self.expects)
        if verdict is WhatToDo.GIVE_UP:
            self.close(ConnectionResetError(f"{self.peer} has said nothing for a while, though asked"))
            return
        if verdict is WhatToDo.ASK:
            self.send(PartitionStateRequest(_NOBODYS, _NO_PARTITION))
        self._beat = self._loop.call_later(liveness.beat_s, self._listen, liveness, now_s)

    @abstractmethod
    def on_frame(self, frame: memoryview) -> None:
        """The payload of one message of version 5. WireError ends the stream."""

    @abstractmethod
    def stream_lost(self, error: Exception) -> None:
        """The stream has ended; called once."""

    def on_ready(self) -> None:
        super().on_ready()
        check_version(self.version)
        if self._token:
            self.send(ShowToken(self._token))
        if self._liveness is not None:
            self._listen(self._liveness, self._loop.time())
        if not self._hello.done():
            self._hello.set_result(None)

    def on_protocol_error(self, error: WireError) -> None:
        self.close()  # nothing that still waits to be sent matters to a side that gives up

    def on_closed(self, error: Exception) -> None:
        if self._beat is not None:
            self._beat.cancel()
        self.over.set()
        if not self._hello.done():
            self._hello.set_exception(error)
        self.on_end()
        self.stream_lost(error)


S = TypeVar("S", bound=ClientStream)


class StreamPool(Generic[S]):
    """At most one stream per server incarnation, opened when first asked for. IO thread only."""

    def __init__(self, transport: Transport, make: Callable[[], S]) -> None:
        self._transport = transport
        self._make = make
        self._streams: dict[tuple[int, object], asyncio.Task[S | Exception]] = {}

    async def get(self, location: Location) -> S:
        """The stream to the server of ``location``; ``OSError`` or ``WireError`` if it cannot be had."""
        key = (location.server_id, location.endpoint)
        task = self._streams.get(key)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._open(location, key))
            self._streams[key] = task
        found = await asyncio.shield(task)  # others may be waiting for the same stream
        if isinstance(found, Exception):
            raise found
        return found

    async def _open(self, location: Location, key: tuple[int, object]) -> S | Exception:
        """The stream, or why there is none: told, and not raised, since everybody who has asked may have left."""
        stream, task = self._make(), asyncio.current_task()

        def forget() -> None:
            if self._streams.get(key) is task:  # else another one has been asked for since
                del self._streams[key]

        try:
            stream.on_end = forget
            await stream.open(self._transport, location)
        except BaseException as error:
            forget()
            if isinstance(error, Exception):
                return error
            raise
        return stream

    async def close(self) -> None:
        """End every stream and wait for what is still being opened."""
        tasks = list(self._streams.values())
        for task in tasks:
            task.cancel()  # one that has its stream is not affected
        try:
            for stream in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(stream, ClientStream):
                    stream.close()
                    await stream.over.wait()
        finally:  # nobody comes back to them, if who waits is cancelled
            for task in tasks:
                if task.done() and not task.cancelled() and isinstance(stream := task.result(), ClientStream):
                    stream.close()
