"""A server's link to a replica that takes nothing: cut off when it falls behind the others, not when all are slow."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.actors.listening import Listening
from waltz_ray import compat
from waltz_ray.actors.replica_link import ReplicaLink
from waltz_ray.config import ServerConfig
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.partition.events import SessionConfirmed
from waltz_ray.protocol.pool import Pool
from waltz_ray.protocol.session_types import ReplicaAvailable, ReplicaLost, SessionEvent
from waltz_ray.wire.framing import Hello, encode_hello
from waltz_ray.wire.replica_codec import REPLICA_VERSIONS

LAG_BYTES = 1024 * 1024


class Deaf(asyncio.Protocol):
    """Says HELLO and reads no more."""

    def __init__(self, transports: list[asyncio.Transport]) -> None:
        self._transports = transports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(encode_hello(Hello(REPLICA_VERSIONS, "deaf replica")))
        transport.pause_reading()
        self._transports.append(transport)


async def _until(heard: asyncio.Queue[SessionEvent | SessionConfirmed], kind: type[SessionEvent]) -> SessionEvent:
    while True:
        event = await asyncio.wait_for(heard.get(), 20)
        if isinstance(event, kind):
            return event


def test_a_replica_is_behind_when_it_lacks_what_is_committed() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        transports: list[asyncio.Transport] = []
        listener = await loop.create_server(lambda: Deaf(transports), "127.0.0.1", 0)
        heard: asyncio.Queue[SessionEvent | SessionConfirmed] = asyncio.Queue()
        queue = Pool(1 << 40)
        config = ServerConfig(replica_lag_bytes=LAG_BYTES)
        drivers = Listening(lambda _, event: heard.put_nowait(event), 0)
        link = ReplicaLink(0, uuid.uuid4(), config, drivers, Outgoing(), queue)
        link.move_to(Endpoint("127.0.0.1", listener.sockets[0].getsockname()[1]))
        await _until(heard, ReplicaAvailable)
        unsent, piece = 0, bytes(LAG_BYTES)
        while unsent <= 8 * LAG_BYTES:  # what the kernel takes on both sides is no measure
            queue.used_bytes += len(piece)
            link.append(0, 1, 0, piece)
            assert link._live is not None
            unsent = link._live.unsent_bytes
        link._check_progress(loop.time())
        assert link.up, "nothing of it is committed: the others have not taken it either"
        queue.used_bytes = 0
        link._check_progress(loop.time())
        lost = await _until(heard, ReplicaLost)
        assert isinstance(lost, ReplicaLost)
        assert "behind" in lost.reason
        await link.close()
        for transport in transports:
            transport.abort()
        listener.close()
        await listener.wait_closed()

    asyncio.run(run())


def test_a_link_ends_that_is_closed_in_the_turn_in_which_a_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.10 then tells it of the time only (``compat.timeout``)."""

    told: list[float | None] = []

    @asynccontextmanager
    async def over(delay: float | None) -> AsyncIterator[None]:
        try:
            yield
        except asyncio.CancelledError:
            if told:
                raise
            told.append(delay)
            raise TimeoutError from None

    async def run() -> None:
        link = ReplicaLink(0, uuid.uuid4(), ServerConfig(), Listening(lambda _, event: None, 0), Outgoing(), Pool(1))
        await asyncio.sleep(0)  # it waits
        await link.close()

    monkeypatch.setattr(compat, "timeout", over)
    asyncio.run(asyncio.wait_for(run(), 5))
    assert len(told) == 1
