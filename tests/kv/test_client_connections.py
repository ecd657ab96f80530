"""What clients of one loop share, and what each has alone."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from tests.kv.cancelling import cancelled_after
from tests.kv.fake_cluster import FakeKvCluster, FakePlace
from waltz_ray import compat
from waltz_ray.client.io_thread import IoThread
from waltz_ray.errors import ClientClosed, InvalidInput, KvNotReady, SpaceGone, ZooKeeperUnreachable
from waltz_ray.kv.client import connecting
from waltz_ray.kv.client import connections as module
from waltz_ray.kv.client.aio import AsyncKvClient
from waltz_ray.kv.client.client import KvClient
from waltz_ray.kv.client.link import KvPeer
from waltz_ray.kv.client.members import Members, StaticKvDirectory
from waltz_ray.kv.client.settings import KvClientConfig
from waltz_ray.kv.messages import Put
from waltz_ray.kv.routing import fnv1a_32

LIMIT_S = 10.0


async def until(what: Callable[[], bool]) -> None:
    async with compat.timeout(LIMIT_S):
        while not what():
            await asyncio.sleep(0.005)


def test_clients_of_one_loop_share_connections_until_the_last_one_has_left() -> None:
    async def run(cluster: FakeKvCluster) -> None:
        (actor,) = cluster.actors
        first, second = AsyncKvClient(cluster.place()), AsyncKvClient(cluster.place())
        async with first:
            async with second:
                await asyncio.gather(first.set("ann", 1), second.set("bob", 2))
                assert len(actor.connections) == 1
                assert len({command.client for command in actor.seen if isinstance(command, Put)}) == 2
            assert await first.get("bob") == 2
        await until(lambda: not actor.connections)
        assert not module._shared
        async with AsyncKvClient(cluster.place()) as third:
            assert await third.get("ann") == 1

    with FakeKvCluster(1) as cluster:
        asyncio.run(run(cluster))


def test_clients_that_are_configured_otherwise_share_nothing() -> None:
    async def run(cluster: FakeKvCluster) -> None:
        async with (
            AsyncKvClient(cluster.place()) as one,
            AsyncKvClient(cluster.place(), KvClientConfig(max_frame_bytes=1 << 20)) as other,
        ):
            await asyncio.gather(one.set("ann", 1), other.set("bob", 2))
            assert len(cluster.actors[0].connections) == 2

    with FakeKvCluster(1) as cluster:
        asyncio.run(run(cluster))


def test_a_full_connection_is_shared_by_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_SHARE", 2)

    async def run(cluster: FakeKvCluster) -> None:
        clients = [AsyncKvClient(cluster.place()) for _ in range(5)]
        for client in clients:
            await client.start()
            await client.set("ann", 1)
        assert len(cluster.actors[0].connections) == 3
        for client in clients:
            await client.close()
        await until(lambda: not cluster.actors[0].connections)
        assert not module._shared

    with FakeKvCluster(1) as cluster:
        asyncio.run(run(cluster))


def test_a_client_that_is_closed_ends_its_own_calls_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waltz_ray.kv.client.link._SILENCE_S", 60.0)  # longer than a call: that ends none of them

    async def run(cluster: FakeKvCluster) -> None:
        (actor,) = cluster.actors
        async with AsyncKvClient(cluster.place()) as stays:
            leaves = AsyncKvClient(cluster.place())
            async with leaves:
                await asyncio.gather(stays.set("ann", 1), leaves.set("bob", 2))
                await asyncio.to_thread(actor.pause)
                ours, other = asyncio.ensure_future(leaves.set("bob", 3)), asyncio.ensure_future(stays.set("ann", 4))
                await asyncio.sleep(0.01)
            with pytest.raises(ClientClosed):  # when its time is over it is another error
                await ours
            await asyncio.to_thread(actor.wake)
            await other
            assert await stays.get("ann") == 4

    with FakeKvCluster(1) as cluster:
        asyncio.run(run(cluster))


def test_who_is_closed_waits_for_no_lock_any_more() -> None:
    """The actor sees it by the connection's end; others use the shared one meanwhile."""

    async def run(cluster: FakeKvCluster) -> None:
        (actor,) = cluster.actors
        async with AsyncKvClient(cluster.place()) as holder:
            waits = AsyncKvClient(cluster.place())
            async with waits, holder.lock("leader"):
                assert len(actor.connections) == 2
                waiting = asyncio.ensure_future(waits.lock("leader", wait=60).acquire())
                await until(lambda: len(actor.connections) == 3)
                await waits.close()
                with pytest.raises((ClientClosed, asyncio.CancelledError)):
                    await waiting
                await until(lambda: len(actor.connections) == 2)
            assert await holder.get("ann") is None

    with FakeKvCluster(1) as cluster:
        asyncio.run(run(cluster))


def test_a_lock_at_a_silent_actor_keeps_no_other_lock_waiting() -> None:
    """Also one that nobody lists: the table has it from who says: try elsewhere."""

    async def run(cluster: FakeKvCluster) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            await lock_beside(cluster, f"127.0.0.1:{silent.getsockname()[1]}")

    async def lock_beside(cluster: FakeKvCluster, silent: str) -> None:
        async with AsyncKvClient(cluster.place()) as client:
            await client.set("ann", 1)
            engine = client._started_engine()
            engine.table.redirected(fnv1a_32(b"slow"), silent)
            slow = asyncio.ensure_future(client.lock("slow", wait=1).acquire())
            await until(lambda: silent in engine._own)
            other = next(f"{n}" for n in range(99) if fnv1a_32(b"%d" % n) & 15 != fnv1a_32(b"slow") & 15)
            async with client.lock(other):
                assert not slow.done()
                assert silent in engine._own
            slow.cancel()
            await asyncio.wait([slow])

    with FakeKvCluster(1) as cluster:
        asyncio.run(run(cluster))


@dataclass
class _Directory(StaticKvDirectory):
    """One that cannot be watched at first."""

    place: _UnreachablePlace

    def __init__(self, place: _UnreachablePlace) -> None:
        super().__init__(place.servers)
        self.place = place

    def watch(self, callback: Callable[[Members], None]) -> Callable[[], None]:
        if self.place.failures:
            self.place.failures -= 1
            raise ZooKeeperUnreachable("it is away")
        return super().watch(callback)

    def close(self) -> None:
        self.place.closed += 1


@dataclass
class _UnreachablePlace(FakePlace):
    failures: int = 0
    closed: int = 0

    def directory(self) -> StaticKvDirectory:
        return _Directory(self)


class _Telling(StaticKvDirectory):
    """One that says more, later."""

    tell: Callable[[Members], None]

    def watch(self, callback: Callable[[Members], None]) -> Callable[[], None]:
        self.tell = callback
        return super().watch(callback)


class _TellingPlace(FakePlace):
    def directory(self) -> StaticKvDirectory:
        made = _Telling(self.servers)
        self.directories = [*getattr(self, "directories", []), made]
        return made


def test_of_a_space_that_was_deleted_nothing_is_waited_for() -> None:
    async def run() -> None:
        place = _TellingPlace([])  # nobody serves it
        async with AsyncKvClient(place) as client, AsyncKvClient(place) as other:
            lock = client.lock("leader")
            going_on = [
                client.get("ann"),
                client.set("ann", 1),
                client.set_many({"a": 1}),
                lock.acquire(),
                other.count(),
            ]
            begun = [asyncio.create_task(each) for each in going_on]
            done, _ = await asyncio.wait(begun, timeout=0.05)
            assert not done
            for directory in place.directories:
                if hasattr(directory, "tell"):  # the other one shares the connections of this
                    directory.tell(SpaceGone("space 'kv' was deleted"))
            found = await asyncio.gather(*begun, return_exceptions=True)
            assert [type(each) for each in found] == [SpaceGone] * len(begun)
            lengths: list[int] = []
            for _ in range(5):
                with pytest.raises(SpaceGone) as told:
                    await client.get("ann")
                lengths.append(len(told.traceback))
            assert lengths == 5 * lengths[:1], "it does not grow"

    asyncio.run(asyncio.wait_for(run(), 20))


class _Meant(StaticKvDirectory):
    def __init__(self, servers: Sequence[str]) -> None:
        super().__init__(servers)
        self.serves = "key/kv"


class _MeantPlace(FakePlace):
    def directory(self) -> StaticKvDirectory:
        return _Meant(self.servers)


def test_an_actor_of_another_space_that_has_the_address_by_now_is_not_taken_for_one_of_ours() -> None:
    """Ours has died, and before anybody knows it another one listens there: of another space, or of another cluster."""

    async def run(cluster: FakeKvCluster) -> None:
        actor = cluster.actors[0]
        place = _MeantPlace([actor.server])
        async with AsyncKvClient(place) as client:  # an actor of an earlier version cannot be asked
            await client.set("ann", "ours")
            await asyncio.to_thread(actor.kill)
            actor.identity = "key/carts"
            cluster.state.items.clear()
            await asyncio.to_thread(actor.revive)
            for call in (client.set("ann", "lost", timeout=0.5), client.get("ann", timeout=0.5)):
                with pytest.raises(KvNotReady, match="serves another space by now"):
                    await call
            assert cluster.state.items == {}
            await asyncio.to_thread(actor.kill)
            actor.identity = "key/kv"
            await asyncio.to_thread(actor.revive)
            assert await client.get("ann") is None

    with FakeKvCluster(1) as cluster:
        asyncio.run(run(cluster))


class _SlowPlace(FakePlace):
    """Its directory is opened, or tells who is there (``where``), when it is let go on."""

    def __init__(self, servers: Sequence[str], where: str) -> None:
        super().__init__(servers)
        self.where = where
        self.asked, self.goes_on, self.closed = threading.Event(), threading.Event(), threading.Event()

    def wait(self, where: str) -> None:
        if where == self.where:
            self.asked.set()
            assert self.goes_on.wait(10)

    def directory(self) -> StaticKvDirectory:
        self.wait("directory")
        return _Slow(self)


class _Slow(StaticKvDirectory):
    def __init__(self, place: _SlowPlace) -> None:
        super().__init__(place.servers)
        self._place = place

    def watch(self, callback: Callable[[Members], None]) -> Callable[[], None]:
        self._place.wait("watch")
        return super().watch(callback)

    def close(self) -> None:
        self._place.closed.set()


@pytest.mark.parametrize("use", [lambda client: client.get("ann"), KvClient.close], ids=["get", "close"])
def test_a_call_on_the_io_thread_is_refused_also_while_another_thread_connects(use: Callable[[KvClient], None]) -> None:
    """It would wait for who connects, and that waits for the IO thread: no client of the process would go on."""
    place = _SlowPlace([], "directory")
    client, io = KvClient(place), IoThread()
    opening = threading.Thread(target=client.open, daemon=True)
    opening.start()
    assert place.asked.wait(LIMIT_S)

    async def on_the_io_thread() -> None:
        use(client)

    with pytest.raises(InvalidInput, match="on it, in a future's callback"):
        io.start(on_the_io_thread()).result(LIMIT_S)
    place.goes_on.set()
    opening.join()
    client.close()
    io.stop(asyncio.sleep(0))


@pytest.mark.parametrize("where", ["directory", "watch"])
@pytest.mark.parametrize("how", ["connect_async", "start", "close"])
def test_who_is_cancelled_or_closed_while_it_starts_leaves_nothing_behind(
    how: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(cluster: FakeKvCluster) -> None:
        place = _SlowPlace([cluster.actors[0].server], where)
        monkeypatch.setattr(connecting, "find_cluster", lambda *which: None)
        monkeypatch.setattr(connecting, "ClusterPlace", lambda *what: place)
        client = AsyncKvClient(place)
        starting = asyncio.ensure_future(connecting.connect_async() if how == "connect_async" else client.start())
        assert await asyncio.to_thread(place.asked.wait, 10)
        if how == "close":
            await client.close()
        else:
            starting.cancel()
        place.goes_on.set()
        (found,) = await asyncio.gather(starting, return_exceptions=True)
        assert isinstance(found, ClientClosed if how == "close" else asyncio.CancelledError)
        assert await asyncio.to_thread(place.closed.wait, 10)
        assert not module._shared
        if how == "close":
            with pytest.raises(ClientClosed):
                await client.set("ann", 1)
            with pytest.raises(ClientClosed):
                await client.start()
        else:
            async with client:
                await client.set("ann", 1)

    with FakeKvCluster(1) as cluster:
        asyncio.run(asyncio.wait_for(run(cluster), 20))


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_who_is_cancelled_while_it_is_closed_leaves_nothing_behind(turns: int) -> None:
    async def run(cluster: FakeKvCluster) -> None:
        place = _SlowPlace([cluster.actors[0].server], "nowhere")
        client, before = AsyncKvClient(place), asyncio.all_tasks()
        await client.start()
        await client.set("ann", 1)
        await cancelled_after(turns, client.close())
        await client.close()
        assert place.closed.is_set()
        assert asyncio.all_tasks() == before

    with FakeKvCluster(1) as cluster:
        asyncio.run(asyncio.wait_for(run(cluster), 20))


def test_a_client_whose_close_is_interrupted_has_closed_its_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, while a connection does not end."""
    stop, waits = KvPeer.stop, threading.Event()

    async def never(peer: KvPeer) -> None:
        try:
            waits.set()
            await asyncio.Event().wait()
        finally:
            await stop(peer)

    def press() -> None:
        if waits.wait(10):
            signal.raise_signal(signal.SIGINT)

    with FakeKvCluster(1) as cluster:
        place = _SlowPlace([cluster.actors[0].server], "nowhere")
        client = KvClient(place)
        client.set("ann", 1)
        monkeypatch.setattr(KvPeer, "stop", never)
        pressing = threading.Thread(target=press)
        pressing.start()
        with pytest.raises(KeyboardInterrupt):
            client.close()
        pressing.join()
        assert place.closed.is_set()
        assert not module._shared


def test_actors_that_cannot_be_found_leave_nothing_behind() -> None:
    async def run(cluster: FakeKvCluster) -> None:
        place = _UnreachablePlace([cluster.actors[0].server], failures=1)
        both = [AsyncKvClient(place), AsyncKvClient(place)]
        found = await asyncio.gather(*[client.start() for client in both], return_exceptions=True)
        assert [type(each) for each in found] == [ZooKeeperUnreachable] * 2
        assert place.closed == 2
        assert not module._shared
        async with both[0] as client:
            await client.set("ann", 1)
        assert place.closed == 3

    with FakeKvCluster(1) as cluster:
        asyncio.run(run(cluster))
