"""The manager's part in who has which bucket, over a real ZooKeeper; actors are listening sockets."""

from __future__ import annotations

import asyncio
import socket
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest

from tests.actors.test_cluster_manager import until
from waltz_ray import compat
from waltz_ray.actors.endpoint_probe import SilentProbe, probe_endpoint
from waltz_ray.actors.layers import Layers
from waltz_ray.actors.units import SpaceUnits
from waltz_ray.config import KvConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.unit_store import UnitRegistration, UnitStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import VersionConflict, ZooKeeperUnreachable
from waltz_ray.kv.placement import BucketSplitting
from waltz_ray.kv.routing import Unit
from waltz_ray.protocol.arrangement import first_table
from waltz_ray.protocol.ids import Endpoint

SPLITTING = BucketSplitting(16)


class FakeActor:
    """A listening socket and its registration."""

    def __init__(self, store: UnitStore[Unit], actor: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        endpoint = Endpoint("127.0.0.1", self.listener.getsockname()[1])
        self.registration: UnitRegistration = store.register(actor, endpoint, lambda event: None, time.monotonic)

    def die(self) -> None:
        """As by SIGKILL: the kernel closes the sockets, ZooKeeper knows nothing."""
        self.registration._over = True
        self.listener.close()


class Rig:
    """A manager that leads or not, two actors that should run, and their ZooKeeper session."""

    def __init__(self, zookeeper: str, stack: ExitStack) -> None:
        self.client, self.others = KazooZooKeeper(zookeeper, 10_000), KazooZooKeeper(zookeeper, 10_000)
        stack.callback(self.client.close)
        stack.callback(self.others.close)
        self._stack = stack
        self.cluster = f"units-{uuid.uuid4().hex[:8]}"
        self.leading = True
        self.store = UnitStore[Unit](self.others, self.cluster, "kv", "kv", SPLITTING)

    def actor(self, number: int) -> FakeActor:
        made = FakeActor(self.store, number)
        self._stack.callback(made.die)
        return made

    def units(self, store: UnitStore[Unit], settle_s: float) -> SpaceUnits[Unit]:
        return SpaceUnits(store, SPLITTING, lambda: self.leading, lambda: 2, 4, settle_s)

    def own_store(self) -> UnitStore[Unit]:
        return UnitStore(self.client, self.cluster, "kv", "kv", SPLITTING)

    def primaries(self) -> Counter[int | None]:
        found = self.store.table()[0]
        return Counter() if found is None else Counter(place.primary for place in found.places.values())

    async def soon(self, condition: Callable[[], bool], what: str) -> None:
        await asyncio.get_running_loop().run_in_executor(None, until, condition, what)


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(work)
    try:
        yield
        assert not task.done(), "it ended by itself"
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
def rig(zookeeper_server: str) -> Iterator[Rig]:
    with ExitStack() as stack:
        yield Rig(zookeeper_server, stack)


def test_a_killed_actors_buckets_move_long_before_its_session_ends(rig: Rig) -> None:
    """O07, O26, O48, O49."""

    async def run() -> None:
        first, second = rig.actor(0), rig.actor(1)
        async with running(rig.units(rig.own_store(), settle_s=20.0).run()):
            await rig.soon(lambda: rig.primaries() == {0: 8, 1: 8}, "both have their share")
            accepted = first.listener.accept()[0]
            before = time.monotonic()
            first.die()
            accepted.close()
            await rig.soon(lambda: rig.primaries() == {1: 16}, "the other one has everything")
            assert time.monotonic() - before < 5.0, "its session has 10 s"
            assert set(rig.store.members()) == {1}
            rig.actor(0)
            await rig.soon(lambda: rig.primaries() == {0: 8, 1: 8}, "the restarted one has its share")
            second.registration.leave()
            await rig.soon(lambda: rig.primaries() == {0: 16}, "who leaves has nothing")
            assert set(rig.store.members()) == {0, 1}

    asyncio.run(run())


def test_one_that_is_alone_after_the_settle_time_has_everything(rig: Rig) -> None:
    async def run() -> None:
        rig.actor(1)  # takes connections into its backlog and never says a word: it is alive
        async with running(rig.units(rig.own_store(), settle_s=0.2).run()):
            await rig.soon(lambda: rig.primaries() == {1: 16}, "whoever is there has everything")

    asyncio.run(run())


def test_a_lack_of_threads_is_waited_for(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nobody's units would be moved any more, for as long as the manager lives."""
    run_in_thread, refused = asyncio.to_thread, 0

    async def scarce(call: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal refused
        if getattr(call, "__name__", "") == "_write" and refused < 2:
            refused += 1
            raise RuntimeError("can't start new thread")
        return await run_in_thread(call, *arguments)

    monkeypatch.setattr("waltz_ray.actors.units.asyncio.to_thread", scarce)
    monkeypatch.setattr("waltz_ray.actors.units._LOOK_S", 0.05)

    async def run() -> None:
        rig.actor(1)
        async with running(rig.units(rig.own_store(), settle_s=0.2).run()):
            await rig.soon(lambda: rig.primaries() == {1: 16}, "whoever is there has everything")
        assert refused == 2

    asyncio.run(run())


def test_who_does_not_lead_removes_nobody_and_later_does_not_forget(rig: Rig) -> None:
    """A manager that leads only once an actor is dead (both were on one machine) removes it all the same; not one that
    nobody could reach for a while."""

    async def run() -> None:
        rig.leading = False
        dead, flaky = rig.actor(0), rig.actor(1)
        address = flaky.listener.getsockname()
        units = rig.units(rig.own_store(), settle_s=0.0)
        async with running(units.run()):
            await rig.soon(lambda: len(units._probes) == 2, "both are watched")
            dead.die()
            flaky.listener.close()
            await rig.soon(lambda: set(units._refused) == {0, 1}, "their deaths are noticed")
            with socket.create_server(address):
                await rig.soon(lambda: set(units._refused) == {0}, "one lives")
                assert (rig.primaries(), set(rig.store.members())) == ({}, {0, 1})
                rig.leading = True
                await rig.soon(lambda: rig.primaries() == {1: 16}, "it leads, and who is dead has nothing")
                assert set(rig.store.members()) == {1}

    asyncio.run(run())


class Late(UnitStore[Unit]):
    """Somebody else writes first, once."""

    beaten = False

    def set_table(self, table: Any, version: int) -> int:
        if not self.beaten:
            self.beaten = True
            super().set_table(first_table(SPLITTING, 7), -1)
            with pytest.raises(VersionConflict):
                super().set_table(table, version)
            raise VersionConflict("somebody else was first")
        return super().set_table(table, version)


def test_a_table_that_somebody_else_wrote_is_read_again(rig: Rig) -> None:
    async def run() -> None:
        rig.actor(0)
        late = Late(rig.client, rig.cluster, "kv", "kv", SPLITTING)
        async with running(rig.units(late, settle_s=0.0).run()):
            await rig.soon(lambda: rig.primaries() == {0: 16}, "it is arranged all the same")
        table = rig.store.table()[0]
        assert table is not None
        assert {place.epoch for place in table.places.values()} == {8}

    asyncio.run(run())


def test_units_of_every_kv_space_are_arranged_until_it_is_deleted(rig: Rig) -> None:
    async def run() -> None:
        cluster = ClusterStore(rig.others, rig.cluster)
        cluster.initialize(1, [0])
        layers = Layers(
            rig.client,
            rig.cluster,
            KvConfig(),
            lambda space: BucketSplitting(space.count),
            lambda: True,
            lambda: 1,
            0.0,
        )
        await layers.start()
        try:
            cluster.spaces.create("kv", 16, "kv")
            cluster.spaces.create("plain", 1)
            cluster.spaces.mark_ready("kv")
            cluster.spaces.mark_ready("plain")
            rig.actor(0)
            await rig.soon(lambda: rig.primaries() == {0: 16}, "the space is arranged")
            assert layers._running.keys() == {"kv"}
            cluster.spaces.delete("kv", "kv")
            await rig.soon(lambda: not layers._running, "nobody arranges it any more")
        finally:
            await layers.close()

    asyncio.run(run())


@pytest.mark.parametrize("error", [ZooKeeperUnreachable("away"), ValueError("unforeseen")])
def test_units_are_arranged_though_it_could_not_begin_at_first(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Nobody else would ever try again: what a killed actor had would be nobody's."""
    watch, errors = UnitStore.watch_members, [error]

    def refusing(store: UnitStore[Unit], *arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return watch(store, *arguments)

    monkeypatch.setattr(UnitStore, "watch_members", refusing)

    async def run() -> None:
        ClusterStore(rig.others, rig.cluster).initialize(1, [0])
        spaces = ClusterStore(rig.others, rig.cluster).spaces
        spaces.create("kv", 16, "kv")
        spaces.mark_ready("kv")
        splitting = BucketSplitting(16)
        layers = Layers(
            rig.client, rig.cluster, KvConfig(), lambda space: splitting, lambda: True, lambda: 1, settle_s=0.0
        )
        await layers.start()
        try:
            rig.actor(0)
            await rig.soon(lambda: rig.primaries() == {0: 16}, "the space is arranged")
            assert not errors
        finally:
            await layers.close()

    asyncio.run(run())


def test_only_a_refusal_is_proof_of_death() -> None:
    async def run() -> None:
        told: list[str] = []
        refused = asyncio.Event()

        def tell() -> None:
            told.append("refused")
            refused.set()

        listener = socket.create_server(("127.0.0.1", 0))
        endpoint = Endpoint("127.0.0.1", listener.getsockname()[1])
        listener.setblocking(False)
        loop = asyncio.get_running_loop()
        probing = asyncio.ensure_future(probe_endpoint(SilentProbe, endpoint, tell, lambda: None))
        async with compat.timeout(20):
            for _ in range(2):  # a broken connection is none: there is another one
                connection, _ = await loop.sock_accept(listener)
                connection.close()
            connection, _ = await loop.sock_accept(listener)
            assert told == []
            listener.close()
            connection.close()
            await refused.wait()
        probing.cancel()
        assert told == ["refused"]

    asyncio.run(run())
