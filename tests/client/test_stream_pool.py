"""A pool of streams: one of each server, also for those who do not wait until it is there."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Hashable
from typing import Any

import pytest

from waltz_ray.client.stream import ClientStream, StreamPool
from waltz_ray.client.transport import Opening
from waltz_ray.protocol.ids import Endpoint, Location

SERVER = Location(0, 1, Endpoint("127.0.0.1", 1))


class Silent(ClientStream):
    @property
    def expects(self) -> bool:
        return False

    def on_frame(self, frame: memoryview) -> None:
        raise AssertionError("nobody is connected")

    def stream_lost(self, error: Exception) -> None:
        pass


class Greets:
    """Is there at once, for streams that look as if they had been greeted."""

    shared: Hashable | None = None

    def __init__(self) -> None:
        self.streams: list[Opening] = []

    async def connect(self, location: Location, stream: Opening) -> None:
        assert isinstance(stream, Silent)
        stream._hello.set_result(None)
        self.streams.append(stream)


class Late:
    """Says no, once it is told to."""

    shared: Hashable | None = None

    def __init__(self) -> None:
        self.now = asyncio.Event()
        self.asked = 0

    async def connect(self, location: Location, stream: Opening) -> None:
        self.asked += 1
        await self.now.wait()
        raise ConnectionRefusedError("nobody is there")


async def leave(transport: Late, pool: StreamPool[Silent], asked: int) -> None:
    """Ask for the stream, and wait no longer."""
    asks = asyncio.ensure_future(pool.get(SERVER))
    while transport.asked < asked:
        await asyncio.sleep(0)
    asks.cancel()
    await asyncio.gather(asks, return_exceptions=True)


def test_why_there_is_no_stream_is_told_to_who_waits_and_to_nobody_else() -> None:
    async def run() -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda loop, context: told.append(context))
        transport = Late()
        pool = StreamPool(transport, lambda: Silent(1 << 20, 0))
        waits = asyncio.ensure_future(pool.get(SERVER))
        await leave(transport, pool, 1)
        transport.now.set()
        with pytest.raises(ConnectionRefusedError):
            await waits
        transport.now.clear()
        await leave(transport, pool, 2)
        transport.now.set()
        while pool._streams:
            await asyncio.sleep(0)
        gc.collect()
        await pool.close()
        return told

    assert asyncio.run(run()) == []


def test_the_end_of_a_stream_is_not_the_end_of_the_one_after_it() -> None:
    """An old stream may say once more that it has ended when there is a new one: that one stays, and is closed."""

    async def run() -> None:
        transport = Greets()
        pool = StreamPool(transport, lambda: Silent(1 << 20, 0))
        first = await pool.get(SERVER)
        first.connection_lost(None)
        second = await pool.get(SERVER)
        assert second is not first
        first.on_end()
        assert await pool.get(SERVER) is second
        second.connection_lost(None)
        assert await pool.get(SERVER) is not second

    asyncio.run(run())
