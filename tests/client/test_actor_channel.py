"""The transport of an actor channel keeps what asyncio promises a stream: back-pressure both ways, and one end."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from waltz_ray.client.actor_transport import ActorTransport
from waltz_ray.client.directory import Location
from waltz_ray.net.connector import Opening
from waltz_ray.protocol.ids import Endpoint


class Call:
    """One method of the handle; its answers are given by the test."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.open: deque[Future[Any]] = deque()

    def remote(self, *arguments: Any) -> SimpleNamespace:
        self.calls.append(arguments)
        answer: Future[Any] = Future()
        self.open.append(answer)
        return SimpleNamespace(future=lambda: answer)


class Handle:
    def __init__(self) -> None:
        self.channel_open, self.channel_send = Call(), Call()
        self.channel_receive, self.channel_close = Call(), Call()


class Stream(Opening):
    def __init__(self) -> None:
        self.transport: Any = None
        self.happened: list[object] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.happened.append(data)

    def pause_writing(self) -> None:
        self.happened.append("busy")

    def resume_writing(self) -> None:
        self.happened.append("writable")

    def connection_lost(self, exc: Exception | None) -> None:
        self.happened.append(("lost", exc))


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def connected() -> tuple[Handle, Stream]:
    handle, stream = Handle(), Stream()
    connecting = asyncio.ensure_future(
        ActorTransport(lambda server_id: handle).connect(Location(3, 1, Endpoint("nowhere", 1)), stream)
    )
    while not handle.channel_open.calls:
        await asyncio.sleep(0)
    handle.channel_open.open.popleft().set_result("c")
    await connecting
    assert stream.transport.get_extra_info("peername") == "the actor of server 3"
    await turns()
    return handle, stream


def test_nothing_is_handed_over_while_reading_is_paused() -> None:
    async def run() -> None:
        handle, stream = await connected()
        stream.transport.pause_reading()
        handle.channel_receive.open.popleft().set_result(b"one")
        await turns()
        assert stream.happened == []
        assert len(handle.channel_receive.calls) == 1, "nor is more asked for"
        stream.transport.resume_reading()
        await turns()
        assert stream.happened == [b"one"]
        assert [call[1] for call in handle.channel_receive.calls] == [0, 1]
        stream.transport.abort()
        await turns()

    asyncio.run(asyncio.wait_for(run(), 20))


def test_some_calls_at_a_time_then_it_is_busy_and_ends_once() -> None:
    async def run() -> None:
        handle, stream = await connected()
        for number in range(6):
            stream.transport.write(b"%d" % number)
        await turns()
        assert stream.happened == ["busy"]
        assert [call[2] for call in handle.channel_send.calls] == [b"0", b"1", b"2", b"3"]
        assert stream.transport.get_write_buffer_size() == 2
        while handle.channel_send.open:
            handle.channel_send.open.popleft().set_result(None)
            await turns()
        assert handle.channel_send.calls[-1][1:] == (4, b"45"), "what waited goes together"
        assert stream.happened == ["busy", "writable"]
        stream.transport.close()
        stream.transport.abort()
        stream.transport.write(b"late")
        await turns()
        assert stream.happened[2:] == [("lost", None)]
        assert len(handle.channel_close.calls) == 1
        assert len(handle.channel_send.calls) == 5

    asyncio.run(asyncio.wait_for(run(), 20))


def test_it_ends_also_where_the_process_has_left_ray() -> None:
    """Nothing can be asked of the actor then, not even to close the channel."""

    class Left:
        def remote(self, *arguments: Any) -> SimpleNamespace:
            raise ConnectionError("this process has left Ray")

    async def run() -> None:
        handle, stream = await connected()
        handle.channel_close = handle.channel_send = Left()  # type: ignore[assignment]
        stream.transport.write(b"x")
        await turns()
        assert str(stream.happened) == "[('lost', ConnectionError('this process has left Ray'))]"
        handle, stream = await connected()
        handle.channel_close = Left()  # type: ignore[assignment]
        stream.transport.abort()
        await turns()
        assert stream.happened == [("lost", None)]

    asyncio.run(asyncio.wait_for(run(), 20))
