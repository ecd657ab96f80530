"""A server's actor that could not start, and is told to start again."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from waltz_ray.actors import partition_server
from waltz_ray.actors.partition_server import PartitionServer
from waltz_ray.config import ClusterConfig, ServerConfig
from waltz_ray.coordination.api import EphemeralNode
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.coordination.pulse import ZooKeeperPulse
from waltz_ray.errors import ZooKeeperUnreachable
from waltz_ray.runtime.status import ActorState
from waltz_ray.security.secret_file import make_secret


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@pytest.fixture
def zookeeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryZooKeeperServer:
    """What the actor finds, with a cluster; its port is a fixed one."""
    server = MemoryZooKeeperServer()
    config = ClusterConfig(
        name="demo", directory=str(tmp_path), server=ServerConfig(host="127.0.0.1", port=free_port())
    )
    make_secret(config.secret_path)
    ClusterStore(MemoryZooKeeper(server), "demo").initialize(1, range(3), {}, 3)
    monkeypatch.setattr(partition_server, "begin_log", lambda cluster, actor: None)
    monkeypatch.setattr(partition_server, "own_settings", lambda *_: SimpleNamespace(config=config))
    monkeypatch.setattr(partition_server, "own_host", lambda given: given)
    monkeypatch.setattr(partition_server, "KazooZooKeeper", lambda *_: MemoryZooKeeper(server))
    return server


def starts_the_second_time(error: type[Exception]) -> None:
    """What the first attempt has opened must not keep the port from the second."""

    async def start_twice() -> None:
        actor = PartitionServer("demo", "nowhere", 0)
        with pytest.raises(error):
            await actor.start()
        await actor.start()
        assert (await actor.status()).state is ActorState.SERVING
        await actor.shutdown()

    asyncio.run(asyncio.wait_for(start_twice(), 30))


def test_zookeeper_goes_away_between_listening_and_registering(
    zookeeper: MemoryZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = 0

    class GoesAway(MemoryZooKeeper):
        def register_ephemeral(self, *what: Any, **how: Any) -> EphemeralNode:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                raise ZooKeeperUnreachable("ZooKeeper is away")
            return super().register_ephemeral(*what, **how)

    monkeypatch.setattr(partition_server, "KazooZooKeeper", lambda *_: GoesAway(zookeeper))
    starts_the_second_time(ZooKeeperUnreachable)


def test_its_last_thread_cannot_be_started(zookeeper: MemoryZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> None:
    attempts = 0

    def pulse(*arguments: Any) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise RuntimeError("can't start new thread")
        return ZooKeeperPulse(*arguments)

    monkeypatch.setattr(partition_server, "ZooKeeperPulse", pulse)
    starts_the_second_time(RuntimeError)
