"""The client of topics for coroutines; ``waltz_ray.topics.connect_async`` makes one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from types import TracebackType
from weakref import WeakKeyDictionary

from waltz_ray.client.ending import Ending
from waltz_ray.client.opening import opened
from waltz_ray.client.own_loop import check_loop, check_loop_of_end
from waltz_ray.client.unclosed import warn_unclosed
from waltz_ray.errors import InvalidInput
from waltz_ray.net.tls import client_context
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.topics.client.arguments import TopicNames, checked_text, checked_topics
from waltz_ray.topics.client.consumer import AsyncTopicConsumer
from waltz_ray.topics.client.links import TopicLinks
from waltz_ray.topics.client.masters import Masters
from waltz_ray.topics.client.membership import BoundGroup, GroupStart, TopicSubscription
from waltz_ray.topics.client.place import TopicDirectory, TopicsPlace
from waltz_ray.topics.client.producer import AsyncTopicProducer
from waltz_ray.topics.client.registering import ProducerRegistration
from waltz_ray.topics.client.settings import TopicClientConfig
from waltz_ray.topics.client.topic_logs import TopicLogs

__all__ = ["AsyncTopicClient", "subscription_of"]


class AsyncTopicClient:
    """A client of the topics of a cluster, for the loop it is started on. ``async with`` starts and closes it.

    Its producers and consumers share its connections: one with each master and slot, closed when nobody has used it for
    ``TopicClientConfig.idle_s``. It pickles as its address, and connects where it is started.
    """

    _process = 0  # in which it is open

    def __init__(self, place: TopicsPlace, config: TopicClientConfig | None = None) -> None:
        self.config = config or TopicClientConfig()
        self._place = place
        self._starting = asyncio.Lock()
        self._running: _Running | None = None
        self._ended: Ending | None = None  # of what was running

    async def start(self) -> None:
        """Find the actors, on the loop that runs now. Idempotent. Raises what finding the cluster raises."""
        async with self._starting:
            if self._running is None:
                directory = await opened(self._place.directory, lambda found: found.close())
                try:
                    self._running = _Running(self._place, directory, self.config)
                    await self._running.watch()
                    self._process = os.getpid()
                except (Exception, asyncio.CancelledError):
                    self._running = None
                    await asyncio.to_thread(directory.close)
                    raise

    async def close(self) -> None:
        """Close all producers and consumers, and every connection. Idempotent. On its own loop, or, when that is
        closed, on any; else InvalidInput."""
        async with self._starting:  # not in the middle of it
            if self._running is not None:
                check_loop_of_end(self._running.loop)
            running, self._running, self._process = self._running, None, 0
            if running is not None:
                self._ended = running.ending
        if self._ended is not None:
            await self._ended.come()

    async def __aenter__(self) -> AsyncTopicClient:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        if self._process:
            warn_unclosed(self, "client of topics", self._process)

    def __reduce__(self) -> tuple[type[AsyncTopicClient], tuple[TopicsPlace, TopicClientConfig]]:
        return AsyncTopicClient, (self._place, self.config)

    def producer(self, shared: bool = True) -> AsyncTopicProducer:
        """One more producer. ``shared=False``: with connections of its own. InvalidInput on another loop."""
        check_loop(self._started().loop)
        producer = AsyncTopicProducer(self._started().logs, self.registration(shared), self.config)
        self._started().add(producer)
        return producer

    def registration(self, shared: bool = True) -> ProducerRegistration:
        """Of one more producer, whoever sends its messages."""
        running = self._started()
        return ProducerRegistration(Masters(running.links_for(shared), running.addresses), self.config)

    def consumer(
        self,
        group: str,
        topics: TopicNames,
        start: GroupStart = "earliest",
        bound: BoundGroup | None = None,
        shared: bool = True,
    ) -> AsyncTopicConsumer:
        """A member of ``group``, which has to agree with the others on ``topics``, the message types wanted of each,
        and ``bound``. ``start``: where a new group begins. ``async with`` joins. InvalidInput."""
        wanted = subscription_of(group, topics, start, bound)
        running = self._started()
        check_loop(running.loop)
        links = running.links_for(shared)
        masters = Masters(links, running.addresses)
        consumer = AsyncTopicConsumer(links, masters, running.logs, self.config, wanted)
        running.add(consumer)
        return consumer

    @property
    def connections(self) -> int:
        """With masters and slots, open now or being opened."""
        return sum(map(len, self._started().links))

    def _started(self) -> _Running:
        if self._running is None:
            raise InvalidInput("the client has not been started: use `async with`, or await client.start() first")
        return self._running


class _Running:
    """What a started client has."""

    def __init__(self, place: TopicsPlace, directory: TopicDirectory, config: TopicClientConfig) -> None:
        self.logs = TopicLogs(place, directory, config)
        self._producers: list[AsyncTopicProducer] = []
        # Who never joined, and was dropped, is nobody's; who has joined has tasks, so he is there.
        self._consumers: WeakKeyDictionary[AsyncTopicConsumer, None] = WeakKeyDictionary()
        self._directory, self._config = directory, config
        self._tls = client_context(config.tls_authority or None) if config.tls else None
        self.links = [self._new_links()]
        self._addresses: Sequence[Endpoint] = ()
        self.loop = asyncio.get_running_loop()
        self._end_watch: Callable[[], None] = lambda: None
        self.ending = Ending(self._close)
        """All of it is closed."""

    async def watch(self) -> None:
        """Hear of the masters from now on."""

        def told(addresses: Sequence[Endpoint]) -> None:
            if not self.loop.is_closed():
                self.loop.call_soon_threadsafe(self._set, addresses)

        self._end_watch = await asyncio.to_thread(self._directory.watch, told)

    def _set(self, addresses: Sequence[Endpoint]) -> None:
        self._addresses = addresses

    def addresses(self) -> Sequence[Endpoint]:
        """Where masters listen."""
        return self._addresses

    def add(self, user: AsyncTopicProducer | AsyncTopicConsumer) -> None:
        """It is closed with the client, if it has not been before."""
        if isinstance(user, AsyncTopicConsumer):
            for closed in [each for each in self._consumers if each.closed]:
                del self._consumers[closed]
            self._consumers[user] = None
        else:
            self._producers = [*(each for each in self._producers if not each.closed), user]

    def links_for(self, shared: bool) -> TopicLinks:
        """The client's, or new ones."""
        if not shared:
            self.links.append(self._new_links())
        return self.links[0 if shared else -1]

    def _new_links(self) -> TopicLinks:
        config = self._config
        return TopicLinks(config.timeout_s, config.idle_s, self._tls, self._directory.cluster_key)

    async def _close(self) -> None:
        users: list[AsyncTopicProducer | AsyncTopicConsumer] = [*self._producers, *self._consumers]
        await asyncio.gather(*(user.close() for user in users))
        for links in self.links:
            await links.close()
        await self.logs.close()
        await asyncio.to_thread(self._end_watch)
        await asyncio.to_thread(self._directory.close)


def subscription_of(group: str, topics: TopicNames, start: GroupStart, bound: BoundGroup | None) -> TopicSubscription:
    """InvalidInput for what makes no sense."""
    wanted = checked_topics(topics)
    if not wanted or not checked_text("a group's name", group):
        raise InvalidInput("a consumer has a group and at least one topic")
    if start not in ("earliest", "latest", "end"):
        raise InvalidInput(f'start is "earliest", "latest" or "end", not {start!r:.60}')
    if bound is not None and not isinstance(bound, BoundGroup):
        raise InvalidInput(f"bound is a BoundGroup or None, not {type(bound).__name__}: {bound!r:.60}")
    return TopicSubscription(group, wanted, start, bound)
