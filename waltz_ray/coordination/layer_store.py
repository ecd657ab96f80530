"""How many actors a layer is to have, in ZooKeeper: ``/<cluster>/store/layers/<layer>``. It only rises.

The manager sees to it that so many exist; what each of them serves is the table's matter (``unit_store.py``).
"""

from __future__ import annotations

from collections.abc import Callable

from waltz_ray.coordination.api import Watch, ZooKeeper
from waltz_ray.coordination.cluster_nodes import naming, to_fields, to_json
from waltz_ray.errors import InvalidInput, NodeExists, NoNode, VersionConflict

__all__ = ["LayerStore"]


class LayerStore:
    """Of ``cluster``. Holds no state. Every call may raise ZooKeeperUnreachable."""

    def __init__(self, zookeeper: ZooKeeper, cluster: str) -> None:
        self._zookeeper = zookeeper
        self._root = f"/{cluster}/store/layers"

    def actors(self, layer: str) -> int:
        """How many there are to be."""
        return self._read(layer)[0]

    def raise_actors(self, layer: str, wanted: int) -> int:
        """Have at least ``wanted``: how many there are to be now. InvalidInput for fewer than there are.

        An actor that goes takes no data with it, but clients that know only its port: so none is taken away.
        """
        path = f"{self._root}/{layer}"
        while True:
            there, version = self._read(layer)
            if wanted < there:
                raise InvalidInput(f"there are {there} actors of {layer} already; they are not taken away again")
            if wanted == there:
                return there
            try:
                if version < 0:
                    self._zookeeper.create(path, to_json({"actors": wanted}), make_parents=True)
                else:
                    self._zookeeper.set(path, to_json({"actors": wanted}), version)
            except (NodeExists, VersionConflict):
                continue  # somebody else has raised it: look again
            return wanted

    def watch(self, layer: str, callback: Callable[[int], None]) -> Watch:
        """``callback`` with the number, now and after each change."""
        path = f"{self._root}/{layer}"
        return self._zookeeper.watch_data(
            path, lambda data, version: callback(0 if data is None else _number(path, data))
        )

    def _read(self, layer: str) -> tuple[int, int]:
        path = f"{self._root}/{layer}"
        try:
            data, version = self._zookeeper.get(path)
        except NoNode:
            return 0, -1
        return _number(path, data), version


def _number(path: str, data: bytes) -> int:
    with naming(path):
        return int(to_fields(path, data)["actors"])
