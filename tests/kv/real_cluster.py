"""A cluster of real processes on the session's Ray, with kv actors; its processes found, stopped and killed.

What the log itself says of who had what (``claims``) is read from the log, by the log's own client.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import waltz_ray
from waltz_ray.actors.supervision import ask, kv_name
from waltz_ray.bring_up import bring_up
from waltz_ray.config import ClusterConfig, KvConfig, ServerConfig
from waltz_ray.coordination.layer_store import LayerStore
from waltz_ray.coordination.unit_store import UnitStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import ClusterNotFound, VersionConflict
from waltz_ray.finding import cluster_file
from waltz_ray.finding.ray_lookup import MANAGER
from waltz_ray.kv.model import Own, Release
from waltz_ray.kv.placement import BucketSplitting
from waltz_ray.kv.records import decode_record
from waltz_ray.kv.routing import Unit, coarser, fnv1a_32
from waltz_ray.protocol.arrangement import split
from waltz_ray.protocol.ownership_types import UnitTable
from waltz_ray.runtime.status import KvSpaceStatus
from waltz_ray.take_down import take_down

__all__ = ["SPACE", "RealCluster", "check_claims", "real_cluster", "until"]

SPACE = "kv"

T = TypeVar("T")


def until(condition: Callable[[], T], what: str, seconds: float = 40.0) -> T:
    """What it is when it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)  # polling interval, not synchronisation
    return found


def _on_disk(*folders: Path) -> int:
    found = 0
    for path in (path for folder in folders for path in folder.rglob("*")):
        with contextlib.suppress(FileNotFoundError):  # trimmed meanwhile
            found += path.stat().st_blocks * 512
    return found


class RealCluster:
    def __init__(self, name: str, directory: Path, zookeeper: str, partitions: int) -> None:
        self.name, self.directory, self.zookeeper, self.partitions = name, directory, zookeeper, partitions
        self._client = KazooZooKeeper(zookeeper)
        self.units = UnitStore[Unit](self._client, name, "kv", SPACE, BucketSplitting(partitions))

    def close(self) -> None:
        self._client.close()

    # ---- who has what

    def grow(self, actors: int) -> None:
        """So many kv actors are wanted from now on."""
        LayerStore(self._client, self.name).raise_actors("kv", actors)

    def split(self) -> None:
        """All buckets at once, as the manager does it when actors have too few."""
        while True:
            table, version = self.units.table()
            assert table is not None
            try:
                self.units.set_table(split(BucketSplitting(self.partitions), table), version)
                return
            except VersionConflict:
                continue  # the manager has just written it

    def table(self) -> UnitTable[Unit]:
        found, _ = self.units.table()
        assert found is not None
        return found

    def servers(self) -> dict[int, str]:
        members = self.units.confirmed_members()
        return {actor: f"{each.endpoint.host}:{each.endpoint.port}" for actor, each in members.items()}

    def owners(self) -> list[str]:
        """The server of each bucket's primary, as the table has it."""
        servers, table = self.servers(), self.table()
        return [servers[place.primary or 0] for _, place in sorted(table.places.items())]

    def primary(self, name: bytes) -> int:
        table = self.table()
        found = table.places[Unit(table.level, fnv1a_32(name) & table.level)].primary
        assert found is not None
        return found

    def secondary(self, name: bytes) -> int:
        table = self.table()
        found = table.places[Unit(table.level, fnv1a_32(name) & table.level)].secondary
        assert found is not None
        return found

    def status(self, actor: int) -> KvSpaceStatus | None:
        """None: it does not say, or does not serve the space yet."""
        try:
            found = ask(self.name, kv_name(actor), "status", 2.0)
        except ClusterNotFound:
            return None
        status: KvSpaceStatus | None = found.spaces.get(SPACE)
        return status

    def trouble(self, actor: int) -> str:
        """Why it does not serve what it should, as ``waltz status`` has it; "" if it does."""
        try:
            found = ask(self.name, kv_name(actor), "status", 2.0)
        except ClusterNotFound as error:
            return str(error)
        assert (found.reason == "") == found.serving
        return str(found.reason)

    def wait_served(self, actors: int, seconds: float = 60.0) -> None:
        """Until so many actors serve all buckets as the table says, each with a lease."""

        def served() -> bool:
            table, _ = self.units.table()
            if table is None or len(self.servers()) != actors:
                return False
            if {place.primary for place in table.places.values()} != set(range(actors)):
                return False
            found = [self.status(actor) for actor in range(actors)]
            return sum(each.primaries for each in found if each is not None and each.mask == table.level) == (
                table.level + 1
            ) and all(each is not None and each.lease for each in found)

        until(served, f"all buckets are served by {actors} actors", seconds)

    # ---- processes

    def pid(self, name: str) -> int:
        """Of the actor ``kv/1``, ``server/0``, ...; AssertionError if it is not there."""
        found: int | None = None

        def told() -> bool:
            nonlocal found
            try:
                status = ask(self.name, name, "status", 5.0)
                found = (status.manager if name == MANAGER else status).pid
            except ClusterNotFound:
                found = None
            return found is not None

        until(told, f"{name} says its pid")
        assert found is not None
        return found

    def kill(self, name: str) -> int:
        pid = self.pid(name)
        os.kill(pid, signal.SIGKILL)
        return pid

    @contextlib.contextmanager
    def stopped(self, name: str) -> Iterator[int]:
        """SIGSTOP, and SIGCONT at the end."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGSTOP)
        try:
            yield pid
        finally:
            os.kill(pid, signal.SIGCONT)

    def projection(self, actor: int) -> Path:
        """Where an actor keeps its projections."""
        return self.directory / f"kv-{actor}"

    def replica_bytes(self) -> int:
        """On the disk, of the partitions on the replica that has most."""
        return max(_on_disk(*replica.glob("[0-9]*")) for replica in self.directory.glob("replica-*"))

    def projection_bytes(self, actor: int) -> int:
        """On the disk."""
        return _on_disk(self.projection(actor))

    # ---- the log

    def log_bytes(self) -> int:
        """Of the records there are of the space."""
        with waltz_ray.connect(self.name, zookeeper=self.zookeeper, space=SPACE) as log:
            return sum(len(one.data) for one in log.feed(None))

    def claims(self) -> dict[int, list[tuple[int, Own | Release]]]:
        """By partition: what the log says of owners, in its order."""
        found: dict[int, list[tuple[int, Own | Release]]] = defaultdict(list)
        with waltz_ray.connect(self.name, zookeeper=self.zookeeper, space=SPACE) as log:
            for one in log.feed(None):
                record = decode_record(one.data)
                if isinstance(record, Own | Release):
                    found[one.partition_id].append((one.transaction_id, record))
        return found


def check_claims(claims: dict[int, list[tuple[int, Own | Release]]]) -> int:
    """O04: at each moment a unit has one owner, by the log alone: each claim has a higher epoch than all before it of
    its unit (or is its owner's own, made again after a restart) and of what that was a part of; nothing is claimed
    whole of which parts are. How many claims there were."""
    count = 0
    for records in claims.values():
        owners: dict[Unit, Own] = {}
        split: set[Unit] = set()
        for _, record in records:
            unit, whole = record.unit, coarser(record.unit)
            if isinstance(record, Release):
                continue
            count += 1
            assert unit not in split, f"{record}: parts of it are owned already"
            before = owners.get(unit)
            if before is not None:
                again = (before.actor, before.epoch) == (record.actor, record.epoch)
                assert record.epoch > before.epoch or again, f"{record} after {before}"
            if whole is not None:
                assert whole not in owners or record.epoch > owners[whole].epoch, f"{record} after {owners[whole]}"
                split.add(whole)
            owners[unit] = record
    return count


@contextlib.contextmanager
def real_cluster(
    name: str, directory: Path, ray: str, kv: KvConfig, servers: int = 2, server: ServerConfig | None = None
) -> Iterator[RealCluster]:
    """Brought up; taken down at the end, whatever happened. ``server``: what servers are told."""
    try:
        config = ClusterConfig(name, str(directory), 1, 3, servers, kv=kv, server=server or ServerConfig())
        found = bring_up(config, ray, deadline_s=200.0)
        cluster = RealCluster(name, directory, found.zookeeper, 16)
        try:
            yield cluster
        finally:
            cluster.close()
    finally:
        known = cluster_file.read(directory)
        if known is not None:
            take_down(known)
