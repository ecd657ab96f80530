"""A server's link to a replica that takes nothing: cut off when it falls behind the others, not when all are slow."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.actors.bench_server import records_of
from tests.actors.listening import Listening
from tests.net.late_timeout import cancelled_as_time_is_over
from tests.security.keys import SECRET, SilentReplica, doorkeeper, keyring
from waltz_ray import compat
from waltz_ray.actors.replica_endpoint import ReplicaEndpoint
from waltz_ray.actors.replica_link import ReplicaLink
from waltz_ray.config import ServerConfig
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.protocol.authentication import Role, Secret
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.messages.replica import (
    APPEND_REQUEST,
    Read,
    Records,
    RefusalCode,
    Refused,
    ReplicaReply,
    StateReply,
)
from waltz_ray.protocol.partition.events import SessionConfirmed
from waltz_ray.protocol.pool import Pool
from waltz_ray.protocol.session_types import ReplicaAvailable, ReplicaLost, SessionEvent
from waltz_ray.security.handshakes import Keyring
from waltz_ray.wire.framing import MAGIC_REPLICA, encode_frame, frame_header
from waltz_ray.wire.replica_codec import REPLICA_VERSION, encode_replica

LAG_BYTES = 1024 * 1024


async def _until(heard: asyncio.Queue[SessionEvent | SessionConfirmed], kind: type[SessionEvent]) -> SessionEvent:
    while True:
        event = await asyncio.wait_for(heard.get(), 20)
        if isinstance(event, kind):
            return event


@asynccontextmanager
async def silent_replicas(deaf: bool = False) -> AsyncIterator[tuple[list[SilentReplica], Endpoint]]:
    """Whoever connects to the endpoint gets one; all are gone in the end."""
    replicas: list[SilentReplica] = []

    def accept() -> SilentReplica:
        replicas.append(SilentReplica(deaf=deaf))
        return replicas[-1]

    listener = await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0)
    try:
        yield replicas, Endpoint("127.0.0.1", listener.sockets[0].getsockname()[1])
    finally:
        for replica in replicas:
            replica.abort("the test is over")
        listener.close()
        await listener.wait_closed()


def test_a_replica_is_behind_when_it_lacks_what_is_committed() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        async with silent_replicas(deaf=True) as (_, endpoint):
            heard: asyncio.Queue[SessionEvent | SessionConfirmed] = asyncio.Queue()
            queue = Pool(1 << 40)
            config = ServerConfig(replica_lag_bytes=LAG_BYTES)
            drivers = Listening(lambda _, event: heard.put_nowait(event), 0)
            link = ReplicaLink(0, uuid.uuid4(), config, drivers, Outgoing(), queue, keyring())
            link.move_to(endpoint)
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

    asyncio.run(run())


def test_a_replica_that_denies_a_server_is_asked_again_with_pauses(caplog: pytest.LogCaptureFixture) -> None:
    """Not in a circle, and without a line each time; when the secrets are equal again the link works."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        async with silent_replicas(deaf=True) as (replicas, endpoint):
            heard: asyncio.Queue[SessionEvent | SessionConfirmed] = asyncio.Queue()
            drivers = Listening(lambda _, event: heard.put_nowait(event), 0)
            right, mine = SECRET, [Secret(bytes(32))]
            keys = Keyring(lambda: mine[0].credential(Role.SERVER))
            link = ReplicaLink(0, uuid.uuid4(), ServerConfig(), drivers, Outgoing(), Pool(1), keys)
            link.move_to(endpoint)
            begun = loop.time()
            while loop.time() - begun < 1.0:
                await asyncio.sleep(0.01)  # what is counted is attempts in a time
            assert 2 <= len(replicas) <= 20
            assert not link.up
            assert heard.empty()
            assert "compare their secret files" in link._down_because
            mine[0] = right
            await _until(heard, ReplicaAvailable)
            await link.close()

    asyncio.run(run())
    told = [record.getMessage() for record in caplog.records if record.name == "waltz_ray.actors.replica_link"]
    assert len([line for line in told if "compare their secret files" in line]) == 1, told


def test_a_replica_that_has_no_place_for_a_server_is_asked_again_with_pauses() -> None:
    """Its connections are all taken, by whomever: it closes each one at once. When it has room the link works."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        heard: asyncio.Queue[SessionEvent | SessionConfirmed] = asyncio.Queue()
        drivers = Listening(lambda _, event: heard.put_nowait(event), 0)
        turned_away, replicas, room = [0], list[SilentReplica](), [False]

        class Full(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                turned_away[0] += 1
                transport.close()

        def accept() -> asyncio.Protocol:
            if not room[0]:
                return Full()
            replicas.append(SilentReplica(deaf=True))
            return replicas[-1]

        listener = await loop.create_server(accept, "127.0.0.1", 0)
        link = ReplicaLink(0, uuid.uuid4(), ServerConfig(), drivers, Outgoing(), Pool(1), keyring())
        link.move_to(Endpoint("127.0.0.1", listener.sockets[0].getsockname()[1]))
        begun = loop.time()
        while loop.time() - begun < 0.3:
            await asyncio.sleep(0.01)  # what is counted is connections in a time
        assert 2 <= turned_away[0] <= 20
        assert heard.empty()
        room[0] = True
        await _until(heard, ReplicaAvailable)
        await link.close()
        for replica in replicas:
            replica.abort("the test is over")
        listener.close()
        await listener.wait_closed()

    asyncio.run(run())


def test_a_full_disk_under_many_partitions_does_not_fill_a_servers_log(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        drivers = Listening(lambda _, event: None, *range(500))
        link = ReplicaLink(0, uuid.uuid4(), ServerConfig(), drivers, Outgoing(), Pool(1), keyring())
        for partition_id in range(500):
            message = f"partition {partition_id}: no space left"
            link.on_live(Refused(partition_id, 1, APPEND_REQUEST, RefusalCode.DISK_FULL, 1, 7, message))
        await link.close()

    asyncio.run(run())
    assert 1 <= len([record for record in caplog.records if "no space left" in record.getMessage()]) <= 40


def test_a_link_ends_that_is_closed_in_the_turn_in_which_a_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.10 then tells it of the time only (``compat.timeout``)."""

    async def run() -> None:
        link = ReplicaLink(
            0, uuid.uuid4(), ServerConfig(), Listening(lambda _, event: None, 0), Outgoing(), Pool(1), keyring()
        )
        await asyncio.sleep(0)  # it waits
        await link.close()

    told = cancelled_as_time_is_over(monkeypatch)
    asyncio.run(asyncio.wait_for(run(), 5))
    assert len(told) == 1


def test_a_record_that_is_longer_than_clients_frames_may_be_now_is_read_all_the_same() -> None:
    """It was taken when they could be longer; a link that ended at it would take all partitions with it."""
    longest = 1 << 20
    record = records_of(0, 1, 3 * longest)
    requests: list[Read] = []

    def answer(asked: Any, connection: object) -> list[ReplicaReply]:
        requests.extend(asked)
        return [Records(0, -1, record.first_id, record.lengths, record.records) for _ in asked]

    async def run() -> None:
        endpoint = ReplicaEndpoint(answer, doorkeeper())
        heard: asyncio.Queue[SessionEvent | SessionConfirmed] = asyncio.Queue()
        drivers = Listening(lambda _, event: heard.put_nowait(event), 0)
        config = ServerConfig(max_frame_bytes=longest)
        link = ReplicaLink(0, uuid.uuid4(), config, drivers, Outgoing(), Pool(1), keyring())
        link.move_to(endpoint.start())
        await _until(heard, ReplicaAvailable)
        batch = await asyncio.wait_for(link.read(Read(0, -1, 0, 1, longest // 2)), 20)
        assert batch.size_bytes > longest
        assert (link.up, heard.empty(), len(requests)) == (True, True, 1)
        await link.close()
        await asyncio.to_thread(endpoint.stop)

    asyncio.run(run())


def test_a_read_that_is_not_answered_ends_the_link_though_orders_are() -> None:
    """The connections are two: what comes over one says nothing about the other, which a router may have forgotten."""
    released = threading.Event()

    def answer(asked: Any, connection: object) -> list[ReplicaReply]:
        if any(isinstance(request, Read) for request in asked):
            released.wait(60)
        return [StateReply(0, request.session_id, 1, -1, -1, -1, False) for request in asked]

    async def run() -> None:
        endpoint = ReplicaEndpoint(answer, doorkeeper())
        heard: asyncio.Queue[SessionEvent | SessionConfirmed] = asyncio.Queue()
        drivers = Listening(lambda _, event: heard.put_nowait(event), 0)
        config = ServerConfig(replica_timeout_ms=300)
        link = ReplicaLink(0, uuid.uuid4(), config, drivers, Outgoing(), Pool(1), keyring())
        link.move_to(endpoint.start())
        await _until(heard, ReplicaAvailable)
        reading = asyncio.ensure_future(link.read(Read(0, -1, 0, 1, 100)))
        async with compat.timeout(20):
            while not reading.done() and link.up:
                link.confirm(0, 1, 7)
                assert await heard.get() == SessionConfirmed(1, 0, 7) or not link.up
                await asyncio.sleep(0.02)  # orders go on all the time
            with pytest.raises(ConnectionError, match="no answer for 300 ms"):
                await reading
        released.set()
        await link.close()
        await asyncio.to_thread(endpoint.stop)

    try:
        asyncio.run(run())
    finally:
        released.set()


def test_an_answer_that_is_long_in_coming_is_waited_for_as_long_as_it_comes() -> None:
    async def run() -> None:
        async with silent_replicas() as (replicas, endpoint):
            heard: asyncio.Queue[SessionEvent | SessionConfirmed] = asyncio.Queue()
            drivers = Listening(lambda _, event: heard.put_nowait(event), 0)
            config = ServerConfig(replica_timeout_ms=500)
            link = ReplicaLink(0, uuid.uuid4(), config, drivers, Outgoing(), Pool(1), keyring())
            link.move_to(endpoint)
            await _until(heard, ReplicaAvailable)
            reading = asyncio.ensure_future(link.read(Read(0, -1, 0, 1, 100)))
            replicas[1].send_bytes(frame_header(MAGIC_REPLICA, REPLICA_VERSION, 1000))
            for _ in range(30):
                replicas[1].send_bytes(b"x")
                await asyncio.sleep(0.05)  # how slow the line is
                link._check_progress(asyncio.get_running_loop().time())
            assert not reading.done()
            await _until(heard, ReplicaLost)
            with pytest.raises(ConnectionError, match="no answer for 500 ms"):
                await reading
            await link.close()

    asyncio.run(run())


def test_what_is_left_of_a_connection_that_was_given_up_is_of_no_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes at once is worked off in turns of the loop, and in between the replica may be found elsewhere."""
    monkeypatch.setattr("waltz_ray.net.stream._TURN_S", 0)  # a turn for each frame
    failures: list[object] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context))
        async with silent_replicas() as (replicas, endpoint):
            heard: asyncio.Queue[SessionEvent | SessionConfirmed] = asyncio.Queue()

            def tell(_: int, event: SessionEvent | SessionConfirmed) -> None:
                heard.put_nowait(event)
                if event == SessionConfirmed(1, 0, 0):
                    loop.call_soon(link.move_to, Endpoint("127.0.0.1", 1))

            drivers = Listening(tell, 0)
            link = ReplicaLink(0, uuid.uuid4(), ServerConfig(), drivers, Outgoing(), Pool(1), keyring())
            link.move_to(endpoint)
            await _until(heard, ReplicaAvailable)
            stream = link._live
            assert stream is not None
            for number in range(5):
                link.confirm(0, 1, number)
            reply = encode_frame(
                MAGIC_REPLICA, REPLICA_VERSION, *encode_replica(StateReply(0, 1, 1, -1, -1, -1, False))
            )
            replicas[0].send_bytes(5 * reply)
            assert await asyncio.wait_for(heard.get(), 20) == SessionConfirmed(1, 0, 0)
            assert isinstance(await asyncio.wait_for(heard.get(), 20), ReplicaLost)
            async with compat.timeout(20):
                while not stream.ended:
                    await asyncio.sleep(0)
            assert heard.empty()
            await link.close()

    asyncio.run(run())
    assert not failures
