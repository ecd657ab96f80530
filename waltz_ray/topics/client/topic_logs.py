"""The logs of the topics that a client uses: one client of the log for each, made when it is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from waltz_ray.client.aio import AsyncWaltzClient
from waltz_ray.config import ClientConfig
from waltz_ray.errors import ClientClosed, SpaceGone, WaltzError, ZooKeeperUnreachable
from waltz_ray.topics.client.openings import CLOSED, outcome_of
from waltz_ray.topics.client.place import TopicDirectory, TopicsPlace
from waltz_ray.topics.client.settings import TopicClientConfig

__all__ = ["TopicLogs"]


class TopicLogs:
    """In one event loop."""

    def __init__(self, place: TopicsPlace, directory: TopicDirectory, config: TopicClientConfig) -> None:
        self._place, self._directory = place, directory
        self._config = ClientConfig(feed_credit_bytes=min(config.ahead_bytes, 64 << 20))
        self._logs: dict[str, asyncio.Task[AsyncWaltzClient]] = {}
        self._closed = False

    async def of(self, topic: str) -> AsyncWaltzClient:
        """Started, without callbacks. SpaceNotFound, SpaceGone; InvalidInput if it is no topic; ClientClosed."""
        if self._closed:
            raise ClientClosed(CLOSED)
        opening = self._logs.get(topic)
        if opening is None:
            opening = self._logs[topic] = asyncio.get_running_loop().create_task(self._opened(topic))
        return await outcome_of(opening)

    async def check(self, topics: Iterable[str]) -> None:
        """All of them are topics. SpaceNotFound, SpaceGone; InvalidInput if one is no topic; ZooKeeperUnreachable."""
        for topic in topics:
            await asyncio.to_thread(self._directory.partitions, topic)

    async def gone(self, topics: Iterable[str]) -> WaltzError | None:
        """Why nothing will come of any of them any more. None: one is there, or just now nobody can say."""
        found: WaltzError | None = None
        for topic in topics:
            try:
                await self.check([topic])
            except SpaceGone as error:
                found = error
            except ZooKeeperUnreachable:
                return None
            else:
                return None
        return found

    async def _opened(self, topic: str) -> AsyncWaltzClient:
        try:
            await asyncio.to_thread(self._directory.partitions, topic)
            return await self._place.log_async(topic, self._config)
        except BaseException:
            del self._logs[topic]
            raise

    async def close(self) -> None:
        """Close all of them. Idempotent."""
        self._closed = True
        for opening in list(self._logs.values()):
            if not opening.done():
                opening.cancel()
        for found in await asyncio.gather(*self._logs.values(), return_exceptions=True):
            if isinstance(found, AsyncWaltzClient):
                await found.close()
        self._logs.clear()
