"""What tests of the key/value layer share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kv.fake_cluster import FakePlace
from waltz_ray.client.aio import AsyncWaltzClient
from waltz_ray.client.client import WaltzClient
from waltz_ray.testing import InMemoryCluster

__all__ = ["LogPlace"]


class LogPlace(FakePlace):
    """Actors that are not there, and a log that is."""

    log_cluster: InMemoryCluster

    def log(self) -> WaltzClient:
        return self.log_cluster.connect(space="kv")

    async def log_async(self) -> AsyncWaltzClient:
        return await self.log_cluster.connect_async(space="kv")


@pytest.fixture
def place() -> Iterator[LogPlace]:
    with InMemoryCluster() as cluster:
        cluster.create_space("kv", 2, "kv")
        found = LogPlace([], 2)
        found.log_cluster = cluster
        yield found
