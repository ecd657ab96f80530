"""What the coordination tests have: both kinds of ZooKeeper."""

from tests.coordination.conftest import harness, root

__all__ = ["harness", "root"]
