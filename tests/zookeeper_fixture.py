"""A real ZooKeeper for tests, one per test session: import ``zookeeper_server`` into a conftest.

Every test uses a cluster name of its own, so that one server serves them all.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from waltz_ray.coordination.embedded import EmbeddedZooKeeper

__all__ = ["zookeeper_server"]


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The connect string, "127.0.0.1:port"."""
    server = EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    try:
        yield server.start()
    finally:
        server.stop()
