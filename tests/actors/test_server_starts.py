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
from waltz_ray.errors import ZooKeeperUnreachable
from waltz_ray.runtime.status import ActorState
from waltz_ray.security.secret_file import make_secret


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def test_zookeeper_goes_away_between_listening_and_registering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The port is a fixed one: what the first attempt has opened must not keep it from the second."""
    server = MemoryZooKeeperServer()
    here = ServerConfig(host="127.0.0.1", port=free_port())
    config = ClusterConfig(name="demo", directory=str(tmp_path), server=here)
    make_secret(config.secret_path)
    ClusterStore(MemoryZooKeeper(server), "demo").initialize(1, range(3), {}, 3)
    attempts = 0

    class GoesAway(MemoryZooKeeper):
        def register_ephemeral(self, *what: Any, **how: Any) -> EphemeralNode:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                raise ZooKeeperUnreachable("ZooKeeper is away")
            return super().register_ephemeral(*what, **how)

    monkeypatch.setattr(partition_server, "begin_log", lambda cluster, actor: None)
    monkeypatch.setattr(partition_server, "own_settings", lambda *_: SimpleNamespace(config=config))
    monkeypatch.setattr(partition_server, "own_host", lambda given: given)
    monkeypatch.setattr(partition_server, "KazooZooKeeper", lambda *_: GoesAway(server))

    async def start_twice() -> None:
        actor = PartitionServer("demo", "nowhere", 0)
        with pytest.raises(ZooKeeperUnreachable):
            await actor.start()
        await actor.start()
        status = await actor.status()
        assert (status.state, status.endpoint and status.endpoint.port) == (ActorState.SERVING, here.port)
        await actor.shutdown()

    asyncio.run(asyncio.wait_for(start_twice(), 30))
