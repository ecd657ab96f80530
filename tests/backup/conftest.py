from __future__ import annotations

from tests.zookeeper_fixture import zookeeper_server

__all__ = ["zookeeper_server"]
