"""The manager's shell in the test's own loop, over the in-memory twin of ZooKeeper."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from waltz_ray import compat
from waltz_ray.actors.manager import Manager
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeperServer
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.manager import Effect, Event, SettleOver
from waltz_ray.protocol.placement import Assignment

LOCK = "/demo/store/leader"


class Rig:
    def __init__(self, fatal: Callable[[str], None] | None = None) -> None:
        self.server = MemoryZooKeeperServer()
        self.store = ClusterStore(self.server.client(), "demo")
        self.store.initialize(2, [0])
        self.ensured: asyncio.Queue[bool] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def ensure() -> None:
            loop.call_soon_threadsafe(self.ensured.put_nowait, True)

        self.client = self.server.client()
        self.manager = Manager(ClusterStore(self.client, "demo"), 1, ensure, "test", 20.0, 1.5, fatal)


def test_the_next_event_waits_for_the_orders_of_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    release, reading = threading.Event(), threading.Event()
    original = ClusterStore.assignment

    def slow(self: ClusterStore) -> tuple[Assignment, int]:
        reading.set()
        assert release.wait(20)
        return original(self)

    monkeypatch.setattr(ClusterStore, "assignment", slow)

    async def run() -> None:
        rig = Rig()
        manager, events = rig.manager, list[str]()
        step = manager.machine.step

        def noted(event: Event) -> list[Effect]:
            events.append(type(event).__name__)
            return step(event)

        monkeypatch.setattr(manager.machine, "step", noted)
        await manager.start()
        await asyncio.to_thread(reading.wait, 20)
        assert events[-1] == "Elected", "its order to read is under way"
        rig.store.register_server(0, Endpoint("127.0.0.1", 1))
        for _ in range(10):
            await asyncio.sleep(0)
        assert events[-1] == "Elected", "what has happened meanwhile waits"
        release.set()
        async with compat.timeout(20):
            while "AssignmentRead" not in events:
                await asyncio.sleep(0.001)
        assert events[events.index("Elected") :][:3] == ["Elected", "ServersSeen", "AssignmentRead"]
        await manager.close()

    try:
        asyncio.run(run())
    finally:
        release.set()


def test_an_order_that_fails_for_a_reason_nobody_knows_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: ClusterStore) -> tuple[Assignment, int]:
        raise ValueError("a bug")

    monkeypatch.setattr(ClusterStore, "assignment", wrong)

    async def run() -> None:
        messages: asyncio.Queue[str] = asyncio.Queue()
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context["exception"]))
        rig = Rig(messages.put_nowait)
        await rig.manager.start()
        async with compat.timeout(20):
            assert await messages.get() == "manager: an order of its machine could not be carried out"
        await rig.manager.close()
        assert [str(failure) for failure in failures] == ["a bug"]

    asyncio.run(run())


def test_who_is_elected_again_gives_the_servers_the_whole_time_to_register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what is left of that of the election before: those that are late would lose their partitions."""

    async def run() -> None:
        rig, loop = Rig(), asyncio.get_running_loop()
        manager, later, settling = rig.manager, loop.call_later, list[asyncio.TimerHandle]()

        def noted(delay: float, call: Callable[..., object], *arguments: object) -> asyncio.TimerHandle:
            handle = later(delay, call, *arguments)
            if arguments and isinstance(arguments[0], SettleOver):
                settling.append(handle)
            return handle

        monkeypatch.setattr(loop, "call_later", noted)
        async with compat.timeout(20):
            await manager.start()
            while len(settling) < 1:
                await asyncio.sleep(0.001)
            rig.server.disconnect(rig.client)
            rig.server.expire(rig.client.session_id)
            rig.server.reconnect(rig.client)
            while len(settling) < 2:
                await asyncio.sleep(0.001)
        assert [handle.cancelled() for handle in settling] == [True, False]
        await manager.close()

    asyncio.run(run())


def test_actors_are_looked_after_by_who_leads_and_by_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waltz_ray.actors.manager._SUPERVISE_INTERVAL_S", 0.001)

    async def run() -> None:
        rig = Rig()
        manager, server, other = rig.manager, rig.server, rig.server.client()
        other.create(LOCK, b"another one", ephemeral=True)
        async with compat.timeout(20):
            await manager.start()
            while manager.machine.servers is None:
                await asyncio.sleep(0.001)
            assert rig.ensured.empty(), "another one leads"
            other.delete(LOCK)
            await rig.ensured.get()
            await rig.ensured.get()
            server.disconnect(rig.client)
            server.expire(rig.client.session_id)
            other.create(LOCK, b"another one", ephemeral=True)
            server.reconnect(rig.client)
            while manager.machine.leading:
                await asyncio.sleep(0.001)
            while not rig.ensured.empty():
                rig.ensured.get_nowait()
            await asyncio.sleep(0.05)
            assert rig.ensured.qsize() <= 1, "what had begun, and nothing after it"
        await manager.close()

    asyncio.run(run())
