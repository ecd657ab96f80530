"""The nodes of topics in ZooKeeper, beside those of ownership: where slots listen, and who is their master.

::

    /<cluster>/store/topics
        /epoch                       of the last master; it only rises
        /leader                      lock, ephemeral: the actor that is the master
        /access, /flow               who may what, and how fast: JSON of operators (docs/tubemq.md, "Rights and limits")
        /visit, /secrets             tokens: made by masters, from time to time and once
        /ports/<actor>.<10 digits>   where the actor's slots listen; ephemeral, the highest of an actor counts

Crash story. A leader that is cut off answers as master until it reaches ZooKeeper again: what it grants is refused by
slots, which let one consumer in at a time. Each leader takes an epoch before it begins, so what it numbers is higher
than what any did before. Ports go with their session; those of an actor that has gone are looked at by nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from waltz_ray.coordination.api import EphemeralNode, Watch, ZooKeeper
from waltz_ray.coordination.cluster_nodes import naming, to_fields, to_json
from waltz_ray.coordination.leadership import Leadership
from waltz_ray.errors import NodeExists, NoNode, VersionConflict

__all__ = ["SlotPorts", "TopicStore"]


class SlotPorts(NamedTuple):
    """Where an actor's slots listen."""

    host: str
    ports: Mapping[int, int]


class TopicStore:
    """Of ``cluster``. Holds no state. Every call may raise ZooKeeperUnreachable, and CoordinationError for a node whose
    bytes make no sense."""

    def __init__(self, zookeeper: ZooKeeper, cluster: str) -> None:
        self._zookeeper = zookeeper
        self._root = f"/{cluster}/store/topics"
        self._ports = f"{self._root}/ports"

    # ---- the master

    def lead(self, identity: str, on_elected: Callable[[], None], on_lost: Callable[[], None]) -> Leadership:
        """Contend for being the master (see Leadership) as ``identity``, which people see."""
        self._make(self._root)
        return Leadership(self._zookeeper, f"{self._root}/leader", to_json({"identity": identity}), on_elected, on_lost)

    def next_epoch(self) -> int:
        """Higher than that of any master before; 1: there was none."""
        path = f"{self._root}/epoch"
        while True:
            try:
                data, version = self._zookeeper.get(path)
            except NoNode:
                try:
                    self._zookeeper.create(path, to_json({"epoch": 1}), make_parents=True)
                    return 1
                except NodeExists:
                    continue
            with naming(path):
                epoch = int(to_fields(path, data)["epoch"]) + 1
            try:
                self._zookeeper.set(path, to_json({"epoch": epoch}), version)
                return epoch
            except VersionConflict:
                continue

    # ---- documents

    def document(self, name: str) -> tuple[bytes, int]:
        """The bytes of ``access``, ``flow``, ``visit`` or ``secrets``, and their version; (b"", -1): there are none."""
        try:
            return self._zookeeper.get(f"{self._root}/{name}")
        except NoNode:
            return b"", -1

    def set_document(self, name: str, data: bytes, version: int) -> bool:
        """Replace it where it has that version (-1: where there is none); False: it has another."""
        path = f"{self._root}/{name}"
        try:
            if version < 0:
                self._zookeeper.create(path, data, make_parents=True)
            else:
                self._zookeeper.set(path, data, version)
        except (NodeExists, VersionConflict, NoNode):
            return False
        return True

    def watch_document(self, name: str, callback: Callable[[bytes], None]) -> Watch:
        """``callback`` with its bytes, now and after each change; b"": there are none."""
        return self._zookeeper.watch_data(f"{self._root}/{name}", lambda data, version: callback(data or b""))

    # ---- ports

    def announce(self, actor: int, host: str, ports: Mapping[int, int]) -> EphemeralNode:
        """Keep saying so until it is cancelled; what is said later counts from then on."""
        self._make(self._ports)
        data = to_json({"host": host, "slots": {str(slot): port for slot, port in sorted(ports.items())}})
        return self._zookeeper.register_ephemeral(f"{self._ports}/{actor}.", lambda: data, sequence=True)

    def watch_ports(self, callback: Callable[[dict[int, SlotPorts]], None]) -> Watch:
        """``callback`` with what each actor has said last, now and after each change."""
        self._make(self._ports)
        return self._zookeeper.watch_children(self._ports, lambda names: callback(self._read(names)))

    def ports(self) -> dict[int, SlotPorts]:
        """What each actor has said last."""
        self._make(self._ports)
        return self._read(self._zookeeper.children(self._ports))

    def _read(self, names: list[str]) -> dict[int, SlotPorts]:
        newest: dict[int, str] = {}
        for name in sorted(names, key=lambda each: each.rpartition(".")[2]):
            actor, dot, _ = name.partition(".")
            if dot and actor.isdecimal():
                newest[int(actor)] = name
        found: dict[int, SlotPorts] = {}
        for number, name in newest.items():
            path = f"{self._ports}/{name}"
            try:
                fields = to_fields(path, self._zookeeper.get(path)[0])
            except NoNode:
                continue  # gone since it was listed: another change is told
            with naming(path):
                slots = {int(slot): int(port) for slot, port in fields["slots"].items()}
                found[number] = SlotPorts(str(fields["host"]), slots)
        return found

    def _make(self, path: str) -> None:
        if self._zookeeper.exists(path) is None:
            try:
                self._zookeeper.create(path, b"", make_parents=True)
            except NodeExists:
                return
