"""The asyncio stream by itself: any framer, exactly one end, and nothing kept for whoever takes nothing."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tests.actors.bench_server import Wire
from waltz_ray import compat
from waltz_ray.errors import WireError
from waltz_ray.net.carried import Carried
from waltz_ray.net.limit import ConnectionLimit
from waltz_ray.net.listener import listen
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.net.stream import FOREVER, Patience, Stream


class Lines:
    """A framer of another protocol: lines, of at most ten bytes."""

    def __init__(self) -> None:
        self.ready = False
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > 10:
            raise WireError("a line of more than 10 bytes")
        self.ready = self.ready or bool(lines)
        return lines

    def eof(self) -> None:
        if self._rest:
            raise WireError("the last line has no end")


class Shouting(Stream[bytes]):
    def __init__(self, outgoing: Outgoing, patience: Patience = FOREVER, limit: ConnectionLimit | None = None) -> None:
        super().__init__(Lines(), outgoing, patience, limit, b"hello\n")
        self.happened: list[object] = []

    def on_ready(self) -> None:
        self.happened.append("ready")

    def on_frame(self, frame: bytes) -> None:
        self.happened.append(frame)
        if frame == b"bad":
            raise WireError("a bad word")
        self.send_bytes(frame.upper() + b"\n")

    def on_busy(self) -> None:
        self.happened.append("busy")

    def on_writable(self) -> None:
        self.happened.append("writable")

    def on_protocol_error(self, error: WireError) -> None:
        self.send_bytes(f"{error}\n".encode())

    def on_closed(self, error: Exception) -> None:
        self.happened.append(error)


class Ends(Wire):
    """The transport calls connection_lost however often it is ended."""

    def _end(self, how: str) -> None:
        self.ended = self.ended or how
        asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)


def connected(
    taking: bool = True, patience: Patience = FOREVER, limit: ConnectionLimit | None = None
) -> tuple[Shouting, Wire]:
    stream, wire = Shouting(Outgoing(), patience, limit), Ends(taking=taking)
    wire.protocol = stream
    stream.connection_made(wire)
    return stream, wire


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 20))


async def ended(stream: Stream[Any]) -> None:
    while not stream.ended:
        await asyncio.sleep(0.001)


@pytest.mark.usefixtures("whole_turns")
def test_a_framer_of_another_protocol() -> None:
    async def body() -> None:
        stream, wire = connected()
        stream.data_received(b"on")
        assert stream.happened == []
        stream.data_received(b"e\ntwo\nthr")
        assert stream.happened == ["ready", b"one", b"two"]
        assert wire.written == b"hello\nONE\nTWO\n"
        stream.data_received(b"ee\nbad\nfour\n")
        assert wire.written == b"hello\nONE\nTWO\nTHREE\na bad word\n"
        await ended(stream)
        error = stream.happened[-1]
        assert isinstance(error, WireError)
        assert str(error) == "10.0.0.1:4711: a bad word"
        assert b"four" not in stream.happened

    run(body())


def test_the_end_is_told_once_with_its_first_cause() -> None:
    async def body() -> None:
        stream, _ = connected()
        stream.finish("it is late")
        stream.abort("it is very late")
        stream.connection_lost(ConnectionResetError("reset"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stream.data_received(b"one\n")
        stream.send_bytes(b"two")
        stream.send_pieces([b"three"])
        assert [str(event) for event in stream.happened if isinstance(event, Exception)] == [
            "10.0.0.1:4711: it is late"
        ]

    run(body())


def test_given_up_before_it_is_connected() -> None:
    async def body() -> None:
        stream, wire = Shouting(Outgoing()), Ends()
        stream.abort("nobody waits for it")
        wire.protocol = stream
        stream.connection_made(wire)
        assert wire.ended == "aborted"
        await ended(stream)
        assert wire.written == b"", "not even who we are"

    run(body())


def test_the_limit_counts_what_it_admitted() -> None:
    async def body() -> None:
        limit = ConnectionLimit("test", 1, 1)
        first, _ = connected(limit=limit)
        second, wire = connected(limit=limit)
        assert wire.ended == "aborted"
        await ended(second)
        assert limit.open == 1
        first.abort("")
        await ended(first)
        assert limit.open == 0

    run(body())


@pytest.mark.parametrize("finished", [False, True])
def test_who_takes_nothing_is_closed_also_at_the_end(finished: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)

    async def body() -> None:
        stream, wire = connected(taking=False, patience=Patience(untaken_ms=10, busy_bytes=100))
        wire._end = lambda how: Ends._end(wire, how) if how == "aborted" else None  # type: ignore[arg-type, method-assign]
        stream.send_bytes(bytes(50))
        assert not stream.busy
        if finished:
            stream.finish("said what there was to say")
        else:
            stream.send_bytes(bytes(51))
            assert stream.happened == ["busy"]
        await ended(stream)
        assert "it has taken nothing of" in caplog.text

    run(body())


@pytest.mark.parametrize("finished", [False, True])
def test_who_takes_slowly_is_waited_for_but_not_at_the_end(finished: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Over a thin line, of which the kernel says how much has been taken: 1 KiB a second is enough."""

    async def body() -> None:
        stream, wire = connected(taking=False, patience=Patience(untaken_ms=100, busy_bytes=100))
        wire._end = lambda how: Ends._end(wire, how) if how == "aborted" else None  # type: ignore[arg-type, method-assign]
        taken = iter([0, 102, 102, 204, 204, 305, *([999] * 9)])
        stream.carried = lambda: Carried(0, next(taken), 0)  # type: ignore[method-assign]
        stream.send_bytes(bytes(20_000))
        if finished:
            stream.finish("said what there was to say")
        await ended(stream)
        assert next(taken) == (102 if finished else 999)
        assert f"taken only {102 if finished else 101} of 20006 bytes for 100 ms" in caplog.text

    run(body())


def test_who_takes_again_is_not_closed() -> None:
    async def body() -> None:
        stream, wire = connected(taking=False, patience=Patience(untaken_ms=10_000, busy_bytes=100))
        stream.send_bytes(bytes(200))
        wire.take_all()
        assert stream.happened == ["busy", "writable"]
        assert not stream._timers
        stream.abort("")
        await ended(stream)

    run(body())


def test_who_takes_some_at_the_end_has_to_take_the_rest_too() -> None:
    async def body() -> None:
        stream, wire = connected(taking=False, patience=Patience(untaken_ms=10, busy_bytes=100))

        def end(how: str) -> None:
            wire.ended = how
            if how == "aborted":
                Ends._end(wire, how)  # type: ignore[arg-type]

        wire._end = end  # type: ignore[method-assign]
        stream.send_bytes(bytes(200))
        stream.finish("said what there was to say")
        wire.unsent = 10
        stream.resume_writing()
        await ended(stream)

    run(body())


@pytest.mark.parametrize("loop_runs", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_who_stops_sending_has_to_take_what_is_left(loop_runs: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    """The transport closes once all is taken; who never does would have its connection for ever."""

    async def body() -> None:
        limit, made = ConnectionLimit("test", 1, 1), list[Shouting]()

        def make() -> Shouting:
            made.append(Shouting(Outgoing(), Patience(untaken_ms=50, busy_bytes=1 << 20), limit))
            return made[-1]

        listener = await listen("test", make, "127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", listener.port)) as peer:
            async with compat.timeout(10):
                while not made or made[0]._transport is None:
                    await asyncio.sleep(0.001)
                (stream,) = made
                while stream.unsent_bytes < 1 << 19:
                    stream.send_bytes(bytes(1 << 16))
                peer.shutdown(socket.SHUT_WR)
                await ended(stream)
        assert not limit.open
        assert not stream._timers
        listener.close()

    loop_runs(body())
