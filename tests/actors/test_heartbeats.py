"""Who answers nothing is told from who is only slow, and from ourselves being stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from tests.actors.bench_server import bench_server
from waltz_ray import compat
from waltz_ray.actors.client_connection import ClientConnection
from waltz_ray.actors.endpoint_probe import probe_endpoint
from waltz_ray.actors.heartbeats import Heartbeats, Silence
from waltz_ray.net.limit import ConnectionLimit
from waltz_ray.protocol.ids import Endpoint


def silence(told: list[str]) -> Silence:
    return Silence(1.5, partial(told.append, "silent"), partial(told.append, "well"))


def turns(one: Silence, count: int, heard: bool, seconds: float = 0.25) -> None:
    for _ in range(count):
        if heard:
            one.heard()
        one.passed(seconds)


def test_who_answers_is_not_silent_and_who_does_not_is_told_of_once() -> None:
    told: list[str] = []
    one = silence(told)
    turns(one, 100, heard=True)
    turns(one, 5, heard=False)
    assert told == []
    turns(one, 100, heard=False)
    assert told == ["silent"]


def test_who_was_silent_has_to_answer_for_a_while() -> None:
    told: list[str] = []
    one = silence(told)
    turns(one, 7, heard=False)
    turns(one, 18, heard=True)
    turns(one, 3, heard=False)
    turns(one, 19, heard=True)
    assert told == ["silent"], "between, it was silent once more"
    turns(one, 1, heard=True)
    assert told == ["silent", "well"]
    turns(one, 7, heard=False)
    assert told == ["silent", "well", "silent"]


def test_who_hears_nobody_at_all_calls_nobody_silent() -> None:
    told: list[str] = []
    well = partial(told.append, "well")
    one = Silence(1.5, partial(told.append, "0 silent"), well, lambda: other.speaks)
    other = Silence(1.5, partial(told.append, "1 silent"), well, lambda: one.speaks)
    for _ in range(20):
        turns(one, 1, heard=False)
        turns(other, 1, heard=False)
    assert told == []
    turns(other, 1, heard=True)
    turns(one, 1, heard=False)
    assert told == ["0 silent"], "the other one is heard again"


def test_while_we_were_stopped_ourselves_nobody_was_silent() -> None:
    told: list[str] = []
    one = silence(told)
    turns(one, 2, heard=False, seconds=60.0)
    one.heard()
    turns(one, 2, heard=False, seconds=60.0)
    assert told == []


def test_a_server_answers_and_one_whose_loop_stands_still_is_silent() -> None:
    """A real server behind a real socket; then somebody who accepts and says HELLO, and nothing more."""
    told: list[str] = []

    async def run() -> None:
        silent = asyncio.Event()
        server = bench_server()
        listener = await asyncio.get_running_loop().create_server(server.new_connection, "127.0.0.1", 0)
        heard = asyncio.Event()
        answers = 0

        def on_heard() -> None:
            nonlocal answers
            answers += 1
            if answers == 3:  # its HELLO, and two answers
                heard.set()

        beats = Heartbeats(0.5, silent.set, lambda: None)
        note(beats, on_heard)
        endpoint = Endpoint("127.0.0.1", listener.sockets[0].getsockname()[1])
        refused, answered = partial(told.append, "refused"), partial(told.append, "answered")
        work = asyncio.gather(probe_endpoint(beats.new_probe, endpoint, refused, answered), beats.run())
        async with compat.timeout(20):
            await heard.wait()
            assert not silent.is_set()
            for connection in list(server.connections.values()):
                assert isinstance(connection, ClientConnection)
                connection.hold_input("the test")  # nothing is read any more
            await silent.wait()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        listener.close()
        for connection in list(server.connections.values()):
            assert isinstance(connection, ClientConnection)
            connection.abort("the test is over")
        while server.connections:
            await asyncio.sleep(0)

    asyncio.run(run())
    assert told == []


def test_a_server_that_has_no_place_for_one_more_connection_is_not_silent() -> None:
    """It serves those that there are: if its partitions went, all of these would go after them."""

    async def run() -> None:
        server = bench_server()
        server.limit = ConnectionLimit("test", 0, 0)
        listener = await asyncio.get_running_loop().create_server(server.new_connection, "127.0.0.1", 0)
        heard = asyncio.Semaphore(0)
        beats = Heartbeats(0.5, lambda: None, lambda: None)
        note(beats, heard.release)
        endpoint = Endpoint("127.0.0.1", listener.sockets[0].getsockname()[1])
        work = asyncio.gather(
            probe_endpoint(beats.new_probe, endpoint, lambda: None, lambda: None), beats.run(), return_exceptions=True
        )
        async with compat.timeout(5):
            for _ in range(3):
                await heard.acquire()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        listener.close()

    asyncio.run(run())


def note(beats: Heartbeats, call: Callable[[], None]) -> None:
    silence, heard = beats._silence, beats._silence.heard

    def both() -> None:
        heard()
        call()

    silence.heard = both  # type: ignore[method-assign]
