"""Messages to topics, straight into their logs.

A message goes to the log's server of its partition, not through the slot: producers are asked for their rights by the
master, and tell it that they are there, but no message waits for it. The log's client sends again what has no answer,
under the same request ID, and its servers know what is in the log already: so each message is there once, and those of
one producer and partition are in their order, whichever server, slot or master dies (docs/topics.md).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, cast

from waltz_ray.client.address import StaysHere
from waltz_ray.client.aio import AsyncWaltzClient
from waltz_ray.client.own_loop import check_loop, check_loop_of_end
from waltz_ray.errors import InvalidInput
from waltz_ray.net.room import Room
from waltz_ray.protocol.records import Int64s
from waltz_ray.topics.client.arguments import checked_text
from waltz_ray.topics.client.outgoing import MessageKey, SentMessage, Spread, record_of, records_of
from waltz_ray.topics.client.registering import ProducerRegistration
from waltz_ray.topics.client.settings import TopicClientConfig
from waltz_ray.topics.client.topic_logs import TopicLogs
from waltz_ray.topics.payload import sent_address

__all__ = ["AsyncTopicProducer", "SentMany", "SentMessage", "checked_size"]

_SENDER = sent_address("127.0.0.1")


class SentMany(NamedTuple):
    """Where messages that were sent together are: ``offsets[i]`` is the ID of the i-th."""

    topic: str
    partition: int
    offsets: Int64s


class _Outlet(NamedTuple):
    log: AsyncWaltzClient
    spread: Spread


class AsyncTopicProducer(StaysHere):
    """``AsyncTopicClient.producer`` makes one; ``async with`` closes it, when what was sent has its fate.

    ``send`` and ``send_many`` raise TopicRefused if the master says no, InvalidInput for what cannot be a message, and
    what ``AsyncWaltzClient.append`` raises.
    """

    def __init__(self, logs: TopicLogs, registration: ProducerRegistration, config: TopicClientConfig) -> None:
        self._logs, self._registration, self._config = logs, registration, config
        self._outlets: dict[str, _Outlet] = {}
        self._room = Room(config.outstanding_bytes)
        self._line = asyncio.Lock()  # for room: who comes first has it first, however much he needs
        self._begun: set[asyncio.Task[SentMessage]] = set()
        self._ahead: set[asyncio.Task[Any]] = set()  # of those, which have not taken their first step
        self._closed = False
        self._loop = asyncio.get_running_loop()

    @property
    def closed(self) -> bool:
        """It sends nothing any more."""
        return self._closed

    async def __aenter__(self) -> AsyncTopicProducer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.flush()
        finally:  # for who is cancelled meanwhile, too: nobody closes it after that
            await self.close()

    async def send(
        self,
        topic: str,
        data: bytes,
        type: str = "",
        key: MessageKey | None = None,
        partition: int | None = None,
        attributes: str | None = None,
        time: str = "",
    ) -> SentMessage:
        """One message; where it is, once it is committed.

        ``type``: what consumers may filter by. To ``partition``, or that of ``key``, or each in turn. ``attributes``
        and ``time`` are text for consumers.
        """
        if self._ahead:
            await self._first_the_begun()
        outlet = self._outlets.get(checked_text("a topic's name", topic)) or await self._outlet(topic)
        record, header, size = record_of(data, type, attributes, time, _SENDER, _now_ms())
        checked_size(self._registration, topic, size)
        chosen = outlet.spread.choose(key, partition)
        return SentMessage(topic, chosen, await outlet.log.append(chosen, record, header))

    async def begin(
        self,
        topic: str,
        data: bytes,
        type: str = "",
        key: MessageKey | None = None,
        partition: int | None = None,
        attributes: str | None = None,
        time: str = "",
    ) -> asyncio.Task[SentMessage]:
        """``send``, without waiting for the commit: its result is what ``send`` returns. Waits while the producer has
        ``TopicClientConfig.outstanding_bytes`` without a fate. Those to one partition get there in the order of the
        calls."""
        await self._outlet(checked_text("a topic's name", topic))
        size = record_of(data, type, attributes, time, _SENDER, _now_ms()).size_bytes  # what cannot be sent is refused
        if size > self._config.outstanding_bytes:
            raise InvalidInput(f"a message of {size} bytes is more than outstanding_bytes")
        async with self._line:
            while not self._room.fits(size):
                await self._wait_for_room()
            send = self.send(topic, data, type, key, partition, attributes, time)
            task = asyncio.get_running_loop().create_task(send)
        self._begun.add(task)
        self._ahead.add(task)
        task.add_done_callback(lambda done: self._ended(done, size))
        return task

    async def send_many(
        self,
        topic: str,
        datas: Sequence[bytes],
        type: str = "",
        key: MessageKey | None = None,
        partition: int | None = None,
    ) -> SentMany:
        """Many messages of one type to one partition, in their order; where they are, once all are committed.

        They are no unit: after PartlyAppended, which says which, some are in the log.
        """
        if self._ahead:
            await self._first_the_begun()
        outlet = self._outlets.get(checked_text("a topic's name", topic)) or await self._outlet(topic)
        records, header = records_of(datas, type, _SENDER, _now_ms())
        checked_size(self._registration, topic, max(map(len, datas), default=0))
        chosen = outlet.spread.choose(key, partition)
        return SentMany(topic, chosen, await outlet.log.append_many(chosen, records, header))

    async def flush(self) -> None:
        """Wait until everything begun has its fate. What has failed is told by its task, not here."""
        check_loop(self._loop)
        if self._begun:
            await asyncio.wait(self._begun)

    async def close(self) -> None:
        """Log out; what was begun and has no fate is left alone. Idempotent."""
        check_loop_of_end(self._loop)
        self._closed = True
        await self._registration.close()
        self._outlets.clear()  # who sends again is told that it is closed

    async def _outlet(self, topic: str) -> _Outlet:
        check_loop(self._loop)
        if (refusal := self._registration.refusals.get(topic)) is not None:
            raise refusal.with_traceback(None)  # which would grow with each time
        if topic not in self._outlets:
            await self._registration.know(topic)
            log = await self._logs.of(topic)
            self._outlets.setdefault(topic, _Outlet(log, Spread(topic, log.partitions)))
        outlet = self._outlets[topic]
        outlet.spread.hindered = outlet.log.hindrances()
        return outlet

    async def _first_the_begun(self) -> None:
        """In a task that was begun: it takes its first step. In others: those do, which were called before."""
        if asyncio.current_task() in self._ahead:
            self._ahead.discard(cast("asyncio.Task[Any]", asyncio.current_task()))
        else:
            await asyncio.sleep(0)

    async def _wait_for_room(self) -> None:
        given = asyncio.Event()
        self._room.waiting[given.set] = None
        await given.wait()

    def _ended(self, task: asyncio.Task[SentMessage], size: int) -> None:
        self._begun.discard(task)
        self._ahead.discard(task)  # it may have been cancelled before
        self._room.give(size)


def checked_size(registration: ProducerRegistration, topic: str, size: int) -> None:
    """InvalidInput: longer than the topic's messages may be."""
    most = registration.most_bytes.get(topic)
    if most is not None and size > most:
        raise InvalidInput(f"a message of {size} bytes: {most} are the most of topic {topic}")
    if (refusal := registration.refusals.get(topic)) is not None:
        raise refusal.with_traceback(None)  # which would grow with each time


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
