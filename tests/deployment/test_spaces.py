"""Two who apply the same file at once: what the other one has just made is what the file asks for."""

from __future__ import annotations

import pytest

from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.deployment.applying import have_spaces
from waltz_ray.deployment.difference import space_changes
from waltz_ray.deployment.file import parse
from waltz_ray.errors import InvalidInput
from waltz_ray.spaces import Spaces


class OwnSpaces(Spaces):
    """Over a ZooKeeper in memory; nothing has to be found, and there is no manager."""

    def __init__(self) -> None:
        self._store = ClusterStore(MemoryZooKeeper(MemoryZooKeeperServer()), "prod")
        self._store.initialize(2, range(3))

    def made_by_another(self, name: str, partitions: int) -> None:
        self._store.spaces.create(name, partitions)
        self._store.spaces.mark_ready(name)


FILE = parse("name: prod\ndirectory: /x\nspaces:\n  orders: {partitions: 2, retention_ms: 5}\n", "f")
PLANNED = [*space_changes(FILE, "orders", None)]
"""By who had not seen it yet."""


def test_a_space_that_another_one_has_just_made_is_taken_and_set() -> None:
    spaces = OwnSpaces()
    spaces.made_by_another("orders", 2)
    told: list[str] = []
    have_spaces(FILE, spaces, PLANNED, told.append)
    space = spaces.list()[1]
    assert (space.name, space.count, space.settings) == ("orders", 2, {"retention_ms": 5})
    assert told == ["making space orders", "setting space orders"]


def test_one_of_another_shape_is_refused() -> None:
    spaces = OwnSpaces()
    spaces.made_by_another("orders", 3)
    with pytest.raises(InvalidInput, match="'orders' of cluster 'prod' is there already"):
        have_spaces(FILE, spaces, PLANNED, print)
    assert spaces.list()[1].settings == {}
    spaces = OwnSpaces()
    spaces.made_by_another("orders", 2)
    spaces.delete("orders", "orders")
    with pytest.raises(InvalidInput, match="was deleted, and its name is not used again"):
        have_spaces(FILE, spaces, PLANNED, print)
