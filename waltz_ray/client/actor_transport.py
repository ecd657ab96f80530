"""The transport for networks where actors' ports cannot be reached: the same frames through actor method calls.

The methods are those of the ``PartitionServer`` actor. Every call carries its number, because the order in which an
actor starts calls is not relied on::

    channel_open() -> str
    channel_send(channel, number, data) -> None       numbers from 0, one chunk of the stream each
    channel_receive(channel, number) -> bytes | None  long poll; b"" = nothing yet, None = closed by the server
    channel_close(channel) -> None

A call that fails ends the channel: its outcome is unknown, and the next mount finds out what is in the log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from typing import Any

from waltz_ray import compat
from waltz_ray.client.directory import Location
from waltz_ray.client.transport import Opening

__all__ = ["ActorTransport"]

_SENDS_AT_ONCE = 4
_CHUNK_BYTES = 4 * 1024 * 1024


class ActorTransport:
    """``handle_of(server_id)`` gives the handle of a server's actor; it may raise OSError, and must not block long. So
    may the handle, when the process has left Ray."""

    shared: Hashable | None = None

    def __init__(self, handle_of: Callable[[int], Any], connect_timeout_ms: int = 10_000) -> None:
        self._handle_of = handle_of
        self._connect_timeout_s = connect_timeout_ms / 1000

    async def connect(self, location: Location, stream: Opening) -> None:
        loop = asyncio.get_running_loop()
        handle = await loop.run_in_executor(None, self._handle_of, location.server_id)
        try:
            async with compat.timeout(self._connect_timeout_s):
                name = await _answer(handle.channel_open.remote())
        except TimeoutError:
            raise
        except Exception as error:
            raise ConnectionError(f"the actor of server {location.server_id} does not answer: {error}") from error
        stream.connection_made(_ActorChannel(handle, str(name), f"the actor of server {location.server_id}", stream))


async def _answer(reference: Any) -> Any:
    """The result of a call: a Ray object reference, through its future."""
    return await asyncio.wrap_future(reference.future())


class _ActorChannel(asyncio.Transport):
    """The asyncio transport of one virtual connection, as far as ``net.stream`` uses it."""

    def __init__(self, handle: Any, name: str, peer: str, stream: asyncio.Protocol) -> None:
        super().__init__({"peername": peer})
        self._handle = handle
        self._name = name
        self._stream = stream
        self._waiting: list[bytes] = []
        self._next_number = 0
        self._closing = self._lost = False
        self._full = False
        self._loop = asyncio.get_running_loop()
        self._sends: set[asyncio.Task[None]] = set()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._receiving = self._loop.create_task(self._receive())

    # ---- out --------------------------------------------------------------------------------------------

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It is full when some calls are under way, however much they carry."""

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self._waiting))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        self._waiting.append(bytes(data))
        if len(self._sends) < _SENDS_AT_ONCE:
            self._send_waiting()
        if not self._full and len(self._sends) >= _SENDS_AT_ONCE:
            self._full = True
            self._stream.pause_writing()

    def _send_waiting(self) -> None:
        size = 0
        chunk: list[bytes] = []
        while self._waiting and (not chunk or size + len(self._waiting[0]) <= _CHUNK_BYTES):
            size += len(self._waiting[0])
            chunk.append(self._waiting.pop(0))
        number, self._next_number = self._next_number, self._next_number + 1
        task = self._loop.create_task(self._send(number, b"".join(chunk)))
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)

    async def _send(self, number: int, data: bytes) -> None:
        try:
            await _answer(self._handle.channel_send.remote(self._name, number, data))
        except Exception as error:  # noqa: BLE001 - whatever Ray or the actor raises, the channel has ended
            self._end(error)
            return
        self._loop.call_soon(self._sent)

    def _sent(self) -> None:
        if self._closing:
            return
        if self._waiting:
            self._send_waiting()
        elif self._full and len(self._sends) < _SENDS_AT_ONCE:
            self._full = False
            self._stream.resume_writing()

    # ---- in ---------------------------------------------------------------------------------------------

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    async def _receive(self) -> None:
        number = 0
        while not self._lost:
            try:
                data = await _answer(self._handle.channel_receive.remote(self._name, number))
            except Exception as error:  # noqa: BLE001 - as above
                self._end(error)
                return
            await self._may_read.wait()
            if data is None:
                self._end(None)
                return
            if data and not self._lost:
                number += 1
                self._stream.data_received(data)

    # ---- the end ----------------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """As ``abort``: a client that gives up has nothing to say any more."""
        self.abort()

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            with suppress(OSError):  # this process has left Ray: the server hears nothing more, and ends it, too
                self._handle.channel_close.remote(self._name)
            self._loop.call_soon(self._end, None)

    def _end(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._closing = self._lost = True
        self._waiting.clear()
        for task in (*self._sends, self._receiving):
            if task is not asyncio.current_task():
                task.cancel()
        self._stream.connection_lost(error)
