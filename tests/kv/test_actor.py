"""What an actor says of itself when something in it has ended that never should."""

from __future__ import annotations

import asyncio

import pytest

from waltz_ray.client.credentials import NO_CREDENTIALS
from waltz_ray.errors import ZooKeeperUnreachable
from waltz_ray.kv.serving import actor as module
from waltz_ray.kv.serving.actor import KvActor
from waltz_ray.protocol.spaces import Space, SpaceState
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


class NoIds:
    """A directory whose ZooKeeper can be connected with, and answers nothing more."""

    def __init__(self, opened: list[NoIds]) -> None:
        self.partitions = 16
        self.closed = False
        opened.append(self)

    def next_client_id(self) -> int:
        raise ZooKeeperUnreachable("ZooKeeper is away")

    def close(self) -> None:
        self.closed = True


def test_a_space_that_cannot_be_opened_leaves_no_session_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def opens() -> None:
        actor = KvActor("demo", "127.0.0.1:1", 0)
        actor._zookeeper = object()  # type: ignore[assignment]
        opened: list[NoIds] = []
        monkeypatch.setattr(module, "KazooZooKeeper", lambda connect_string: None)
        monkeypatch.setattr(module, "ClusterStore", lambda zookeeper, cluster: None)
        monkeypatch.setattr(module, "StoreDirectory", lambda *_: NoIds(opened))
        for credentials in ("member_credentials", "kv_credentials"):
            monkeypatch.setattr(module, credentials, lambda store: NO_CREDENTIALS)
        with pytest.raises(ZooKeeperUnreachable):
            await actor._open(Space("kv", "kv", 0, 16, SpaceState.READY))
        assert [each.closed for each in opened] == [True]

    asyncio.run(opens())
