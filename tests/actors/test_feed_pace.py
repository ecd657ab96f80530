"""Whatever a client asks, it costs work in proportion to what it gets, and everybody else has his turn in between."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import wraps

import pytest

from tests.actors.bench_server import GENERATION, Door, bench_server, open_with, records_of
from waltz_ray.actors.partition_driver import PartitionDriver
from waltz_ray.config import ServerConfig
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.client import FeedCredit, FeedMode, FeedRecords, Mount, Mounted
from waltz_ray.protocol.messages.original import FeedData, MountRequest, MountResponse
from waltz_ray.protocol.partition.events import Unassigned
from waltz_ray.protocol.records import RecordBatch

TURNS = 100_000
PATIENCE_S = 60.0


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: object, **named: object) -> None:
        async def body() -> None:
            await test(*arguments, **named)

        asyncio.run(body())

    return run


async def until(condition: Callable[[], object]) -> None:
    """Turns of the loop until it holds."""
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, "it never came"
        await asyncio.sleep(0)


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each batch that was looked at."""
    found: list[int] = []
    original = RecordBatch.slice

    def slice_(self: RecordBatch, start: int, end: int) -> RecordBatch:
        found.append(self.first_id)
        return original(self, start, end)

    monkeypatch.setattr(RecordBatch, "slice", slice_)
    return found


def mount_4(client_id: int = 900) -> MountRequest:
    return MountRequest(ReqId(client_id, GENERATION, 0, 0), -1, 1)


def mount_5(client_id: int = 900, credit: int = 1 << 26, mode: FeedMode = FeedMode.RECORDS, mark: int = -1) -> Mount:
    return Mount(ReqId(client_id, GENERATION, 0, 0), mark, mode, credit)


@pytest.mark.parametrize("records", [1000, 3000])
@in_loop
async def test_a_mount_of_version_4_looks_at_each_record_once(slices: list[int], records: int) -> None:
    server = bench_server(bench=open_with(records))
    door = Door(server, version=4).greet()
    door.send(mount_4())
    await until(lambda: door.told() and isinstance(door.told()[-1], MountResponse))
    assert [m.transaction_id for m in door.told() if isinstance(m, FeedData)] == list(range(records))
    assert len(slices) <= 2 * records


@pytest.mark.parametrize("version", [4, 5])
@in_loop
async def test_a_mount_far_behind_lets_others_in_between(version: int) -> None:
    server = bench_server(bench=open_with(20_000 if version == 5 else 2000))
    door = Door(server, version).greet()
    door.send(mount_4() if version == 4 else mount_5())
    other = Door(server, 4)
    asyncio.get_running_loop().call_soon(other.greet)
    await until(lambda: other.connection.version == 4)
    assert not any(isinstance(m, MountResponse | Mounted) for m in door.told()), "it was served in one go"
    await until(lambda: isinstance(door.told()[-1], MountResponse | Mounted))


@in_loop
async def test_credit_costs_what_it_lets_through(slices: list[int]) -> None:
    server = bench_server(bench=open_with(5000, config=ServerConfig(join_grace_ms=0)))
    door = Door(server).greet()
    door.send(mount_5(credit=1))
    await until(lambda: not server.turns._feeding)
    slices.clear()  # a mount is looked at once: is what comes next for it what its CRCs say?
    for _ in range(15):
        await until(lambda: not server.turns._feeding)
        door.send(FeedCredit(0, 100))
    await until(lambda: not server.turns._feeding)
    sent = sum(len(m.batch) for m in door.told() if isinstance(m, FeedRecords))
    assert 0 < sent < 5000
    assert len(slices) <= 2 * sent


@pytest.fixture
def quiet_collector() -> Iterator[None]:
    """As in an actor (``process_tuning``). A process that has run thousands of tests looks at millions of objects in a
    full collection, which takes as long as the turns may: 0.25 s for four millions."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("quiet_collector")
@in_loop
async def test_no_turn_of_the_loop_is_long_whoever_is_behind() -> None:
    """60 clients of both kinds, all at different places. Our own time, with a large factor for slow machines: what
    others have of the processor meanwhile is no turn of ours."""
    server = bench_server(bench=open_with(20_000))
    doors = [Door(server, 4 + n % 2).greet() for n in range(60)]
    for n, door in enumerate(doors):
        mount = MountRequest(ReqId(n, GENERATION, 0, 0), 300 * n, 1)
        door.send(mount if door.version == 4 else mount_5(n, mark=300 * n, mode=FeedMode(1 + n % 3)))
    longest, before = 0.0, time.thread_time()
    for _ in range(TURNS):
        await asyncio.sleep(0)
        now = time.thread_time()
        longest, before = max(longest, now - before), now
        if not server.turns._feeding:
            break
    for door in doors:
        assert isinstance(door.told()[-1], MountResponse | Mounted)
    assert longest < 0.2


@in_loop
async def test_a_batch_of_very_many_records_is_cut() -> None:
    bench = open_with(0)
    log = bench.partition.state.log
    assert log is not None
    log.retained.append(records_of(0, 100_000, size=0))
    log.high_water_mark = 99_999
    server = bench_server(bench=bench)
    door = Door(server).greet()
    door.send(mount_5())
    await until(lambda: door.told() and isinstance(door.told()[-1], Mounted))
    frames = [m.batch for m in door.told() if isinstance(m, FeedRecords)]
    assert [i for b in frames for i in range(b.first_id, b.end_id)] == list(range(100_000))
    assert max(len(b) for b in frames) <= 16_384
    assert max(b.size_bytes for b in frames) <= 1 << 20


@pytest.mark.parametrize("max_frame_bytes", [2048, 100_000])
@in_loop
async def test_a_feed_frame_fits_a_frame(max_frame_bytes: int) -> None:
    config = ServerConfig(join_grace_ms=0, max_frame_bytes=max_frame_bytes)
    bench = open_with(5, records_each=2000, config=config)
    server = bench_server(config, bench)
    door = Door(server).greet()
    door.send(mount_5())
    await until(lambda: door.told() and isinstance(door.told()[-1], Mounted))
    assert max(m.batch.size_bytes for m in door.told() if isinstance(m, FeedRecords)) <= max_frame_bytes // 2


# ---- partitions --------------------------------------------------------------------------------------------------


@in_loop
async def test_partitions_feed_in_turns_one_a_turn_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    server = bench_server()
    order: list[int] = []

    def feed_turn(self: PartitionDriver) -> None:
        order.append(self.partition_id)
        if len(order) < 6:
            server.turns.feed_turn_of(self)

    monkeypatch.setattr(PartitionDriver, "feed_turn", feed_turn)
    for partition_id in (0, 1):
        server.turns.feed_turn_of(server.drivers[partition_id])
    for turn in range(1, 8):
        await asyncio.sleep(0)
        assert len(order) <= turn, "one a turn"
    await until(lambda: not server.turns._feeding)
    assert order[:6] == [0, 1, 0, 1, 0, 1]


class Clock:
    """Each look costs time."""

    def __init__(self, step_s: float) -> None:
        self.now, self.step_s = 0.0, step_s

    def monotonic(self) -> float:
        self.now += self.step_s
        return self.now


@in_loop
async def test_the_turns_of_many_partitions_end_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    server = bench_server()
    monkeypatch.setattr("waltz_ray.actors.turns.time", Clock(0.006))
    order: list[int] = []

    def end_turn(self: PartitionDriver) -> None:
        order.append(self.partition_id)

    monkeypatch.setattr(PartitionDriver, "end_turn", end_turn)
    drivers = [PartitionDriver(n, server) for n in range(6)]
    for driver in drivers:
        server.turns.end_turn_of(driver)
    await asyncio.sleep(0)
    assert 0 < len(order) < 6, "other input has its turn"
    server.turns.end_turn_of(drivers[0])
    await until(lambda: len(order) == 7)
    assert order == [0, 1, 2, 3, 4, 5, 0]


@in_loop
async def test_a_thousand_messages_in_one_piece_are_worked_off_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    server = bench_server(bench=open_with(1))
    door = Door(server).greet()
    seen: list[int] = []
    monkeypatch.setattr(door.connection, "on_frame", lambda frame: seen.append(len(seen)))
    monkeypatch.setattr("waltz_ray.net.stream.time", Clock(0.003))
    door.send(*[FeedCredit(0, n) for n in range(100)])
    assert 0 < len(seen) < 20
    assert not door.wire.reading, "what else it sends waits in the kernel"
    await until(lambda: len(seen) == 100)
    await until(lambda: door.wire.reading)


# ---- the watchdog ------------------------------------------------------------------------------------------------


@in_loop
async def test_a_slow_step_is_counted_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = bench_server()
    driver = server.drivers[1]
    driver.handle(Unassigned("quick"))
    assert server.status().slow_steps == 0
    monkeypatch.setattr("waltz_ray.runtime.driver.time", Clock(0.025))
    for _ in range(100):
        driver.handle(Unassigned("slow"))
    status = server.status()
    assert (status.slow_steps, status.longest_step_ms) == (100, 25.0)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1, "one line a second"
    assert "partition 1: Unassigned took 25 ms" in lines[0]
