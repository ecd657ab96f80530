"""The client of topics for threads: ``waltz_ray.topics.connect`` makes one. It is ``aio`` on the process's IO thread;
messages of producers go to the log from the thread that sends them.
"""

from __future__ import annotations

import os
import threading
import time as clock
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FuturesTimeout  # in Python 3.10 it is not the builtin one
from contextlib import ExitStack, contextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from waltz_ray.client.address import StaysHere
from waltz_ray.client.application import checked_int
from waltz_ray.client.client import WaltzClient
from waltz_ray.client.io_thread import IoThread, check_elsewhere
from waltz_ray.client.time_limits import checked_timeout, checked_wait
from waltz_ray.client.waits import result_of
from waltz_ray.config import ClientConfig
from waltz_ray.errors import ClientClosed, WaltzError
from waltz_ray.topics.client.aio import AsyncTopicClient
from waltz_ray.topics.client.arguments import SeekTo, TopicNames, checked_most, checked_text
from waltz_ray.topics.client.consumer import AsyncTopicConsumer
from waltz_ray.topics.client.membership import BoundGroup, GroupStart
from waltz_ray.topics.client.messages import Message, MessageBatch
from waltz_ray.topics.client.openings import CLOSED
from waltz_ray.topics.client.outgoing import MessageKey, SentMessage, Spread, record_of, records_of
from waltz_ray.topics.client.place import TopicsPlace
from waltz_ray.topics.client.producer import SentMany, checked_size
from waltz_ray.topics.client.registering import ProducerRegistration
from waltz_ray.topics.client.settings import TopicClientConfig
from waltz_ray.topics.payload import sent_address

__all__ = ["TopicClient", "TopicConsumer", "TopicProducer"]

T = TypeVar("T")

_SENDER = sent_address("127.0.0.1")
_LOOK_AGAIN_S = 1.0


class TopicClient:
    """A client of the topics of a cluster, for any thread. ``with`` closes it, and all that was made of it.

    It pickles as its address, and connects where it is first used.
    """

    def __init__(self, place: TopicsPlace, config: TopicClientConfig | None = None) -> None:
        self.config = config or TopicClientConfig()
        self._place = place
        self._lock = threading.Lock()
        self._io: IoThread | None = None
        self._core: AsyncTopicClient | None = None
        self._process = 0
        self._closed = False
        self._producers: list[TopicProducer] = []

    def open(self) -> TopicClient:
        """Find the actors. Idempotent; calls do it, too. Raises what finding the cluster raises."""
        self._started()
        return self

    def close(self) -> None:
        """Close all producers and consumers, and every connection. Idempotent. InvalidInput in a future's callback."""
        check_elsewhere()
        with self._lock:
            closed, self._closed = self._closed, True
            if closed or self._io is None or self._core is None or self._process != os.getpid():
                return
            io, core = self._io, self._core
            with ExitStack() as closing:  # all of it, after Ctrl-C, too: nobody can close the rest later
                closing.callback(lambda: io.stop(core.close()))
                for producer in self._producers:
                    closing.callback(producer.close)

    def __enter__(self) -> TopicClient:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[TopicClient], tuple[TopicsPlace, TopicClientConfig]]:
        return TopicClient, (self._place, self.config)

    def producer(self, shared: bool = True) -> TopicProducer:
        """One more producer; the arguments are those of ``AsyncTopicClient.producer``."""
        core = self._started()
        registration = self._on_loop(lambda: core.registration(shared))
        assert self._io is not None, "it has been started"
        made = TopicProducer(self._place, self.config, self._call, self._io, registration)
        with self._lock:  # or ``close`` would not know of one that was made at the same time
            if self._closed:
                raise ClientClosed(CLOSED)
            self._producers = [*(each for each in self._producers if not each.closed), made]
        return made

    def consumer(
        self,
        group: str,
        topics: TopicNames,
        start: GroupStart = "earliest",
        bound: BoundGroup | None = None,
        shared: bool = True,
    ) -> TopicConsumer:
        """A member of ``group``; the arguments are those of ``AsyncTopicClient.consumer``. ``with`` joins the group."""
        core = self._started()
        made = self._on_loop(lambda: core.consumer(group, topics, start, bound, shared))
        assert self._io is not None, "it has been started"
        return TopicConsumer(made, self._call, self._io)

    def _started(self) -> AsyncTopicClient:
        if self._core is not None and self._process == os.getpid() and not self._closed:
            return self._core
        check_elsewhere()  # whoever holds the lock waits for the IO thread
        if self._process not in (0, os.getpid()):  # whoever held it is in another process
            self._lock = threading.Lock()
        with self._lock:
            if self._closed:
                raise ClientClosed(CLOSED)
            if self._core is None or self._process != os.getpid():
                io, core = IoThread(), AsyncTopicClient(self._place, self.config)
                try:
                    io.call(core.start())
                except BaseException:
                    io.stop(core.close())
                    raise
                self._io, self._core, self._process = io, core, os.getpid()
            return self._core

    def _on_loop(self, make: Callable[[], T]) -> T:
        async def made() -> T:
            return make()

        return self._call(made())

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it on the IO thread and wait for it."""
        assert self._io is not None, "it has been started"
        return self._io.call_interruptibly(coroutine)


Caller = Callable[[Coroutine[Any, Any, Any]], Any]


class _TopicOutlet(NamedTuple):
    log: WaltzClient
    spread: Spread


class TopicProducer(StaysHere):
    """``TopicClient.producer`` makes one; ``with`` closes it, when what was sent has its fate. For any thread.

    It raises what ``AsyncTopicProducer`` does.
    """

    def __init__(
        self,
        place: TopicsPlace,
        config: TopicClientConfig,
        call: Caller,
        io: IoThread,
        registration: ProducerRegistration,
    ) -> None:
        self._place, self._call, self._io, self._registration = place, call, io, registration
        self._log_config = ClientConfig(outstanding_bytes=config.outstanding_bytes)
        self._outlets: dict[str, _TopicOutlet] = {}
        self._lock = threading.Lock()
        self._looked_s = 0.0
        self._closed = False

    @property
    def closed(self) -> bool:
        """It sends nothing any more."""
        return self._closed

    def __enter__(self) -> TopicProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.flush()
        finally:  # after Ctrl-C, too
            self.close()

    def send(
        self,
        topic: str,
        data: bytes,
        type: str = "",
        key: MessageKey | None = None,
        partition: int | None = None,
        attributes: str | None = None,
        time: str = "",
    ) -> SentMessage:
        """One message; where it is, once it is committed. The arguments are those of ``AsyncTopicProducer.send``."""
        self._io.check_elsewhere()  # before it is sent
        chosen, future = self._send(topic, data, type, key, partition, attributes, time)
        return SentMessage(topic, chosen, future.result())

    def send_nowait(
        self,
        topic: str,
        data: bytes,
        type: str = "",
        key: MessageKey | None = None,
        partition: int | None = None,
        attributes: str | None = None,
        time: str = "",
    ) -> Future[int]:
        """The same, without waiting for the commit: the future's result is the message's offset. Blocks only while the
        partition has ``TopicClientConfig.outstanding_bytes`` without a fate. Messages to one partition get there in the
        order of the calls."""
        return self._send(topic, data, type, key, partition, attributes, time)[1]

    def _send(
        self,
        topic: str,
        data: bytes,
        type: str,
        key: MessageKey | None,
        partition: int | None,
        attributes: str | None,
        time: str,
    ) -> tuple[int, Future[int]]:
        outlet = self._outlets.get(checked_text("a topic's name", topic)) or self._outlet(topic)
        record, header, size = record_of(data, type, attributes, time, _SENDER, clock.time_ns() // 1_000_000)
        checked_size(self._registration, topic, size)
        self._look()
        chosen = outlet.spread.choose(key, partition)
        return chosen, outlet.log.append(chosen, record, header)

    def send_many(
        self,
        topic: str,
        datas: Sequence[bytes],
        type: str = "",
        key: MessageKey | None = None,
        partition: int | None = None,
    ) -> SentMany:
        """Many messages of one type to one partition; ``AsyncTopicProducer.send_many``."""
        self._io.check_elsewhere()  # before they are sent
        chosen, future = self._send_many(topic, datas, type, key, partition)
        return SentMany(topic, chosen, future.result())

    def send_many_nowait(
        self,
        topic: str,
        datas: Sequence[bytes],
        type: str = "",
        key: MessageKey | None = None,
        partition: int | None = None,
    ) -> Future[Any]:
        """The same, without waiting: the future's result are the offsets."""
        return self._send_many(topic, datas, type, key, partition)[1]

    def _send_many(
        self, topic: str, datas: Sequence[bytes], type: str, key: MessageKey | None, partition: int | None
    ) -> tuple[int, Future[Any]]:
        outlet = self._outlets.get(checked_text("a topic's name", topic)) or self._outlet(topic)
        records, header = records_of(datas, type, _SENDER, clock.time_ns() // 1_000_000)
        checked_size(self._registration, topic, max(map(len, datas), default=0))
        self._look()
        chosen = outlet.spread.choose(key, partition)
        return chosen, outlet.log.append_many(chosen, records, header)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent has its fate; AppendTimeout otherwise."""
        end_s = None if timeout is None else clock.monotonic() + checked_timeout(timeout)
        for outlet in list(self._outlets.values()):
            outlet.log.flush(None if end_s is None else max(0.0, end_s - clock.monotonic()))

    def close(self) -> None:
        """Log out; what has no fate fails with ClientClosed, whether or not it is in the log. Idempotent. InvalidInput
        in a future's callback."""
        self._io.check_elsewhere()
        if self._io.is_parent_s:
            return
        with self._lock:
            closed, self._closed = self._closed, True
            if closed:
                return
            with ExitStack() as closing:  # all of it, after Ctrl-C, too: nobody can close the rest later
                closing.callback(lambda: self._call(self._registration.close()))
                for outlet in self._outlets.values():
                    closing.callback(outlet.log.close)

    def _outlet(self, topic: str) -> _TopicOutlet:
        self._io.check_elsewhere()  # whoever holds the lock waits for the IO thread
        with self._lock:
            if self._closed:
                raise ClientClosed("the producer is closed; make another one")
            if topic not in self._outlets:
                self._call(self._registration.know(topic))
                log = self._place.log(topic, self._log_config)
                self._outlets[topic] = _TopicOutlet(log, Spread(topic, log.partitions))
            return self._outlets[topic]

    def _look(self) -> None:
        """From time to time, which partitions take nothing."""
        now_s = clock.monotonic()
        if now_s - self._looked_s > _LOOK_AGAIN_S:
            self._looked_s = now_s
            for outlet in list(self._outlets.values()):
                outlet.spread.hindered = outlet.log.hindrances()


class TopicConsumer(StaysHere):
    """``TopicClient.consumer`` makes one; ``with`` joins the group and leaves it. For one thread at a time.

    What it does, and raises, is what ``AsyncTopicConsumer`` does.
    """

    def __init__(self, core: AsyncTopicConsumer, call: Caller, io: IoThread) -> None:
        self._core, self._call, self._io = core, call, io
        self._left: Future[MessageBatch | None] | None = None

    @property
    def client_id(self) -> str:
        """As the master and the slots know us."""
        return self._core.client_id

    def start(self) -> None:
        """Join the group."""
        self._call(self._core.start())

    def close(self) -> None:
        """Leave the group. Idempotent."""
        if self._io.is_parent_s:
            return
        with suppress(ClientClosed):  # it has been closed with its client
            self._call(self._core.close())

    def __enter__(self) -> TopicConsumer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def pull(self, most: int = 1000, timeout: float | None = None) -> MessageBatch | None:
        """The next messages of some partition; None: there were none within ``timeout`` seconds."""
        checked_most(most)
        timeout = checked_wait(timeout)
        left, self._left = self._left, None
        if left is not None and (batch := self._came(left, None)) is not None:  # of a pull that was interrupted
            return batch
        future: Future[MessageBatch | None] = Future()
        self._io.ask(self._core.hand, future, most)
        return self._came(future, timeout)

    def _came(self, future: Future[MessageBatch | None], timeout: float | None) -> MessageBatch | None:
        """What a hand that is held out is given in time."""
        try:
            try:
                return result_of(future, timeout)
            except FuturesTimeout:
                self._io.ask(self._core.withdraw, future)
                return result_of(future)  # something has come at the last moment, or nothing
        except WaltzError:
            raise
        except BaseException:  # Ctrl-C: what it is given all the same is the next pull's
            self._left = future
            self._io.post(self._core.withdraw, future)
            raise

    def confirm(self, batch: MessageBatch) -> None:
        """The batch, and all before it of its partition, has been dealt with."""
        self._call(self._core.confirm(batch))

    def __iter__(self) -> Iterator[Message]:
        """All messages, for ever. A batch is confirmed when the application goes on behind its last message; if the
        iteration ends before, by whatever it is, all of it comes again."""
        while True:
            with self._next_batch() as batch:
                yield from batch

    def run(self, handler: Callable[[MessageBatch], object]) -> None:
        """Push: call ``handler`` with each batch, in this thread, until it raises. A batch is confirmed when its
        handler has returned; that of which it raised comes again."""
        while True:
            with self._next_batch() as batch:
                handler(batch)

    @contextmanager
    def _next_batch(self) -> Iterator[MessageBatch]:
        """It has been dealt with, unless something is raised meanwhile, or the generator that has it is left."""
        batch = self.pull()
        assert batch is not None, "it waits for ever"
        try:
            yield batch
        except BaseException:
            self._core.give_up(batch)
            raise
        self._io.post(self._core.consumed, batch)  # before a ``close`` that follows

    @property
    def partitions(self) -> list[tuple[str, int]]:
        """Those that it has now."""
        return self._core.partitions

    def lag(self) -> dict[tuple[str, int], int]:
        """By partition that it has: how many transactions the log has behind what is confirmed, about."""
        return self._core.lag()

    def skipped(self) -> int:
        """Transactions that retention had let go of before this consumer could read them."""
        return self._core.skipped()

    def pause(self, topic: str, partition: int) -> None:
        """Give out nothing of it until ``resume``."""
        self._io.post(self._core.pause, *_checked_place(topic, partition))

    def resume(self, topic: str, partition: int) -> None:
        """End ``pause``."""
        self._io.post(self._core.resume, *_checked_place(topic, partition))

    def seek(self, topic: str, partition: int, to: SeekTo) -> int:
        """Go on at ``to`` in a partition that we have; the offset."""
        found: int = self._call(self._core.seek(topic, partition, to))
        return found


def _checked_place(topic: str, partition: int) -> tuple[str, int]:
    """Of a partition; InvalidInput, in the thread of who asks."""
    return checked_text("a topic's name", topic), checked_int("a partition", partition)
