"""Both kinds of ZooKeeper behind one harness, so that each contract test runs on the twin and on a real server."""

from __future__ import annotations

import queue
import uuid
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

import pytest
from kazoo.client import KazooClient

from tests.zookeeper_fixture import zookeeper_server
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.coordination.zookeeper import KazooZooKeeper

__all__ = ["Harness", "Seen", "harness", "root", "zookeeper_server"]

T = TypeVar("T")
PATIENCE_S = 10.0


class Seen(Generic[T]):
    """A callback that keeps what it is given; ``until`` waits for a value that fits."""

    def __init__(self) -> None:
        self._values: queue.SimpleQueue[T] = queue.SimpleQueue()

    def __call__(self, value: T) -> None:
        self._values.put(value)

    def until(self, fits: Callable[[T], bool]) -> T:
        passed: list[T] = []
        while True:
            try:
                value = self._values.get(timeout=PATIENCE_S)
            except queue.Empty:
                raise AssertionError(f"it never came; seen were {passed}") from None
            if fits(value):
                return value
            passed.append(value)

    def waiting(self) -> list[T]:
        """What has come and was not taken."""
        return [self._values.get() for _ in range(self._values.qsize())]


class Harness(Protocol):
    """Clients, and the faults both kinds can have."""

    def client(self) -> ZooKeeper: ...

    def expire(self, client: ZooKeeper) -> None:
        """End the client's session as a time-out would; returns when the server has done so."""
        ...

    def close(self) -> None: ...


class MemoryHarness:
    def __init__(self) -> None:
        self.server = MemoryZooKeeperServer()

    def client(self) -> MemoryZooKeeper:
        return self.server.client()

    def expire(self, client: ZooKeeper) -> None:
        self.server.expire(client.session_id)

    def close(self) -> None:
        assert not self.server._jobs


class KazooHarness:
    def __init__(self, hosts: str) -> None:
        self._hosts = hosts
        self._clients: list[KazooZooKeeper] = []

    def client(self) -> KazooZooKeeper:
        client = KazooZooKeeper(self._hosts, session_timeout_ms=4000)
        self._clients.append(client)
        return client

    def expire(self, client: ZooKeeper) -> None:
        # A second connection takes the session over and closes it: to the server that is the end of it, and the
        # first client is told so when it comes back.
        assert isinstance(client, KazooZooKeeper)
        thief = KazooClient(hosts=self._hosts, client_id=client._client.client_id)
        thief.start()
        thief.stop()
        thief.close()

    def close(self) -> None:
        for client in self._clients:
            client.close()


@pytest.fixture(params=["memory", "kazoo"])
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    memory = request.param == "memory"
    made: Harness = MemoryHarness() if memory else KazooHarness(request.getfixturevalue("zookeeper_server"))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def root() -> str:
    """A cluster name nobody else has."""
    return f"test-{uuid.uuid4().hex}"
