"""What one client, or a stranger, can make a server keep (docs/wire.md, "Limits")."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.actors.bench_server import GENERATION, Door, bench_server, open_with, records_of
from tests.actors.test_feed_pace import in_loop, mount_4, mount_5, until
from waltz_ray import compat
from waltz_ray.actors.client_peer import CLIENTS_OF_A_CONNECTION
from waltz_ray.actors.server import Server
from waltz_ray.config import ServerConfig
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.client import (
    DataRangeRequest,
    DataRangeResponse,
    ErrorMessage,
    FeedCredit,
    FeedMode,
    Mount,
    Mounted,
    TimesRequest,
)
from waltz_ray.protocol.messages.original import HighWaterMarkRequest, MountResponse
from waltz_ray.protocol.partition.feed import FEED_CREDIT_LIMIT_BYTES
from waltz_ray.protocol.times import TimeMarks
from waltz_ray.wire.codec import ClientMessage
from waltz_ray.wire.framing import MAGIC_CLIENT, Hello, encode_hello, frame_header

TLS_HELLO = bytes.fromhex("16 0301 0200 01 0001fc 0303") + bytes(32)
MANY = 1200  # batches of some 30 KB: 36 MB


def large(config: ServerConfig | None = None) -> Server:
    config = config or ServerConfig(join_grace_ms=0)
    return bench_server(config, open_with(MANY, records_each=500, config=config))


async def quiet(server: Server) -> None:
    await until(lambda: not server.turns._feeding)


# ---- who takes nothing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 5])
@in_loop
async def test_a_client_that_takes_nothing_is_sent_a_few_megabytes_whatever_its_credit(version: int) -> None:
    server = large(ServerConfig(join_grace_ms=0, client_unsent_bytes=4 << 20))
    door = Door(server, version, taking=False).greet()
    door.send(mount_4() if version == 4 else mount_5(credit=1 << 60))
    await quiet(server)
    assert door.wire.unsent < 6 << 20
    assert not door.wire.ended
    door.wire.take_all()
    await until(lambda: door.told() and isinstance(door.told()[-1], MountResponse | Mounted))


@in_loop
async def test_a_client_that_takes_nothing_for_long_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    server = large(ServerConfig(join_grace_ms=0, client_unsent_bytes=4 << 20, client_stall_ms=20))
    door = Door(server, taking=False).greet()
    door.send(mount_5(credit=1 << 60))
    async with compat.timeout(20):
        while not door.wire.ended:
            await asyncio.sleep(0.001)
    assert door.wire.ended == "aborted"
    assert "has taken nothing of" in caplog.text
    await asyncio.sleep(0)
    assert server.status().connections == 0
    assert server.drivers[0].machine.subscribers == 0


@in_loop
async def test_a_partition_that_is_first_spoken_to_while_the_peer_takes_nothing_waits_too() -> None:
    server = large(ServerConfig(join_grace_ms=0, client_unsent_bytes=4 << 20))
    door = Door(server, taking=False).greet()
    door.connection.pause_writing()
    door.send(mount_5())
    await quiet(server)
    assert door.wire.unsent < 1000
    door.connection.resume_writing()
    await quiet(server)
    assert door.wire.unsent > 1 << 20


@in_loop
async def test_a_feed_frame_can_be_the_one_too_many() -> None:
    """The feed's own way checks what is unsent: here nobody says that the peer takes nothing."""
    server = large(ServerConfig(join_grace_ms=0, client_unsent_bytes=1 << 20))
    door = Door(server, taking=False).greet()
    door.wire._stalled = True
    door.send(mount_5())
    await quiet(server)
    assert door.wire.ended == "aborted"
    assert door.wire.unsent < 3 << 20


@pytest.mark.parametrize("most", [1, 1 << 20])
@in_loop
async def test_a_record_may_be_longer_than_what_may_wait(most: int) -> None:
    """It was sent, and its client cut off for it, again and again."""
    config = ServerConfig(join_grace_ms=0, client_unsent_bytes=most)
    bench = open_with(1, config=config)
    log = bench.partition.state.log
    assert log is not None
    log.retained.append(records_of(log.retained.end_id, 1, 3 << 20))
    log.high_water_mark += 1
    server = bench_server(config, bench)
    door = Door(server, taking=False).greet()
    door.send(mount_5())
    await until(lambda: door.wire.unsent > 3 << 20)
    assert not door.wire.ended
    door.wire.take_all()
    await quiet(server)
    assert not door.wire.ended


@in_loop
async def test_credit_is_capped_and_never_negative() -> None:
    server = bench_server(bench=open_with(1))
    door = Door(server).greet()
    door.send(mount_5(credit=(1 << 63) - 1))
    for _ in range(3):
        door.send(FeedCredit(0, (1 << 63) - 1))
    await quiet(server)
    [subscriber] = server.drivers[0].machine.feed._subscribers.values()
    assert subscriber.credit_bytes <= FEED_CREDIT_LIMIT_BYTES


@pytest.mark.parametrize("message", [mount_5(credit=-1), FeedCredit(0, -5)])
@in_loop
async def test_a_negative_credit_breaks_the_protocol(message: ClientMessage) -> None:
    server = bench_server(bench=open_with(1))
    door = Door(server).greet()
    door.send(message)
    assert door.wire.ended == "closed"
    [error] = [m for m in door.told() if isinstance(m, ErrorMessage)]
    assert "credit" in error.message


@in_loop
async def test_one_connection_mounts_a_limited_number_of_clients() -> None:
    server = bench_server(bench=open_with(1))
    door = Door(server).greet()
    mounts = [Mount(ReqId(n, GENERATION, 0, 0), -1, FeedMode.OWN, 0) for n in range(CLIENTS_OF_A_CONNECTION)]
    door.send(*mounts)
    door.send(mounts[0])
    await quiet(server)
    open_still = not door.wire.ended
    assert open_still, "the same clients again are no more clients"
    door.send(Mount(ReqId(-9, GENERATION, 0, 0), -1, FeedMode.OWN, 0))
    assert door.wire.ended == "closed"


@in_loop
async def test_a_partition_is_mounted_for_one_client_over_a_connection_of_version_4() -> None:
    server = bench_server(bench=open_with(1))
    door = Door(server, version=4).greet()
    door.send(mount_4(900))
    await quiet(server)
    door.send(mount_4(901))
    assert door.wire.ended == "closed", "a lock failure would be told as of the other one"


# ---- requests ----------------------------------------------------------------------------------------------------


class Reader:
    """Stands for ``Server.read``: counts what is under way, and answers when told to."""

    def __init__(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        self.under_way = self.most = self.done = 0
        self.go = asyncio.Event()
        self._read = server.read
        monkeypatch.setattr(server, "read", self.read)

    async def read(self, *arguments: int) -> object:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.go.wait()
        self.under_way -= 1
        self.done += 1
        return await self._read(*arguments)


@pytest.mark.usefixtures("whole_turns")
@pytest.mark.parametrize(("max_bytes", "most"), [(1 << 30, 4), (1000, 64)])
@in_loop
async def test_only_some_of_many_requests_are_under_way(
    monkeypatch: pytest.MonkeyPatch, max_bytes: int, most: int
) -> None:
    server = bench_server(bench=open_with(10))
    reader = Reader(server, monkeypatch)
    door = Door(server).greet()
    door.send(*[DataRangeRequest(n, 0, 0, 10, max_bytes) for n in range(1500)])
    await asyncio.sleep(0)
    assert reader.under_way == most
    assert not door.wire.reading, "more than a thousand wait"
    reader.go.set()
    await until(lambda: reader.done == 1500)
    assert reader.most == most
    assert door.wire.reading
    await until(lambda: len(door.told()) == 1500)


@pytest.mark.usefixtures("whole_turns")
@in_loop
async def test_answers_for_all_connections_together_are_few_at_one_time_and_all_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each alone has 16 MiB under way; there may be a thousand. One that goes meanwhile keeps nobody waiting."""
    monkeypatch.setattr("waltz_ray.actors.server._ANSWERING_BYTES", 20 << 20)
    server = bench_server(bench=open_with(10))
    reader = Reader(server, monkeypatch)
    doors = [Door(server, address=f"10.0.0.{n}").greet() for n in range(10)]
    for door in doors:
        door.send(*[DataRangeRequest(n, 0, 0, 10, 4 << 20) for n in range(8)])
    await asyncio.sleep(0)
    assert reader.under_way == 5
    doors.pop().wire.abort()
    reader.go.set()
    await until(lambda: all(len(door.told()) == 8 for door in doors))
    assert reader.most == 5
    assert server.answering.used == 0


@pytest.mark.usefixtures("whole_turns")
@pytest.mark.parametrize(("transactions", "most"), [(1 << 40, 2), (100, 64)])
@in_loop
async def test_answers_of_many_times_are_few_at_one_time(
    monkeypatch: pytest.MonkeyPatch, transactions: int, most: int
) -> None:
    server = bench_server(bench=open_with(10))
    under_way, go = Counter[str](), asyncio.Event()

    async def times(first_id: int, end_id: int) -> tuple[int, TimeMarks]:
        under_way["now"] += 1
        under_way["most"] = max(under_way["most"], under_way["now"])
        await go.wait()
        under_way["now"] -= 1
        return 10, ((0, 1),)

    monkeypatch.setattr(server.drivers[0], "times", times)
    door = Door(server).greet()
    door.send(*[TimesRequest(n, 0, 0, transactions) for n in range(200)])
    await asyncio.sleep(0)
    assert under_way["now"] == most
    go.set()
    await until(lambda: len(door.told()) == 200)
    assert under_way["most"] == most


@in_loop
async def test_requests_wait_while_their_answers_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    server = large()
    door = Door(server, taking=False).greet()
    door.send(*[DataRangeRequest(n, 0, 0, MANY * 500, 1 << 30) for n in range(200)])
    for _ in range(1000):
        await asyncio.sleep(0)
    assert not door.wire.ended
    assert door.wire.unsent < 25 << 20
    waiting = len(door.connection._answers._waiting)
    assert waiting > 150
    door.wire.take_all()
    await until(lambda: len(door.told()) >= waiting)


@in_loop
async def test_an_answer_is_bounded_and_made_of_few_batches() -> None:
    config = ServerConfig(join_grace_ms=0)
    tiny = bench_server(config, open_with(5000, config=config))
    assert len(await tiny.read(0, 0, 5000, 1 << 30)) == 1024
    door = Door(large()).greet()
    door.send(DataRangeRequest(1, 0, 0, MANY * 500, (1 << 31) - 1))
    await until(door.told)
    [answer] = door.told()
    assert isinstance(answer, DataRangeResponse)
    assert answer.batch is not None
    assert 0 < answer.batch.size_bytes <= 4 << 20


# ---- half frames -------------------------------------------------------------------------------------------------


def half_frame(door: Door, megabytes: int) -> None:
    door.connection.data_received(frame_header(MAGIC_CLIENT, 5, 64 << 20))
    for _ in range(megabytes):
        door.connection.data_received(bytes(1 << 20))


@in_loop
async def test_a_frame_that_is_left_unfinished_ends_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    server = bench_server(ServerConfig(client_stall_ms=20))
    door, idle = Door(server).greet(), Door(server).greet()
    half_frame(door, 1)
    async with compat.timeout(20):
        while not door.wire.ended:
            await asyncio.sleep(0.001)
    assert "its frame is not whole, and 0 bytes of it have come in 20 ms" in caplog.text
    assert not idle.wire.ended
    await asyncio.sleep(0)
    assert server.half_frames.used_bytes == 0


@in_loop
async def test_strangers_with_half_frames_share_what_is_kept_and_keep_nobody_out() -> None:
    server = bench_server(bench=open_with(3))
    strangers = [Door(server, address=f"10.0.0.{n}").greet() for n in range(5)]
    for stranger in strangers:
        half_frame(stranger, 63)
        assert server.half_frames.used_bytes <= 256 << 20
    assert [bool(stranger.wire.ended) for stranger in strangers] == [True, False, False, False, False]
    client = Door(server).greet()
    half_frame(client, 20)
    assert not client.wire.ended
    assert [bool(stranger.wire.ended) for stranger in strangers] == [True, True, False, False, False]
    for door in (*strangers, client):
        door.wire.abort()
    await asyncio.sleep(0)
    assert server.half_frames.used_bytes == 0
    assert not any(door.connection._greeted.unfinished for door in (*strangers, client))


@in_loop
async def test_what_all_who_take_nothing_have_together_is_bounded_and_who_reads_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each alone has 8 MiB waiting for it; there may be a thousand."""
    monkeypatch.setattr("waltz_ray.actors.server._UNTAKEN_BYTES", 24 << 20)
    server = large()
    strangers = [Door(server, address=f"10.0.0.{n}", taking=False).greet() for n in range(8)]
    for stranger in strangers:
        stranger.send(mount_5(credit=1 << 60))
        await quiet(server)
    waiting = [stranger for stranger in strangers if not stranger.wire.ended]
    assert sum(stranger.wire.unsent for stranger in waiting) <= 2 * (24 << 20)
    assert 2 <= len(waiting) < 8
    assert "nor have others what they were sent" in caplog.text
    reader = Door(server).greet()
    reader.send(mount_5(credit=1 << 60))
    await quiet(server)
    assert not reader.wire.ended
    assert len(reader.wire.written) > 30 << 20, "all of it"


# ---- strangers ---------------------------------------------------------------------------------------------------


@in_loop
async def test_who_says_nothing_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    server = bench_server(ServerConfig(hello_timeout_ms=20))
    silent, greeted = Door(server), Door(server).greet()
    async with compat.timeout(20):
        while not silent.wire.ended:
            await asyncio.sleep(0.001)
    assert "no HELLO for 20 ms" in caplog.text
    assert not greeted.wire.ended


@pytest.mark.parametrize("data", [TLS_HELLO, TLS_HELLO[:1]])
@in_loop
async def test_a_tls_client_gets_a_line_in_the_log_and_is_closed(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    door = Door(bench_server())
    door.connection.data_received(data)
    assert door.wire.ended == "closed"
    assert "it is a TLS client, and this port speaks the plain protocol" in caplog.text


@in_loop
async def test_limits_in_all_and_from_one_address(caplog: pytest.LogCaptureFixture) -> None:
    server = bench_server(ServerConfig(connections=5, connections_per_peer=3))
    first = [Door(server, address="10.0.0.1") for _ in range(10)]
    assert [bool(door.wire.ended) for door in first] == [False] * 3 + [True] * 7
    second = [Door(server, address="10.0.0.2") for _ in range(3)]
    assert [bool(door.wire.ended) for door in second] == [False] * 2 + [True]
    assert len([line for line in caplog.records if "refused" in line.getMessage()]) == 1, "not a line for each"
    for door in first[:3]:
        door.wire.abort()
    await asyncio.sleep(0)
    assert not Door(server, address="10.0.0.1").wire.ended, "there is room again"


@pytest.mark.parametrize(
    "data",
    [
        encode_hello(Hello(tuple(range(100, 16_000)), "x")),
        frame_header(0x48, 0, 60_000),
        frame_header(MAGIC_CLIENT, 5, 60_000_000),
    ],
)
@in_loop
async def test_before_hello_nothing_long_is_waited_for(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    door = Door(bench_server())
    door.connection.data_received(data)
    assert door.wire.ended == "closed"
    assert len(caplog.text) < 2000


@in_loop
async def test_closed_connections_leave_nothing_behind() -> None:
    server = bench_server(bench=open_with(3))
    for n in range(50):
        door = Door(server, address=f"10.0.0.{n}").greet()
        door.send(mount_5(n), HighWaterMarkRequest(ReqId(n, GENERATION, 0, 1)))
        door.wire.abort()
        await asyncio.sleep(0)
    await quiet(server)
    assert (server.limit.open, server.connections) == (0, {})
    hub = server.drivers[0].machine.feed
    assert not any((hub._subscribers, hub._by_connection, hub._due, hub._caught_up, hub._live, hub._paused))
