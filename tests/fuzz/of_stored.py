"""What lies on disks and in ZooKeeper: each file of a small replica, each node of a small cluster, with other bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

from tests.fuzz.target import FuzzTarget
from tests.storage.faulty_disk import FaultyDisk
from tests.storage.helpers import CLOCK_MS, DIRECTORY, SMALL, append, create, data_of, reopen
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.cursor_store import CursorStore, all_cursors
from waltz_ray.coordination.memory import MemoryZooKeeperServer
from waltz_ray.coordination.topic_store import TopicStore
from waltz_ray.coordination.upgrade_store import UpgradeStore
from waltz_ray.errors import PartitionDamaged, StorageError, WaltzError
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.placement import Assignment, Owner
from waltz_ray.protocol.rolling import RollingUpgrade
from waltz_ray.storage.fence import read_fences
from waltz_ray.storage.inspect import describe_directory
from waltz_ray.storage.verify import verify_directory

__all__ = ["STORED"]

_RECORDS, _PARTITIONS = 14, 2
_CONFIG = replace(SMALL, segment_size_bytes=700, journal_bytes=2000)
_SUFFIXES = {"control": ".ctl", "segment": ".seg", "index": ".idx", "time-index": ".tix", "journal": "waltz-journal."}


@cache
def _files() -> dict[str, bytes]:
    """Of a replica of two partitions that was killed: its journal is needed, its newest indexes are behind."""
    disk = FaultyDisk()
    store = create(disk, _CONFIG, _PARTITIONS)
    logs = [store.partition(p) for p in range(_PARTITIONS)]
    for log in logs:
        log.open_session(1)
    for count in (_RECORDS - 4, 2, 2):
        for log in logs:
            append(log, count)
        store.sync(range(_PARTITIONS))
    logs[0].set_low_water_mark(1, _RECORDS - 2, _RECORDS - 2)
    disk.crash()
    return {path: disk.content(path) for path in disk.files()}


def _paths(suffix: str) -> list[str]:
    return sorted(path for path in _files() if suffix in path)


def _with(suffix: str) -> Callable[[bytes], object]:
    """The first byte says which file of that kind has the rest as its content. What is served is what was appended."""

    def read(data: bytes) -> object:
        paths = _paths(suffix)
        disk = FaultyDisk()
        for path, content in _files().items():
            disk.put(path, content)
        if data:
            disk.put(paths[data[0] % len(paths)], data[1:])
        refused: StorageError | None = None
        for look in (verify_directory, describe_directory, read_fences):
            try:
                look(disk, DIRECTORY)
            except StorageError as error:
                refused = error
        _serve(disk)
        if refused is not None:
            raise refused
        return None

    return read


def _serve(disk: FaultyDisk) -> None:
    store = reopen(disk, _CONFIG)
    try:
        for log in map(store.partition, store.partition_ids):  # a control file may have lost the last
            for first_id in range(log.first_id, min(log.last_id, _RECORDS - 1) + 1):
                batch = log.read(first_id, log.last_id + 1, 100)
                told = [bytes(data) for data in batch.datas()]
                assert told == [data_of(i) for i in range(first_id, batch.end_id)], "served what was never appended"
            log.times().first_id_at(CLOCK_MS + 1000)
            log.open_session(log.session_id + 1)
    finally:
        store.close()


def _stored_samples(suffix: str) -> Callable[[], Iterator[bytes]]:
    return lambda: (bytes([number]) + _files()[path] for number, path in enumerate(_paths(suffix)))


@cache
def _nodes() -> dict[str, bytes]:
    """A cluster with all that ours write."""
    client = MemoryZooKeeperServer().client()
    store = ClusterStore(client, "c")
    store.initialize(2, [0, 1, 2], {"config": {"name": "c", "directory": "/x"}})
    store.next_client_id()
    store.next_server_id()
    store.register_server(0, Endpoint("127.0.0.1", 1))
    store.set_preferred(0, [1])
    store.set_assignment(Assignment({0: Owner(0, 1), 1: Owner(0, 3)}), 0)
    store.announce_replica(1, Endpoint("127.0.0.1", 2), "x")
    store.spaces.create("orders", 2, "log", {"retention_ms": 7})
    store.trims.holds.hold("audit", {0: 3}, "the auditors")
    store.trims.raise_marks({0: 2})
    store.moves.want({0: [0, 1, 2]})
    CursorStore(client, "c", store.spaces.get("log")).create("mail", {0: 2}, hold=True)
    TopicStore(client, "c").set_document("flow", b"[]", -1)
    UpgradeStore(client, "c").write(RollingUpgrade({"server/0": 7}, 0))
    return dict(_below(client, "/c"))


def _below(client: ZooKeeper, path: str) -> Iterator[tuple[str, bytes]]:
    yield path, client.get(path)[0]
    for child in client.children(path):
        yield from _below(client, f"{path}/{child}")


def _node(data: bytes) -> object:
    """The first byte says which node has the rest. Whoever reads the cluster may refuse, and only so."""
    paths = sorted(_nodes())
    client = MemoryZooKeeperServer().client()
    changed = paths[data[0] % len(paths)] if data else ""
    for path in paths:
        client.create(path, data[1:] if path == changed else _nodes()[path])
    store, refused = ClusterStore(client, "c"), list[WaltzError]()
    for look in _looks(client, store):
        try:
            look()
        except WaltzError as error:
            refused.append(error)
    if refused:
        raise refused[0]
    return None


def _looks(client: ZooKeeper, store: ClusterStore) -> list[Callable[[], object]]:
    return [
        *(store.info, store.last_ids, store.next_client_id, store.servers, store.assignment, store.replicas),
        *(store.members.read, store.moves.read, store.spaces.table, store.trims.marks, store.trims.holds.all),
        *(lambda: store.preferred(0), lambda: store.roster(0), lambda: store.roster(1), store.leader),
        lambda: all_cursors(client, "c", store.spaces.table().present()),
        UpgradeStore(client, "c").read,
        *(TopicStore(client, "c").ports, lambda: TopicStore(client, "c").document("flow")),
    ]


def _node_samples() -> Iterator[bytes]:
    return (bytes([number]) + _nodes()[path] for number, path in enumerate(sorted(_nodes())))


STORED = (
    *(
        FuzzTarget(name, _with(suffix), (StorageError, PartitionDamaged), _stored_samples(suffix))
        for name, suffix in _SUFFIXES.items()
    ),
    FuzzTarget("znodes", _node, (WaltzError,), _node_samples),
)
