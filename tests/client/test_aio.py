"""What only ``AsyncWaltzClient`` promises: it needs no thread, and what is cancelled leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing
from typing import Any, TypeVar, cast

import pytest

from tests.client.conftest import PATIENCE_S, Recorder
from tests.client.fake_server import FakeDirectory, FakeServer
from waltz_ray import compat
from waltz_ray.client import AsyncWaltzClient, Location, TransactionBuilder, TransactionContext, WaltzClient
from waltz_ray.client.outbox import Outbox
from waltz_ray.client.own_loop import AwaitedFate, OwnLoop
from waltz_ray.client.requests import AppendCall
from waltz_ray.client.tcp import TcpTransport
from waltz_ray.config import ClientConfig
from waltz_ray.errors import ClientClosed, DataUnavailable, InvalidInput, ZooKeeperUnreachable

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _no_thread_of_its_own() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("waltz")]


async def until(condition: Callable[[], object]) -> None:
    """Let the loop run until it holds."""
    async with compat.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


def run(test: Callable[[], Awaitable[T]]) -> T:
    """On a new loop; nothing of the test may be left on it."""

    async def main() -> T:
        result = await test()
        await asyncio.sleep(0)
        assert {task for task in asyncio.all_tasks() if task is not asyncio.current_task()} == set()
        return result

    return asyncio.run(main())


class Simple(TransactionContext):
    def __init__(self) -> None:
        self.executions = 0
        self.told: list[object] = []

    def partition_id(self, partitions: int) -> int:
        return 0

    def execute(self, builder: TransactionBuilder) -> bool:
        self.executions += 1
        builder.data = b"context"
        builder.write_lock("row", 1)
        return True

    def on_completion(self, committed: bool) -> None:
        self.told.append(committed)

    def on_exception(self, error: BaseException) -> None:
        self.told.append(type(error))


def test_many_at_once(server: FakeServer, directory: FakeDirectory) -> None:
    async def test() -> list[int]:
        async with AsyncWaltzClient(directory, TcpTransport()) as client:
            return await asyncio.gather(*[client.append(0, b"%d" % i) for i in range(1000)])

    ids = run(test)
    assert sorted(ids) == list(range(1000))
    assert [server.logs[0].data()[i] for i in ids] == [b"%d" % i for i in range(1000)]


def test_it_has_to_be_started_and_may_be_so_twice(directory: FakeDirectory) -> None:
    async def test() -> None:
        client = AsyncWaltzClient(directory, TcpTransport())
        with pytest.raises(InvalidInput, match="has not been started"):
            await client.append(0, b"x")
        await client.close()
        await asyncio.gather(client.start(), client.start())
        assert await client.append(0, b"x") == 0
        await asyncio.gather(client.close(), client.close())
        with pytest.raises(ClientClosed):
            await client.append(0, b"y")
        with pytest.raises(ClientClosed):
            await client.server_high_water_mark(0)

    run(test)
    assert directory.closed


def test_a_start_that_fails_leaves_nothing(server: FakeServer) -> None:
    class Away(FakeDirectory):
        def watch(self, callback: Callable[[Mapping[int, Location]], None]) -> Callable[[], None]:
            raise ZooKeeperUnreachable("away")

    async def test() -> None:
        with pytest.raises(ZooKeeperUnreachable):
            async with AsyncWaltzClient(Away({0: server}), TcpTransport(), Recorder()):
                pytest.fail("it cannot begin")

    run(test)


def test_a_start_that_failed_can_be_made_again(server: FakeServer) -> None:
    """It passed for made, as every call that followed for one of a closed client."""

    class AwayAtFirst(FakeDirectory):
        asked = 0

        def watch(self, callback: Callable[[Mapping[int, Location]], None]) -> Callable[[], None]:
            self.asked += 1
            if self.asked == 1:
                raise ZooKeeperUnreachable("away")
            return super().watch(callback)

    async def test() -> None:
        client = AsyncWaltzClient(AwayAtFirst({0: server}), TcpTransport())
        with pytest.raises(ZooKeeperUnreachable):
            await client.start()
        async with client:
            assert await client.append(0, b"x") == 0

    run(test)


def test_a_start_that_is_cancelled_watches_nothing(server: FakeServer) -> None:
    class Slow(FakeDirectory):
        gate, began, ended = threading.Event(), threading.Event(), threading.Event()

        def watch(self, callback: Callable[[Mapping[int, Location]], None]) -> Callable[[], None]:
            self.began.set()
            assert self.gate.wait(PATIENCE_S)
            super().watch(callback)
            return self.ended.set

    directory = Slow({0: server})

    async def test() -> None:
        starting = asyncio.create_task(AsyncWaltzClient(directory, TcpTransport()).start())
        await until(directory.began.is_set)
        starting.cancel()
        await asyncio.wait([starting])
        directory.gate.set()
        await until(directory.ended.is_set)

    run(test)


def test_a_close_during_the_start_waits_for_it(server: FakeServer) -> None:
    class Slow(FakeDirectory):
        gate, began = threading.Event(), threading.Event()

        def watch(self, callback: Callable[[Mapping[int, Location]], None]) -> Callable[[], None]:
            self.began.set()
            assert self.gate.wait(PATIENCE_S)
            return super().watch(callback)

    directory = Slow({0: server})

    async def test() -> None:
        client = AsyncWaltzClient(directory, TcpTransport())
        starting = asyncio.create_task(client.start())
        await until(directory.began.is_set)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        directory.gate.set()
        await asyncio.gather(starting, closing)
        with pytest.raises(ClientClosed):
            await client.append(0, b"x")

    run(test)
    assert directory.closed


def test_an_append_cancelled_before_it_is_sent_is_never_sent(server: FakeServer, directory: FakeDirectory) -> None:
    async def test() -> None:
        async with AsyncWaltzClient(directory, TcpTransport(), config=ClientConfig(outstanding_appends=2)) as client:
            server.script.hold_mounts = True
            gone = [
                asyncio.create_task(client.append(0, b"gone")),
                asyncio.create_task(client.append_many(0, [b"gone"])),
            ]
            waits = asyncio.create_task(client.append(0, b"waits for room"))
            await until(lambda: server.mount_marks)
            for task in (*gone, waits):
                task.cancel()
            await asyncio.gather(*gone, waits, return_exceptions=True)
            assert all(task.cancelled() for task in (*gone, waits))
            outbox = client._engine.attachments[0].outbox
            assert (outbox.outstanding, outbox.blocked, outbox.open_appends()) == (0, 0, [])
            server.script.hold_mounts = False
            server.drop_connections()
            assert [*await asyncio.gather(client.append(0, b"a"), client.append(0, b"b"))] == [0, 1]

    run(test)
    assert server.logs[0].data() == [b"a", b"b"]


@pytest.mark.parametrize("arrived", [True, False])
def test_an_append_cancelled_after_it_was_sent_leaks_no_room(
    server: FakeServer, directory: FakeDirectory, arrived: bool
) -> None:
    """It may still commit; if it has been lost, it is not sent again."""

    async def test() -> None:
        async with AsyncWaltzClient(directory, TcpTransport(), config=ClientConfig(outstanding_appends=1)) as client:
            await client.append(0, b"first")
            server.script.hold_appends = True
            task = asyncio.create_task(client.append(0, b"cancelled"))
            await until(lambda: sum(server.batch_sizes) == 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            outbox = client._engine.attachments[0].outbox
            assert outbox.outstanding == 1  # its fate is still open
            if arrived:
                server.append_directly(0, [b"other"])
            server.script.hold_appends = False
            server.drop_connections()
            assert await client.append(0, b"next") == 1 + arrived
            assert outbox.open_appends() == []

    run(test)
    assert server.logs[0].data() == [b"first", *([b"other"] if arrived else []), b"next"]


def test_of_an_append_cancelled_when_it_was_taken_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A part of many may have been sent by then: it was an exception that was never retrieved."""

    class Full:
        """There is room just when who waits for it is cancelled."""

        def offer(self, append: object) -> bool:
            return False

        def stand_in_line(self, append: object, told: Callable[[None], None]) -> None:
            self.told = told

        def leave_line(self, append: object) -> bool:
            return False

        def withdraw(self, append: object) -> bool:
            return False

    async def test() -> None:
        shell, full = OwnLoop(ClientConfig()), Full()
        fate: AwaitedFate[int] = AwaitedFate(shell.loop)
        task = asyncio.create_task(shell.sent(cast(Outbox, full), cast(AppendCall, None), fate, None))
        await asyncio.sleep(0)
        full.told(None)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        fate.set_exception(ClientClosed("in the end"))

    run(test)
    gc.collect()
    assert not caplog.records


def test_a_cancelled_context_is_not_executed_again(server: FakeServer, directory: FakeDirectory) -> None:
    """Nor does it keep its place in the line of its lock."""

    async def test() -> None:
        async with AsyncWaltzClient(directory, TcpTransport(), Recorder()) as client:
            await client.wait_ready(PATIENCE_S)
            server.script.hold_appends = True
            context, other = Simple(), Simple()
            task = asyncio.create_task(client.submit(context))
            await until(lambda: server.batch_sizes)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert context.told == [asyncio.CancelledError]
            server.script.hold_appends = False
            server.drop_connections()
            assert await client.submit(other)
            assert (context.executions, other.told) == (1, [True])
            await client.flush(PATIENCE_S)
            assert client._engine.attachments[0].lines._lines == {}

    run(test)
    assert server.logs[0].data() == [b"context"]


def test_a_cancelled_feed_closes_its_connection(server: FakeServer, directory: FakeDirectory) -> None:
    async def test() -> None:
        async with AsyncWaltzClient(directory, TcpTransport()) as client:
            server.append_directly(0, [b"0", b"1"])
            seen: list[int] = []

            async def follow() -> None:
                async for transaction in client.feed(0, start=1, follow=True):
                    seen.append(transaction.transaction_id)

            task = asyncio.create_task(follow())
            await until(lambda: seen == [1])
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: not server.connections)
            async with aclosing(client.feed(0, follow=True)) as feed:
                async for transaction in feed:
                    seen.append(transaction.transaction_id)
                    if transaction.transaction_id == 1:
                        break
            await until(lambda: not server.connections)
            assert seen == [1, 0, 1]

    run(test)


def test_a_stop_that_is_cancelled_leaves_no_feed_behind(server: FakeServer, directory: FakeDirectory) -> None:
    """Wherever that is: it left a connection over which the server went on to feed."""

    async def test() -> int:
        async with AsyncWaltzClient(directory, TcpTransport()) as client:
            for turns in itertools.count(1):
                follower = client.feed(None, follow=True)
                await until(lambda: len(server.mounts) == 2)
                stopping = asyncio.create_task(follower.stop())
                for _ in range(turns):
                    await asyncio.sleep(0)
                stopping.cancel()
                await asyncio.wait([stopping])
                await until(lambda: not (server.connections or client._engine._subscriptions))
                if not stopping.cancelled():
                    return turns
        raise AssertionError("unreachable")

    assert run(test) > 2


def test_a_feed_that_cannot_begin_to_follow_is_over(directory: FakeDirectory) -> None:
    """Who polled until it was stopped was told again and again, and his loop did nothing else."""

    async def test() -> None:
        async with AsyncWaltzClient(directory, TcpTransport(), config=ClientConfig(request_timeout_ms=50)) as client:
            directory.move(0, None)
            follower = client.feed(0, start="latest", follow=True)
            with pytest.raises(DataUnavailable):
                await follower.poll()
            assert follower.stopped
            assert not await follower.poll()
            with pytest.raises(StopAsyncIteration):
                await anext(follower)

    run(test)


def test_close_ends_who_follows_and_who_asks(server: FakeServer, directory: FakeDirectory) -> None:
    async def test() -> None:
        client = AsyncWaltzClient(directory, TcpTransport())
        await client.start()

        async def follow() -> None:
            async for _ in client.feed(0, follow=True):
                pytest.fail("the log is empty")

        following = asyncio.create_task(follow())
        await until(lambda: server.mounts)
        directory.move(1, None)
        asking = asyncio.create_task(client.server_high_water_mark(1))
        mounting = asyncio.create_task(client.wait_ready())
        await asyncio.sleep(0)
        await client.close()
        for task in (following, asking, mounting):
            with pytest.raises(ClientClosed):
                await task

    run(test)


def test_both_clients_have_one_set_of_names() -> None:
    def names(kind: type[object]) -> dict[str, list[str]]:
        public = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
        return {name: [*inspect.signature(each).parameters] for name, each in public.items() if callable(each)}

    loop_only = {"start"}  # WaltzClient starts where it is made
    of_loop = {name: arguments for name, arguments in names(AsyncWaltzClient).items() if name not in loop_only}
    assert of_loop == names(WaltzClient)


def test_many_are_not_before_appends_that_wait_for_their_turn(server: FakeServer, directory: FakeDirectory) -> None:
    """A turn of the loop begins 128 appends; what was called after the others must not be before them in the log."""

    async def test() -> None:
        async with AsyncWaltzClient(directory, TcpTransport()) as client:
            await client.append(0, b"first")
            before = [asyncio.ensure_future(client.append(0, b"%d" % n)) for n in range(300)]
            many = asyncio.ensure_future(client.append_many(0, [b"a", b"b"]))
            last = asyncio.ensure_future(client.append(0, b"c"))
            assert [*await asyncio.gather(*before), *await many, await last] == [*range(1, 304)]

    run(test)


@pytest.mark.parametrize("many", [False, True])
def test_nothing_is_before_appends_that_begin_in_the_next_turn(
    many: bool, server: FakeServer, directory: FakeDirectory
) -> None:
    """Those that waited for a turn are let go in one turn of the loop and begin in the next: what another task called
    in between was before them in the log."""

    async def test() -> None:
        async with AsyncWaltzClient(directory, TcpTransport()) as client:
            await client.append(0, b"first")
            calls: list[asyncio.Future[Any]] = [asyncio.ensure_future(client.append(0, b"a")) for _ in range(130)]
            for _ in range(8):  # one of these turns is that in which the last two of them are let go
                await asyncio.sleep(0)
                more = client.append_many(0, [b"b"]) if many else client.append(0, b"b")
                calls.append(asyncio.ensure_future(more))
            await asyncio.gather(*calls)
            assert [transaction.data async for transaction in client.feed(0, start=1)] == 130 * [b"a"] + 8 * [b"b"]

    run(test)


async def longest_pause_s(work: Coroutine[Any, Any, None]) -> float:
    """Between two turns of the loop in which ``work`` is done. Without the garbage collector, whose are its own; by a
    clock that stands still while this thread waits for a CPU, or for Python's lock, whose owner may wait for one."""
    task, longest_s, last_s = asyncio.create_task(work), 0.0, time.thread_time()
    gc.disable()
    try:
        while not task.done():
            await asyncio.sleep(0)
            now_s = time.thread_time()
            longest_s, last_s = max(longest_s, now_s - last_s), now_s
    finally:
        gc.enable()
    await task
    return longest_s


@pytest.mark.parametrize("timeout", [None, 20.0])
def test_a_loop_never_pauses_under_thousands_of_appends(
    server: FakeServer, directory: FakeDirectory, timeout: float | None
) -> None:
    """3,000 tasks append at once, with room for 50: no turn of the loop lasts 20 ms, and no order is lost."""

    async def test() -> None:
        async with AsyncWaltzClient(directory, TcpTransport(), config=ClientConfig(outstanding_appends=50)) as client:
            await client.append(0, b"first")

            async def appends() -> None:
                first_id = len(server.logs[0].data())
                tasks = [asyncio.create_task(client.append(0, b"%d" % i, timeout=timeout)) for i in range(3000)]
                await asyncio.sleep(0)
                for number, task in enumerate(tasks, first_id):
                    assert await task == number

            # Of three times the best: a host that takes the whole machine away tells nobody.
            pauses_s = [await longest_pause_s(appends()) for _ in range(3)]
            assert min(pauses_s) < 0.020, pauses_s

    run(test)
    assert server.logs[0].data()[1:] == 3 * [b"%d" % i for i in range(3000)]


def test_a_hook_that_raises_hurts_nobody(directory: FakeDirectory, caplog: pytest.LogCaptureFixture) -> None:
    class GivesUp(Simple):
        def execute(self, builder: TransactionBuilder) -> bool:
            return False

        def on_completion(self, committed: bool) -> None:
            raise ValueError("of the application")

    async def test() -> None:
        async with AsyncWaltzClient(directory, TcpTransport(), Recorder()) as client:
            assert not await client.submit(GivesUp())
            assert await client.append(0, b"x") == 0

    run(test)
    assert "of the application" in caplog.text


def test_a_context_that_raises_stop_iteration_ends_all_the_same(directory: FakeDirectory) -> None:
    """A ``next`` that finds nothing, say, which no future of asyncio takes."""

    class FindsNothing(Simple):
        def execute(self, builder: TransactionBuilder) -> bool:
            next(iter([]))
            return True

    async def test() -> None:
        async with AsyncWaltzClient(directory, TcpTransport(), Recorder()) as client:
            context = FindsNothing()
            with pytest.raises(RuntimeError, match="StopIteration") as told:
                async with compat.timeout(PATIENCE_S):
                    await client.submit(context)
            assert isinstance(told.value.__cause__, StopIteration)
            assert context.told == [StopIteration]

    run(test)


def test_on_another_loop_nothing_is_sent(server: FakeServer, directory: FakeDirectory) -> None:
    """It was, and whoever awaited it was told of a future of another loop: who appended it again had it twice."""

    async def elsewhere(client: AsyncWaltzClient) -> None:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: client.append(0, b"x"),
            lambda: client.try_append(0, b"x"),
            lambda: client.append_many(0, [b"x"]),
            lambda: client.submit(Simple()),
            lambda: client.server_high_water_mark(0),
            lambda: anext(client.feed(0)),
            lambda: client.feed(0, follow=True).poll(),
            lambda: client.wait_ready(PATIENCE_S),
            client.flush,
            client.close,
        ]
        for call in calls:
            with pytest.raises(InvalidInput, match="belongs to the loop"):
                await call()

    async def test() -> None:
        async with AsyncWaltzClient(directory, TcpTransport(), Recorder()) as client:
            await client.append(0, b"here")
            await asyncio.to_thread(asyncio.run, elsewhere(client))
            assert await client.append(0, b"and here") == 1

    run(test)
    assert server.logs[0].data() == [b"here", b"and here"]


def test_what_a_client_has_beside_its_loop_is_let_go_of_when_that_is_closed(directory: FakeDirectory) -> None:
    async def begun() -> AsyncWaltzClient:
        client = AsyncWaltzClient(directory, TcpTransport())
        await client.start()
        return client

    client = asyncio.run(begun())
    asyncio.run(client.close())
    assert directory.closed
    with pytest.raises(ClientClosed):
        asyncio.run(client.append(0, b"x"))
