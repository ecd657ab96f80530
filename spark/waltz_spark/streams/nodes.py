"""Every thread's node at once. What stands there and is no thread's, or damaged, is named and stops nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.errors import NodeDamaged, NoNode
from waltz_spark.streams.collector_states import CollectorNode, decode_collector, is_collector
from waltz_spark.streams.locks import LockHolder, decode_holder
from waltz_spark.streams.states import ThreadNode, decode_node

__all__ = ["ThreadNodes", "lock_holder", "read_nodes"]


class ThreadNodes(NamedTuple):
    """By name. ``unreadable``: why a node cannot be understood."""

    services: dict[str, ThreadNode]
    collectors: dict[str, CollectorNode]
    unreadable: dict[str, str]


def read_nodes(zookeeper: ZooKeeper, zookeeper_root: str) -> ThreadNodes:
    """The node of every thread that ever ran, of whatever kind. ZooKeeperUnreachable."""
    nodes = ThreadNodes({}, {}, {})
    for name, path, data in _contents(zookeeper, zookeeper_root):
        try:
            if is_collector(data):
                nodes.collectors[name] = decode_collector(path, data)
            else:
                nodes.services[name] = decode_node(path, data)
        except NodeDamaged as error:
            nodes.unreadable[name] = str(error)
    return nodes


def lock_holder(zookeeper: ZooKeeper, node_path: str) -> LockHolder | None:
    """Which run has the thread's lock now; None = none."""
    try:
        return decode_holder(zookeeper.get(f"{node_path}/lock")[0])
    except NoNode:
        return None


def _contents(zookeeper: ZooKeeper, zookeeper_root: str) -> Iterator[tuple[str, str, bytes]]:
    try:
        names = zookeeper.children(zookeeper_root)
    except NoNode:
        return
    for name in names:
        path = f"{zookeeper_root}/{name}"
        try:
            data = zookeeper.get(path)[0]
        except NoNode:
            continue  # deleted since the listing, by a person
        yield name, path, data
