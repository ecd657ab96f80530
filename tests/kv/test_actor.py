"""What an actor says of itself when something in it has ended that never should."""

from __future__ import annotations

import asyncio

from waltz_ray.kv.serving.actor import KvActor
from waltz_ray.runtime.status import ActorState


def test_who_has_stopped_to_follow_the_spaces_says_so() -> None:
    async def ends() -> None:
        actor = KvActor("demo", "127.0.0.1:1", 0)

        async def broken() -> None:
            raise TypeError("a bug")

        following = asyncio.ensure_future(broken())
        following.add_done_callback(actor._follows_no_more)
        await asyncio.wait([following])
        status = await actor.status()
        assert status.state is ActorState.STARTING
        assert status.reason.startswith("it opens no spaces any more: TypeError('a bug')")
        assert not await actor.health()

    asyncio.run(ends())
