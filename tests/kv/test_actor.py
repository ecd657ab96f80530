"""What an actor says of itself when something in it has ended that never should."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from waltz_ray import compat, connecting
from waltz_ray.client.credentials import NO_CREDENTIALS
from waltz_ray.config import ClusterConfig, KvConfig, TopicConfig
from waltz_ray.coordination.api import Watch
from waltz_ray.coordination.cluster_nodes import to_json
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.errors import ProjectionFailed, ZooKeeperUnreachable
from waltz_ray.kv.serving import actor as module
from waltz_ray.kv.serving.actor import KvActor
from waltz_ray.projections.kv_state import LmdbState
from waltz_ray.protocol.spaces import Space, SpaceState, SpaceTable
from waltz_ray.runtime.status import ActorState
from waltz_ray.topics.serving import actor as topic_module
from waltz_ray.topics.serving.actor import TopicActor


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
        monkeypatch.setattr("waltz_ray.coordination.zookeeper.KazooZooKeeper", lambda connect_string: None)
        store = SimpleNamespace(recovery=lambda: "")
        monkeypatch.setattr(module, "ClusterStore", lambda zookeeper, cluster: store)
        monkeypatch.setattr(connecting, "StoreDirectory", lambda *_: NoIds(opened))
        for credentials in ("member_credentials", "kv_credentials"):
            monkeypatch.setattr(module, credentials, lambda store: NO_CREDENTIALS)
        with pytest.raises(ZooKeeperUnreachable):
            await actor._open(Space("kv", "kv", 0, 16, SpaceState.READY))
        assert [each.closed for each in opened] == [True]

    asyncio.run(opens())


def test_projections_are_of_the_recovery_that_the_cluster_has_had_last(monkeypatch: pytest.MonkeyPatch) -> None:
    async def opens() -> None:
        zookeeper = MemoryZooKeeper(MemoryZooKeeperServer())
        zookeeper.create("/demo/store/recovered", to_json({"recovery": "the second"}), make_parents=True)
        actor = KvActor("demo", "127.0.0.1:1", 0)
        actor._zookeeper = zookeeper  # type: ignore[assignment]
        given: list[object] = []

        async def connected(*_: object) -> None:
            return None

        class Server(Opened):
            def __init__(self, *arguments: object) -> None:
                given.extend(arguments)

            async def start(self, port: int) -> None:
                given.append(port)

        monkeypatch.setattr(module, "connect_member", connected)
        monkeypatch.setattr(module, "SpaceServer", Server)
        for credentials in ("member_credentials", "kv_credentials"):
            monkeypatch.setattr(module, credentials, lambda store: NO_CREDENTIALS)
        await actor._open(Space("kv", "kv", 0, 16, SpaceState.READY))
        assert "the second" in given
        zookeeper.close()

    asyncio.run(opens())


def test_who_has_come_while_a_space_is_opened_hears_of_rights_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It listens before it folds, which may take long. Who had come before there were any rights had all of them while
    he stayed; who had one that was taken away kept it."""

    async def opens() -> None:
        zookeeper = MemoryZooKeeper(MemoryZooKeeperServer())
        actor = KvActor("demo", "127.0.0.1:1", 0)
        actor._zookeeper = zookeeper  # type: ignore[assignment]
        made: list[Server] = []
        told: list[str] = []
        folded = asyncio.Event()

        async def connected(*_: object) -> None:
            return None

        class Server(Opened):
            def __init__(self, *_: object) -> None:
                self.gateway: SimpleNamespace | None = None
                made.append(self)

            async def start(self, port: int) -> None:
                self.gateway = SimpleNamespace(rights_changed=lambda: told.append("once"))
                await folded.wait()

        monkeypatch.setattr(module, "connect_member", connected)
        monkeypatch.setattr(module, "SpaceServer", Server)
        for credentials in ("member_credentials", "kv_credentials"):
            monkeypatch.setattr(module, credentials, lambda store: NO_CREDENTIALS)
        opening = asyncio.ensure_future(actor._open(Space("kv", "kv", 0, 16, SpaceState.READY)))
        await until(lambda: any(server.gateway for server in made))
        actor._on_rights()
        assert told == ["once"]
        folded.set()
        await opening
        actor._on_rights()
        assert told == ["once", "once"]
        zookeeper.close()

    asyncio.run(opens())


def test_a_lease_is_counted_by_the_session_that_there_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """ZooKeeper agrees to less than was asked for: who counts on more would read what another has changed since."""
    asked: list[int] = []

    def client(connect_string: str, session_ms: int) -> SimpleNamespace:
        asked.append(session_ms)
        return SimpleNamespace(session_timeout_ms=40_000)

    config = ClusterConfig(
        directory=str(tmp_path), kv=KvConfig(session_ms=90_000), topics=TopicConfig(session_ms=90_000)
    )
    for each in (module, topic_module):
        monkeypatch.setattr(each, "KazooZooKeeper", client)
        monkeypatch.setattr(each, "own_settings", lambda *_: SimpleNamespace(config=config))
    monkeypatch.setattr(module, "LayerStore", lambda *_: SimpleNamespace(actors=lambda layer: 2))
    monkeypatch.setattr(module, "ClusterStore", lambda *_: None)
    monkeypatch.setattr(module, "cluster_secret", lambda store: None)
    monkeypatch.setattr(module, "AccessGuard", lambda *_: SimpleNamespace(read=lambda: None))
    kv, topic = KvActor("demo", "127.0.0.1:1", 0), TopicActor("demo", "127.0.0.1:1", 0)
    kv._connected()
    topic._connected()
    assert asked == [90_000, 90_000]
    assert (kv._config.session_ms, topic._config.session_ms) == (40_000, 40_000)


class Opened:
    """A ``SpaceServer`` as far as its actor knows it."""

    failure = ""
    closed = False

    async def close(self) -> None:
        self.closed = True


async def until(what: Callable[[], bool]) -> None:
    async with compat.timeout(10):
        while not what():
            await asyncio.sleep(0)


@pytest.mark.parametrize("scarce", [ProjectionFailed("make room"), RuntimeError("can't start new thread")])
def test_a_space_that_cannot_be_opened_keeps_no_other_from_being_served(
    scarce: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One lacks something, as room on its disk; the log of another does not answer."""
    monkeypatch.setattr(module, "_AGAIN_S", 0.0)

    async def follows() -> None:
        actor = KvActor("demo", "127.0.0.1:1", 0)
        tried: list[str] = []
        room = asyncio.Event()

        async def opens(space: Space) -> None:
            tried.append(space.name)
            if space.name == "full" and not room.is_set():
                raise scarce
            if space.name == "away":
                await asyncio.Event().wait()
            actor._servers[space.name] = Opened()  # type: ignore[assignment]

        monkeypatch.setattr(actor, "_open", opens)
        following = asyncio.ensure_future(actor._keep_following())
        spaces = [Space(name, "kv", 16 * at, 16, SpaceState.READY) for at, name in enumerate(("full", "away", "good"))]
        actor._spaces_seen(SpaceTable(48, {space.name: space for space in spaces}))
        await until(lambda: "good" in actor._servers and tried.count("full") > 2)
        assert actor._trouble == f"space full: {scarce}"
        room.set()
        await until(lambda: {*actor._servers} == {"full", "good"})
        assert actor._trouble == ""

        actor._spaces_seen(SpaceTable(48, {space.name: space for space in spaces if space.name != "away"}))
        await until(lambda: not actor._opening)
        failed, before = actor._servers["full"], tried.count("full")
        failed.failure = "a page is none"
        assert actor._trouble == "a page is none"
        actor._projection_failed(ProjectionFailed("a page is none"))
        await until(lambda: tried.count("full") > before and "full" in actor._servers)
        assert cast(Opened, failed).closed
        assert actor._trouble == ""
        actor._servers["good"].failure = "it goes while it is broken"
        actor._spaces_seen(SpaceTable(48, {}))
        await until(lambda: not actor._servers and actor._trouble == "")
        following.cancel()
        await asyncio.wait([following])

    asyncio.run(follows())


def test_what_was_folded_of_a_deleted_space_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of one that goes while it is served, and of one that went while the actor was away; nothing else is."""
    there = Space("kv", "kv", 0, 1, SpaceState.READY)
    before, goes, of_others = (Space(name, "kv", 1 + at, 1, SpaceState.READY) for at, name in enumerate("abc"))
    for space in (there, before, goes, of_others):
        LmdbState(tmp_path, "key", space.name, 0, space.first).close()
    (tmp_path / "c" / "notes.txt").write_text("of a person")

    async def follows() -> None:
        actor = KvActor("demo", "127.0.0.1:1", 0)
        actor._directory = tmp_path

        async def opens(space: Space) -> None:
            actor._servers[space.name] = Opened()  # type: ignore[assignment]

        monkeypatch.setattr(actor, "_open", opens)
        following = asyncio.ensure_future(actor._keep_following())
        spaces = {space.name: space for space in (there, before.in_state(SpaceState.GONE), goes, of_others)}
        actor._spaces_seen(SpaceTable(4, spaces))
        await until(lambda: {*actor._servers} == {"kv", "b", "c"} and not (tmp_path / "a").exists())
        assert sorted(path.name for path in (tmp_path / "b").iterdir()) == ["0.json", "0.lmdb", "0.lock"]
        tried: list[Path] = []

        def fails(directory: Path) -> None:
            tried.append(directory)
            directory.rmdir()

        with monkeypatch.context() as patch:
            patch.setattr(module, "remove_projections", fails)
            gone = {name: spaces[name].in_state(SpaceState.GONE) for name in ("b", "c")}
            actor._spaces_seen(SpaceTable(4, spaces | gone))
            await until(lambda: {*tried} == {tmp_path / "b", tmp_path / "c"})
        actor._spaces_seen(SpaceTable(4, spaces | gone))
        await until(lambda: all(actor._gone.values()))
        following.cancel()
        await asyncio.wait([following])

    asyncio.run(follows())
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert left == ["c/notes.txt", "kv/0.json", "kv/0.lmdb", "kv/0.lock"]


def test_a_start_that_fails_and_is_tried_again_follows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Guard:
        times = 0

        def watch(self, *_: object) -> list[Watch]:
            Guard.times += 1
            if Guard.times == 1:
                raise ZooKeeperUnreachable("ZooKeeper is away")
            return []

    async def starts() -> None:
        actor = KvActor("demo", "127.0.0.1:1", 0)
        zookeeper = MemoryZooKeeper(MemoryZooKeeperServer())
        spaces = SimpleNamespace(watch=lambda callback: zookeeper.watch_data("/demo", callback))
        gauges: list[tuple[str, str]] = []
        begun: list[str] = []

        async def until_cancelled(what: str) -> None:
            begun.append(what)
            await asyncio.Event().wait()

        monkeypatch.setattr(actor, "_connected", lambda: (zookeeper, Guard()))
        monkeypatch.setattr(actor, "_keep_following", lambda: until_cancelled("follow"))
        monkeypatch.setattr(actor, "_export", lambda _: until_cancelled("metrics"))
        monkeypatch.setattr(module, "ClusterStore", lambda *_: SimpleNamespace(spaces=spaces))
        monkeypatch.setattr(actor, "_spaces_seen", lambda *_: None)
        monkeypatch.setattr(module, "KvGauges", lambda *names: gauges.append(names))
        for tuning in ("take_normal_priority", "quieten_garbage_collector"):
            monkeypatch.setattr(module, tuning, lambda: None)
        with pytest.raises(ZooKeeperUnreachable):
            await actor.start()
        await actor.start()
        await until(lambda: len(begun) >= 2)
        assert sorted(begun) == ["follow", "metrics"]
        assert len(gauges) == 1
        assert await actor.health()
        await actor.shutdown()

    asyncio.run(starts())
