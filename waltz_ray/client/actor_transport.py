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
from collections.abc import Callable, Iterable
from typing import Any

from waltz_ray.client.directory import Location
from waltz_ray.client.transport import Channel, Receiver
from waltz_ray.wire.primitives import BytesLike

__all__ = ["ActorTransport"]

_SENDS_AT_ONCE = 4
_CHUNK_BYTES = 4 * 1024 * 1024


class ActorTransport:
    """``handle_of(server_id)`` gives the handle of a server's actor; it may raise OSError, and must not block long."""

    def __init__(self, handle_of: Callable[[int], Any], connect_timeout_ms: int = 10_000) -> None:
        self._handle_of = handle_of
        self._connect_timeout_s = connect_timeout_ms / 1000

    async def connect(self, location: Location, receiver: Receiver) -> Channel:
        loop = asyncio.get_running_loop()
        handle = await loop.run_in_executor(None, self._handle_of, location.server_id)
        try:
            name = await asyncio.wait_for(_answer(handle.channel_open.remote()), self._connect_timeout_s)
        except TimeoutError:
            raise
        except Exception as error:
            raise ConnectionError(f"the actor of server {location.server_id} does not answer: {error}") from error
        return _ActorChannel(handle, str(name), receiver)


async def _answer(reference: Any) -> Any:
    """The result of a call: a Ray object reference, through its future."""
    return await asyncio.wrap_future(reference.future())


class _ActorChannel:
    def __init__(self, handle: Any, name: str, receiver: Receiver) -> None:
        self._handle = handle
        self._name = name
        self._receiver = receiver
        self._waiting: list[bytes] = []
        self._next_number = 0
        self._lost = False
        self._loop = asyncio.get_running_loop()
        self._sends: set[asyncio.Task[None]] = set()
        self._receiving = self._loop.create_task(self._receive())

    @property
    def busy(self) -> bool:
        return len(self._sends) >= _SENDS_AT_ONCE

    def write(self, parts: Iterable[BytesLike]) -> None:
        if self._lost:
            return
        self._waiting.append(b"".join(parts))
        if len(self._sends) < _SENDS_AT_ONCE:
            self._send_waiting()

    def close(self) -> None:
        if not self._lost:
            self._handle.channel_close.remote(self._name)
            self._loop.call_soon(self._end, None)

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
        if self._lost:
            return
        if self._waiting:
            self._send_waiting()
        elif not self.busy:
            self._receiver.writable()

    async def _receive(self) -> None:
        number = 0
        while not self._lost:
            try:
                data = await _answer(self._handle.channel_receive.remote(self._name, number))
            except Exception as error:  # noqa: BLE001 - as above
                self._end(error)
                return
            if data is None:
                self._end(None)
                return
            if data and not self._lost:
                number += 1
                self._receiver.received(data)

    def _end(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._waiting.clear()
        for task in (*self._sends, self._receiving):
            if task is not asyncio.current_task():
                task.cancel()
        self._receiver.lost(error)
