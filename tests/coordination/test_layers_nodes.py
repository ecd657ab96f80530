"""How many actors a layer is to have."""

from __future__ import annotations

import pytest

from tests.coordination.conftest import Harness, Seen
from tests.coordination.test_memory_faults import DyingZooKeeper
from waltz_ray.coordination.layer_store import LayerStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.errors import CoordinationError, InvalidInput, ZooKeeperUnreachable


def test_the_number_of_actors_rises_and_is_told(harness: Harness, root: str) -> None:
    store, other = LayerStore(harness.client(), root), LayerStore(harness.client(), root)
    seen: Seen[int] = Seen()
    watch = other.watch("kv", seen)
    assert (seen.until(lambda n: True), other.actors("kv")) == (0, 0)
    assert store.raise_actors("kv", 2) == 2
    assert seen.until(lambda n: n > 0) == 2
    assert other.raise_actors("kv", 3) == 3
    assert seen.until(lambda n: n > 2) == store.actors("kv") == 3
    assert (store.raise_actors("kv", 3), store.actors("topic")) == (3, 0)
    with pytest.raises(InvalidInput, match="there are 3 actors of kv already"):
        store.raise_actors("kv", 2)
    watch.cancel()


class Overtaken(MemoryZooKeeper):
    """Somebody else writes between its read and its write, once."""

    overtaken = False

    def _first(self) -> None:
        if not self.overtaken:
            self.overtaken = True
            LayerStore(self._server.client(), "c").raise_actors("kv", 4)

    def create(self, path: str, data: bytes, **options: bool) -> str:
        self._first()
        return super().create(path, data, **options)

    def set(self, path: str, data: bytes, version: int) -> int:
        self._first()
        return super().set(path, data, version)


@pytest.mark.parametrize("there", [0, 1])
def test_of_two_who_raise_it_at_once_the_higher_number_stays(there: int) -> None:
    server = MemoryZooKeeperServer()
    LayerStore(server.client(), "c").raise_actors("kv", there)
    assert LayerStore(Overtaken(server), "c").raise_actors("kv", 5) == 5
    with pytest.raises(InvalidInput):
        LayerStore(Overtaken(server), "c").raise_actors("kv", 3)
    assert LayerStore(server.client(), "c").actors("kv") == 5


@pytest.mark.parametrize("after", [False, True])
def test_a_lost_answer_is_looked_at_by_asking_again(after: bool) -> None:
    server = MemoryZooKeeperServer()
    server.client().create("/c/store/layers", b"", make_parents=True)
    store = LayerStore(DyingZooKeeper(server, 0, after), "c")
    with pytest.raises(ZooKeeperUnreachable):
        store.raise_actors("kv", 2)
    again = LayerStore(server.client(), "c")
    assert again.actors("kv") == (2 if after else 0)
    assert again.raise_actors("kv", 2) == 2


def test_a_damaged_node_is_named() -> None:
    client = MemoryZooKeeperServer().client()
    client.create("/c/store/layers/kv", b'{"version": 1, "actors": "many"}', make_parents=True)
    with pytest.raises(CoordinationError, match="/c/store/layers/kv"):
        LayerStore(client, "c").actors("kv")
