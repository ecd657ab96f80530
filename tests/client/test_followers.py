"""A follower for coroutines, when its feed ends in an error while nobody may wait any longer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import cast

import pytest

from waltz_ray.client.feeds import Origin
from waltz_ray.client.followers import AsyncFollower
from waltz_ray.client.subscription import FeedItem, Subscription
from waltz_ray.errors import InvalidInput, Trimmed


class Feed:
    """A subscription that has nothing but an error, and does not end soon."""

    def __init__(self) -> None:
        self.stopped = self.abandoned = False

    async def begin(self, put: Callable[[FeedItem], None]) -> Subscription:
        put(Trimmed(0, 3, 7))
        return cast(Subscription, self)

    async def end(self, subscription: Subscription) -> None:
        await asyncio.Event().wait()

    def used(self, item: FeedItem) -> None:
        """Nothing was."""

    def abandon(self) -> None:
        self.abandoned = True


def follower_of(feed: Feed) -> AsyncFollower:
    origin = cast(Origin, cast(Mapping[str, object], {}))
    return AsyncFollower(feed.begin, feed.end, origin)


def test_the_error_is_told_though_the_time_ends() -> None:
    async def test() -> None:
        feed = Feed()
        follower = follower_of(feed)
        with pytest.raises(Trimmed):
            await follower.poll(0.05)
        assert (follower.stopped, feed.abandoned) == (True, True)
        assert not await follower.poll(0.05)

    asyncio.run(test())


def test_the_error_is_told_though_the_feed_does_not_end() -> None:
    async def test() -> None:
        feed = Feed()
        follower = follower_of(feed)
        with pytest.raises(Trimmed):
            await asyncio.wait_for(follower.__anext__(), 10)
        with pytest.raises(StopAsyncIteration):
            await follower.__anext__()
        assert feed.abandoned

    asyncio.run(test())


def test_a_feed_that_has_ended_is_not_abandoned() -> None:
    async def test() -> None:
        feed = Feed()
        feed.stopped = True
        with pytest.raises(Trimmed):
            await follower_of(feed).poll(10)
        assert not feed.abandoned

    asyncio.run(test())


def test_on_another_loop_it_is_refused() -> None:
    """Who waited for it there was never woken, and who stopped it there woke nobody."""

    async def test() -> None:
        feed = Feed()
        follower = follower_of(feed)

        async def elsewhere() -> None:
            for call in (follower.poll, follower.__anext__, follower.stop):
                with pytest.raises(InvalidInput, match="belongs to the loop"):
                    await call()

        await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
        assert not follower.stopped
        with pytest.raises(Trimmed):
            await follower.poll(10)

    asyncio.run(test())
