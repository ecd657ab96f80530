"""One actor's space from its files on: a log in memory, ZooKeeper's twin, projections on the disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

from waltz_ray.config import KvConfig
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.errors import ProjectionFailed
from waltz_ray.kv.model import BARRIER
from waltz_ray.kv.records import encode_record
from waltz_ray.kv.serving.space_server import SpaceServer
from waltz_ray.projections.kv_state import LmdbState
from waltz_ray.protocol.spaces import Space, SpaceState
from waltz_ray.testing import InMemoryCluster

A_SPACE = Space("kv", "kv", 0, 4, SpaceState.READY)


def test_a_projection_that_has_more_than_the_log_is_begun_anew(tmp_path: Path) -> None:
    """Records of the log were lost with disks: the actor would be refused by it again and again."""

    async def run() -> None:
        async with InMemoryCluster(partitions=4) as cluster:
            client = await cluster.connect_async()
            left = LmdbState(tmp_path, client.cluster_key, "kv", 1, 1)
            left.apply((number, encode_record(BARRIER)) for number in range(3))
            left.close()
            failures: list[ProjectionFailed] = []
            zookeeper = MemoryZooKeeper(MemoryZooKeeperServer())
            server = SpaceServer(0, "waltz", A_SPACE, client, zookeeper, KvConfig(), tmp_path, failures.append)
            try:
                await server.start(0)
                assert server.status().marks == dict.fromkeys(range(4), -1)
                assert failures == []
            finally:
                await server.close()
                zookeeper.close()

    asyncio.run(run())
