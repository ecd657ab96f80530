"""The native client from threads, beside its own loop; how it is closed, dropped, forked."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as FuturesTimeout  # in Python 3.10 it is not the builtin one
from contextlib import suppress
from typing import Any

import pytest

from tests.topics.client.pulling import LIMIT_S, run
from tests.topics.client.world import FAST, MemoryPlace, TopicWorld, topic_world
from waltz_ray.client.io_thread import IoThread, in_io_thread
from waltz_ray.errors import ClientClosed, InvalidInput, ZooKeeperUnreachable
from waltz_ray.topics import (
    AsyncTopicClient,
    AsyncTopicConsumer,
    MessageBatch,
    TopicClient,
    TopicConsumer,
    TopicProducer,
)
from waltz_ray.topics.client import client as client_module


def beside_a_topic(partitions: int, thread: Callable[[TopicWorld], None]) -> None:
    async def scene() -> None:
        async with topic_world(partitions=partitions) as world:
            await asyncio.to_thread(thread, world)

    run(scene())


def test_a_client_that_is_closed_while_it_starts_does_not_run_on() -> None:
    class Slow(MemoryPlace):
        gate = threading.Event()

        def directory(self) -> Any:
            assert self.gate.wait(LIMIT_S)
            return super().directory()

    async def scene() -> None:
        async with topic_world() as world:
            place = Slow(world.cluster)
            client = AsyncTopicClient(place, FAST)
            starting = asyncio.create_task(client.start())
            await asyncio.sleep(0)
            closing = asyncio.create_task(client.close())
            await asyncio.sleep(0)
            place.gate.set()
            await asyncio.gather(starting, closing)
            with pytest.raises(InvalidInput, match="not been started"):
                client.producer()

    run(scene())


def test_a_client_that_is_dropped_and_not_closed_says_so() -> None:
    async def scene() -> None:
        async with topic_world() as world:
            client = AsyncTopicClient(world.place, FAST)
            await client.start()
            running = client._running
            assert running is not None
            with pytest.warns(ResourceWarning, match="unclosed client of topics: "):
                del client
            await running.ending.come()

    run(scene())


def test_threads_do_the_same() -> None:
    beside_a_topic(partitions=2, thread=in_a_thread)


def test_a_forked_child_leaves_producers_and_consumers_as_they_are() -> None:
    """It had no part in them: what it was left by, SystemExit say, was replaced by a ClientClosed."""

    def thread(world: TopicWorld) -> None:
        with TopicClient(world.place, FAST) as client, client.producer() as producer:
            producer.send("orders", b"first")
            with client.consumer("g", "orders") as consumer:
                child = os.fork()
                if not child:
                    code = 1
                    try:
                        producer.close()
                        consumer.close()
                        client.close()
                        code = 7
                    finally:
                        os._exit(code)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
                producer.send("orders", b"second")
                batch = consumer.pull(1)
                assert batch is not None

    beside_a_topic(partitions=1, thread=thread)


def test_threads_wait_for_messages_each_for_its_time() -> None:
    beside_a_topic(partitions=1, thread=waiting_threads)


def test_a_client_whose_close_is_interrupted_has_closed_all_the_same() -> None:
    """Or the sessions of its logs would be left, with connections, and nobody could close them any more."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    def thread(world: TopicWorld) -> None:
        client = TopicClient(world.place, FAST)
        producers = [client.producer(), client.producer()]
        for producer in producers:
            producer.send("orders", b"x")
            producer.send("bills", b"x")
        logs = [outlet.log for producer in producers for outlet in producer._outlets.values()]
        core = client._core
        assert core is not None
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(logs[3], "close", interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.close()
        logs[3].close()
        for log in logs[:3]:
            with pytest.raises(ClientClosed):
                log.append(0, b"x")
        assert all(producer._registration._closed for producer in producers)
        assert core._running is None, "it has ended"

    async def scene() -> None:
        async with topic_world() as world:
            await world.cluster.create("bills", 1)
            await world.until(world.cluster.settled)
            await asyncio.to_thread(thread, world)

    run(scene())


def test_what_is_refused_in_a_future_s_callback_is_not_sent() -> None:
    """It was, and who sent it once more from elsewhere had it twice."""

    def thread(world: TopicWorld) -> None:
        with TopicClient(world.place, FAST) as client, client.producer() as producer:
            told: Future[list[BaseException | None]] = Future()

            def callback(sent: Future[int]) -> None:
                found: list[BaseException | None] = []
                for send in (
                    lambda: producer.send("orders", b"twice"),
                    lambda: producer.send_many("orders", [b"twice"]),
                    lambda: producer.send_nowait("orders", b"once"),
                ):
                    try:
                        send()
                        found.append(None)
                    except InvalidInput as error:
                        found.append(error)
                told.set_result(found)

            first = Future[int]()  # on the thread of those of appends, whenever it is done
            first.add_done_callback(callback)
            producer.send("orders", b"first")
            producer._io.post(first.set_result, 0)
            assert [type(each) for each in told.result(LIMIT_S)] == [InvalidInput, InvalidInput, type(None)]
            producer.flush()
            producer.send("orders", b"last")
            found: list[bytes] = []
            with client.consumer("g", "orders") as consumer:
                for message in consumer:
                    found.append(message.data)
                    if message.data == b"last":
                        break
            assert found == [b"first", b"once", b"last"]

    beside_a_topic(partitions=1, thread=thread)


def in_a_thread(world: TopicWorld) -> None:
    with TopicClient(world.place, FAST) as client:
        with client.producer() as producer:
            sent = producer.send("orders", b"first", type="new", attributes="a=b", time="202611231200")
            futures = [producer.send_nowait("orders", b"%d" % n, partition=1) for n in range(100)]
            many = producer.send_many("orders", [b"m1", b"m2"], partition=sent.partition)
            producer.flush()
            assert [f.result() for f in futures] == sorted(f.result() for f in futures)
            assert many.offsets[1] == many.offsets[0] + 1
        found: dict[bytes, tuple[str, str | None, str]] = {}
        with client.consumer("g", "orders") as consumer:
            for message in consumer:
                found[message.data] = message.type, message.attributes, message.time
                if len(found) == 103:
                    break
        assert found[b"first"] == ("new", "a=b", "202611231200")
    with pytest.raises(ClientClosed):
        client.producer()


def waiting_threads(world: TopicWorld) -> None:
    def data_of(batch: MessageBatch | None) -> list[bytes]:
        return [message.data for message in batch or ()]

    with TopicClient(world.place, FAST) as client, ThreadPoolExecutor(3) as pool:
        producer, consumer = client.producer(), client.consumer("g", "orders")
        with consumer:
            with pytest.raises(InvalidInput, match="at least 1"):
                consumer.pull(0)
            assert consumer.pull(timeout=0) is None
            assert consumer.pull(timeout=0.05) is None
            producer.send("orders", b"after a pull that was given up")
            assert data_of(consumer.pull(timeout=10)) == [b"after a pull that was given up"], "and it took nothing away"
            two = [pool.submit(consumer.pull, 1, 10.0) for _ in range(2)]
            producer.send_many("orders", [b"for one", b"for another"])
            assert sorted(data_of(each.result()) for each in two) == [[b"for another"], [b"for one"]]

            with pytest.MonkeyPatch.context() as patched:  # Ctrl-C, just when something has come
                patched.setattr(Future, "result", interrupted)
                producer.send_nowait("orders", b"of an interrupted pull")
                with pytest.raises(KeyboardInterrupt):
                    consumer.pull()
            assert data_of(consumer.pull(timeout=10)) == [b"of an interrupted pull"]
            is_interrupted_again_and_again(producer, consumer)
            comes_again_in_a_thread(producer, consumer)
            waiting = pool.submit(consumer.pull)
            with suppress(FuturesTimeout):
                waiting.result(0.05)
        with pytest.raises(ClientClosed):
            waiting.result(10)
        with pytest.raises(ClientClosed):
            consumer.pull()
        left = client.consumer("g", "orders")
        left.start()
    with pytest.raises(ClientClosed):
        consumer.pull()
    left.close()  # it was closed with the client
    with pytest.raises(ClientClosed):
        client.open()


class Interrupting(Future[Any]):
    """What it comes to is not there in time, when it has just come; then who looks at it is interrupted, twice."""

    def __init__(self) -> None:
        super().__init__()
        self._raises: list[BaseException] = [KeyboardInterrupt(), KeyboardInterrupt(), FuturesTimeout()]

    def done(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> Any:
        wait([self], 10)
        if self._raises:
            raise self._raises.pop()
        return super().result(timeout)


def is_interrupted_again_and_again(producer: TopicProducer, consumer: TopicConsumer) -> None:
    """A confirm of what came next said of what was lost there that it had been dealt with."""
    producer.send("orders", b"of interrupted pulls")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(client_module, "Future", Interrupting)
        with pytest.raises(KeyboardInterrupt):
            consumer.pull(timeout=0)
    with pytest.raises(KeyboardInterrupt):
        consumer.pull(timeout=0)
    again = consumer.pull(timeout=0)
    assert [message.data for message in again or ()] == [b"of interrupted pulls"]


def comes_again_in_a_thread(producer: TopicProducer, consumer: TopicConsumer) -> None:
    producer.send("orders", b"given up")
    for message in consumer:
        assert message.data == b"given up"
        break

    def take() -> None:
        for message in consumer:
            raise ValueError([message.data])

    def handle(batch: MessageBatch) -> None:
        raise ValueError([message.data for message in batch])

    for work in (take, lambda: consumer.run(handle)):
        with pytest.raises(ValueError, match="given up"):
            work()
    again = consumer.pull(timeout=10)
    assert [message.data for message in again or ()] == [b"given up"]


def interrupted(future: Future[object], timeout: float | None = None) -> object:
    """In place of ``Future.result``."""
    wait([future], 10)
    raise KeyboardInterrupt


class Meddling:
    """A partition; while anybody looks at it another one comes, as when the loop runs in another thread."""

    topic, partition, end, confirmed = "orders", 0, 5, 3

    def __init__(self) -> None:
        self.held = {"first": self}

    @property
    def lost(self) -> None:
        self.held[f"number {len(self.held)}"] = self

    @property
    def skipped(self) -> int:
        self.held[f"number {len(self.held)}"] = self
        return 7


def test_where_a_consumer_is_can_be_asked_while_partitions_come(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            asked: list[tuple[Callable[[AsyncTopicConsumer], object], object]] = [
                (lambda consumer: consumer.partitions, [("orders", 0)]),
                (lambda consumer: consumer.lag(), {("orders", 0): 2}),
                (lambda consumer: consumer.skipped(), 7),
            ]
            for ask, answer in asked:
                consumer = client.consumer("g", "orders")
                with monkeypatch.context() as patch:
                    patch.setattr(consumer, "_held", Meddling().held)
                    assert ask(consumer) == answer

    run(scene())


def test_what_a_thread_says_to_a_consumer_is_done_in_the_loop_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, bool]] = []

    def record(name: str) -> None:
        method = getattr(AsyncTopicConsumer, name)

        def recorded(consumer: AsyncTopicConsumer, *args: object) -> None:
            done.append((name, in_io_thread()))
            method(consumer, *args)

        monkeypatch.setattr(AsyncTopicConsumer, name, recorded)

    for name in ("pause", "resume", "consumed"):
        record(name)

    def thread(world: TopicWorld) -> list[int]:
        offsets: list[int] = []
        with (
            TopicClient(world.place, FAST) as client,
            client.producer() as producer,
            client.consumer("g", "orders") as consumer,
        ):
            consumer.pause("orders", 0)
            offsets.append(producer.send("orders", b"first").offset)
            assert consumer.pull(timeout=0.05) is None
            with pytest.raises(InvalidInput):
                consumer.pause("orders", "0")  # type: ignore[arg-type]
            consumer.resume("orders", 0)
            for message in consumer:
                if message.data == b"last":
                    break
                offsets.append(producer.send("orders", b"last").offset)
        return offsets

    async def scene() -> None:
        async with topic_world(partitions=1) as world:
            first, last = await asyncio.wait_for(asyncio.to_thread(thread, world), LIMIT_S)
            assert done == [("pause", True), ("resume", True), ("consumed", True)]
            assert first < (world.offset("g", 0) or 0) <= last, "the close has waited for it"

    run(scene())


class _Stuck:
    """``TopicsPlace`` and registration of which nothing comes before it is let go on."""

    def __init__(self) -> None:
        self.asked, self.goes_on = threading.Event(), threading.Event()

    def wait(self, coroutine: object = None) -> Any:
        self.asked.set()
        assert self.goes_on.wait(LIMIT_S)
        raise ZooKeeperUnreachable("let go on")

    directory = wait

    def know(self, topic: str) -> None:
        """Awaited by nobody."""


@pytest.mark.parametrize("what", ["a client is opened", "a client is closed", "a producer sends"])
def test_a_call_on_the_io_thread_is_refused_also_while_another_thread_connects(what: str) -> None:
    """It would wait for who connects, and that waits for the IO thread: no client of the process would go on."""
    stuck, io = _Stuck(), IoThread()
    place: Any = stuck
    client, producer = TopicClient(place), TopicProducer(place, FAST, stuck.wait, io, place)
    use: Callable[[], object] = {
        "a client is opened": client.open,
        "a client is closed": client.close,
        "a producer sends": lambda: producer.send_nowait("orders", b"x"),
    }[what]
    with ThreadPoolExecutor(1) as pool:
        connecting = pool.submit(use if what == "a producer sends" else client.open)
        assert stuck.asked.wait(LIMIT_S)

        async def on_the_io_thread() -> None:
            use()

        with pytest.raises(InvalidInput, match="on it, in a future's callback"):
            io.start(on_the_io_thread()).result(LIMIT_S / 2)
        stuck.goes_on.set()
        with pytest.raises(ZooKeeperUnreachable):
            connecting.result(LIMIT_S)
    io.stop(asyncio.sleep(0))


def test_a_producer_whose_end_is_interrupted_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for what it had begun, and stayed with its master until its client was closed."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    def thread(world: TopicWorld) -> None:
        with TopicClient(world.place, FAST) as client:
            with pytest.raises(KeyboardInterrupt), client.producer() as producer:
                monkeypatch.setattr(producer, "flush", interrupt)
            with pytest.raises(ClientClosed):
                producer.send("orders", b"x")

    beside_a_topic(partitions=1, thread=thread)
