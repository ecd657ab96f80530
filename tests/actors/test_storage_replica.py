"""Which start is a first start, which is refused, and what a replica's endpoint does with a real disk below it."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.actors.replica_client import connected
from tests.security.keys import secret_in
from waltz_ray.actors import storage_replica
from waltz_ray.actors.full_disk import FullDisk
from waltz_ray.actors.own_sets import OwnSets
from waltz_ray.actors.own_storage import open_storage, replica_directory
from waltz_ray.actors.replica_endpoint import end_process
from waltz_ray.actors.storage_replica import ReplicaHost
from waltz_ray.config import StorageConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeperServer
from waltz_ray.coordination.zookeeper import ConnectionState, KazooZooKeeper
from waltz_ray.errors import ControlFileMissing, DiskFull, ForeignStorage, StorageError
from waltz_ray.protocol.messages.replica import (
    APPEND_REQUEST,
    Append,
    Appended,
    LowWaterMarkSet,
    Open,
    RefusalCode,
    Refused,
    SetLowWaterMark,
    StateReply,
)
from waltz_ray.protocol.records import RecordBatch, build_records
from waltz_ray.protocol.roster import ReplicaEntry, Roster
from waltz_ray.runtime.status import ActorState, ReplicaStatus
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.replica_service import ReplicaService
from waltz_ray.storage.store import ReplicaStore

CONFIG = StorageConfig(preallocate_bytes=0)


def batch(partition_id: int, first_id: int, count: int, size: int = 100) -> RecordBatch:
    zeros = np.zeros(count, dtype=np.int32)
    lengths = np.full(count, size, dtype=np.int32)
    return build_records(
        partition_id, first_id, 1, 1, (zeros, zeros, lengths, np.zeros(count, dtype=np.uint32)), bytes(size * count)
    )


@pytest.fixture
def store() -> ClusterStore:
    store = ClusterStore(MemoryZooKeeperServer().client(), "c")
    store.initialize(2, [0, 1, 2], {})
    return store


def join_session(store: ClusterStore, replica_id: int) -> None:
    record, version = store.roster(1)
    entries = dict(record.replicas) | {replica_id: ReplicaEntry(5, None)}
    store.set_roster(1, Roster(5, 1, entries), version)


def test_the_first_start_creates_and_the_next_opens(tmp_path: Path, store: ClusterStore) -> None:
    directory = replica_directory(str(tmp_path), 2)
    for _ in range(2):
        storage = open_storage(OsDisk(), directory, store, 2, CONFIG)
        assert storage.cluster_key == store.info().cluster_key
        assert list(storage.partition_ids) == [0, 1]
        storage.close()


def test_a_joined_replica_without_its_disk_is_an_impostor(tmp_path: Path, store: ClusterStore) -> None:
    join_session(store, 2)
    directory = replica_directory(str(tmp_path), 2)
    with pytest.raises(ControlFileMissing, match=r"replica 2: .*partitions 1: .*waltz replace-replica 2"):
        open_storage(OsDisk(), directory, store, 2, CONFIG)
    assert not os.path.exists(directory), "a refused start must leave nothing"
    open_storage(OsDisk(), replica_directory(str(tmp_path), 1), store, 1, CONFIG).close()  # the others are not meant


def test_a_lost_control_file_is_never_papered_over(tmp_path: Path, store: ClusterStore) -> None:
    directory = replica_directory(str(tmp_path), 0)
    storage = open_storage(OsDisk(), directory, store, 0, CONFIG)
    storage.partition(0).open_session(1)
    storage.partition(0).append(1, batch(0, 0, 1))
    storage.close()
    os.unlink(f"{directory}/waltz-storage.ctl")
    with pytest.raises(StorageError):
        open_storage(OsDisk(), directory, store, 0, CONFIG)


def test_another_clusters_disk_is_refused(tmp_path: Path, store: ClusterStore) -> None:
    other = ClusterStore(MemoryZooKeeperServer().client(), "c")
    other.initialize(2, [0], {})
    open_storage(OsDisk(), replica_directory(str(tmp_path), 0), other, 0, CONFIG).close()
    with pytest.raises(ForeignStorage):
        open_storage(OsDisk(), replica_directory(str(tmp_path), 0), store, 0, CONFIG)


def test_a_partition_that_a_failing_disk_does_not_open_is_told_of_and_ends_no_status(
    tmp_path: Path, store: ClusterStore
) -> None:
    """The thread that follows spaces and trim marks asks for the status, too, and would have ended by it."""

    class Failing(OsDisk):
        def listdir(self, path: str) -> list[str]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    directory = replica_directory(str(tmp_path), 0)
    storage = open_storage(OsDisk(), directory, store, 0, CONFIG)
    storage.partition(1).open_session(1)
    storage.close()
    storage = open_storage(Failing(), directory, store, 0, CONFIG)
    told = storage_replica._held(storage, OwnSets(0, True, lambda: None))
    assert told[1].damaged == "[Errno 5] Input/output error"
    assert told[0].damaged is None
    storage.close()


def test_a_partition_that_is_removed_while_the_status_is_told_is_not_in_it(
    tmp_path: Path, store: ClusterStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_storage(OsDisk(), replica_directory(str(tmp_path), 0), store, 0, CONFIG)
    before = storage.served_ids
    storage.remove(1)
    with monkeypatch.context() as patched:
        patched.setattr(ReplicaStore, "served_ids", property(lambda _: before))
        assert [*storage_replica._held(storage, OwnSets(0, True, lambda: None))] == [0]
    storage.close()


# -- with a real ZooKeeper ----------------------------------------------------------------------------------


class Rig:
    def __init__(self, zookeeper: str, directory: Path, replication: int = 0) -> None:
        self.cluster = f"replica-{uuid.uuid4().hex[:8]}"
        self.zookeeper, self.directory = zookeeper, directory
        self.client = KazooZooKeeper(zookeeper)
        self.store = ClusterStore(self.client, self.cluster)
        self.info = self.store.initialize(2, [0, 1], {}, replication)

    def host(
        self,
        replica_id: int = 0,
        config: StorageConfig = CONFIG,
        on_fatal: Callable[[str], None] = end_process,
    ) -> ReplicaHost:
        return ReplicaHost(
            self.cluster,
            self.zookeeper,
            replica_id,
            str(self.directory),
            lambda store: config,
            "127.0.0.1",
            secret_in(self.directory).path,
            on_fatal=on_fatal,
        )


@pytest.fixture
def rig(zookeeper_server: str, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(zookeeper_server, tmp_path)
    yield rig
    rig.client.close()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, f"not within 20 s: {what}"
        time.sleep(0.01)


def test_records_survive_a_restart_and_the_new_endpoint_is_announced(rig: Rig) -> None:
    host = rig.host()
    try:
        until(lambda: host.health() is ActorState.SERVING, "the replica serves")
        first = rig.store.replicas()[0]
        records = batch(1, 0, 100, 1000)
        with connected(first.endpoint) as peer:
            opened = peer.ask(Open(1, 7, rig.info.cluster_key))
            assert isinstance(opened, StateReply)
            assert opened.last_id == -1
            assert peer.ask(Append(1, 7, 0, records.lengths, records.records)) == Appended(1, 7, 99)
        status = host.status()
        assert status.partitions[1].last_id == status.partitions[1].synced_id == 99
        assert status.traffic is not None
        assert status.traffic.records == 100
    finally:
        host.shutdown()
    assert host.health() is ActorState.STOPPED
    again = rig.host()
    try:
        until(lambda: again.health() is ActorState.SERVING, "the replica serves again")
        second = rig.store.replicas()[0]
        assert second.incarnation != first.incarnation
        with connected(second.endpoint) as peer:
            assert peer.ask(Open(1, 8, rig.info.cluster_key)) == StateReply(1, 8, 7, -1, -1, 99, False)
    finally:
        again.shutdown()


def host_without_zookeeper(
    tell: Callable[[ReplicaStatus], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ReplicaHost:
    """Nobody listens where its ZooKeeper should be: it tries again and again. ``tell`` gets what it tells Ray."""

    class Told:
        def __init__(self, cluster: str, replica: str) -> None:
            self.replica = tell

    monkeypatch.setattr(storage_replica, "Gauges", Told)
    monkeypatch.setattr(storage_replica, "_CONNECT_TIMEOUT_S", 0.1)
    monkeypatch.setattr(storage_replica, "_METRICS_INTERVAL_S", 0.1)
    return ReplicaHost("c", "127.0.0.1:1", 0, str(tmp_path), lambda store: CONFIG, "127.0.0.1", str(tmp_path / "key"))


def test_what_a_replica_tells_ray_does_not_stand_still_while_it_tries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not said to serve meanwhile."""
    told: list[ReplicaStatus] = []
    host = host_without_zookeeper(told.append, tmp_path, monkeypatch)
    try:
        until(lambda: len(told) > 2 and "127.0.0.1:1" in told[-1].reason, "it tells of itself again and again")
        assert {each.state for each in told} == {ActorState.STARTING}
    finally:
        host.shutdown()


def test_a_replica_whose_figures_cannot_be_told_tries_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread that tells them is the one that starts the replica, follows the spaces and trims."""
    told: list[ReplicaStatus] = []

    def tell(status: ReplicaStatus) -> None:
        told.append(status)
        if len(told) <= 2:
            raise MemoryError

    host = host_without_zookeeper(tell, tmp_path, monkeypatch)
    try:
        until(lambda: len(told) > 3 and "127.0.0.1:1" in told[-1].reason, "it tries again and again")
    finally:
        host.shutdown()
    assert caplog.text.count("its figures are not told to Ray") == 1


def test_a_deleted_space_wants_no_room_any_more(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk was full when the last append to it came."""
    full = FullDisk()
    monkeypatch.setattr(storage_replica, "FullDisk", lambda: full)
    rig.store.spaces.create("orders", 1)
    host = rig.host()
    try:
        until(lambda: host.health() is ActorState.SERVING, "the replica serves")
        full.noted([Refused(2, 7, APPEND_REQUEST, RefusalCode.DISK_FULL, 7, 4, "no room")])
        assert host.status().problem.startswith("no space left for partition 2 since ")
        rig.store.spaces.delete("orders", "orders")
        until(lambda: not host.status().problem, "nothing is wrong any more")
    finally:
        host.shutdown()


def test_a_replica_tells_of_the_partitions_that_it_has(zookeeper_server: str, tmp_path: Path) -> None:
    rig = Rig(zookeeper_server, tmp_path, replication=1)
    host = rig.host()
    try:
        until(lambda: host.health() is ActorState.SERVING, "the replica serves")
        assert host.status().partitions == {}
        with connected(rig.store.replicas()[0].endpoint) as peer:
            assert isinstance(peer.ask(Open(1, 7, rig.info.cluster_key)), StateReply)
        assert list(host.status().partitions) == [1]
    finally:
        host.shutdown()
        rig.client.close()


def test_a_refused_replica_lives_and_says_why_until_it_is_replaced(rig: Rig) -> None:
    join_session(rig.store, 0)
    host = rig.host()
    try:
        until(lambda: host.health() is ActorState.REFUSED, "the start is refused")
        assert "waltz replace-replica 0" in host.status().reason
        assert rig.store.replicas() == {}
    finally:
        host.shutdown()
    # another session is opened without it, then a person decides
    _, version = rig.store.roster(1)
    entries = {0: ReplicaEntry(5, 41), 1: ReplicaEntry(6, None)}
    rig.store.set_roster(1, Roster(6, 1, entries), version)
    rig.store.replace_replica(0)
    again = rig.host()
    try:
        until(lambda: again.health() is ActorState.SERVING, "the replaced replica serves")
    finally:
        again.shutdown()


def test_a_replica_goes_on_following_after_an_error_that_no_rule_foresees(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would serve, trim nothing any more, and say that all is well."""
    host = rig.host()
    try:
        until(lambda: host.health() is ActorState.SERVING, "the replica serves")
        with monkeypatch.context() as patch:
            patch.setattr(ReplicaService, "retain", _io_error)
            until(lambda: "Input/output error" in host.status().problem, "the error is told")
            assert host.health() is ActorState.SERVING
        until(lambda: not host.status().problem, "it follows again")
    finally:
        host.shutdown()


def test_a_disk_that_stays_full_is_not_filled_by_the_log(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = threading.Semaphore(0)

    def full(service: ReplicaService, *arguments: object) -> None:
        tried.release()
        raise DiskFull("no space left on the disk")

    monkeypatch.setattr(storage_replica, "_RETRY_S", 0.001)
    host = rig.host()
    try:
        until(lambda: host.health() is ActorState.SERVING, "the replica serves")
        monkeypatch.setattr(ReplicaService, "retain", full)
        rig.store.spaces.create("more", 1)  # it looks at once
        for _ in range(20):
            assert tried.acquire(timeout=20)
        assert "no space left" in host.status().problem
    finally:
        host.shutdown()
    assert caplog.text.count("does not follow spaces and trim marks yet") == 1


def test_a_replica_that_cannot_start_a_thread_leaves_no_session_behind(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: list[KazooZooKeeper] = []
    tried = threading.Semaphore(0)

    def counted(*arguments: Any, **options: Any) -> KazooZooKeeper:
        clients.append(KazooZooKeeper(*arguments, **options))
        return clients[-1]

    def no_thread(*arguments: object) -> None:
        tried.release()
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("waltz_ray.actors.storage_replica.KazooZooKeeper", counted)
    with monkeypatch.context() as patch:
        patch.setattr("waltz_ray.actors.storage_replica.UpkeepThread", no_thread)
        host = rig.host()
        assert tried.acquire(timeout=20)
        assert tried.acquire(timeout=20)
    try:
        until(lambda: host.health() is ActorState.SERVING, "it has a thread")
        connected = [client.state is ConnectionState.CONNECTED for client in clients]
        assert connected == [False] * (len(clients) - 1) + [True]
    finally:
        host.shutdown()


def test_a_replica_that_has_no_room_to_follow_spaces_says_so_and_trims(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    trimmed = threading.Event()
    host = rig.host()
    try:
        until(lambda: host.health() is ActorState.SERVING, "the replica serves")
        with monkeypatch.context() as patch:
            patch.setattr(ReplicaService, "follow", _no_room)
            patch.setattr(ReplicaService, "retain", lambda *arguments: trimmed.set())
            rig.store.spaces.create("more", 1)
            until(lambda: "no room to grow" in host.status().problem, "the shortage is told")
            assert trimmed.wait(20)
        until(lambda: not host.status().problem, "it follows")
    finally:
        host.shutdown()


def _no_room(*arguments: object) -> None:
    raise DiskFull("no room to grow")


def _io_error(*arguments: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_replica_whose_directory_was_taken_away_tells_its_status_and_ends(rig: Rig) -> None:
    """Its files are open still, and take everything; the next start would not find it."""
    ended: list[str] = []
    host = rig.host(on_fatal=ended.append)
    try:
        until(lambda: host.health() is ActorState.SERVING, "the replica serves")
        assert (host.status().disk_free_bytes or 0) > 0
        os.rename(replica_directory(str(rig.directory), 0), rig.directory / "away")
        status = host.status()
        assert status.disk_free_bytes is None
        assert status.state is ActorState.SERVING
        until(lambda: bool(ended), "the process would end")
        assert "replica-0 was removed, renamed, unmounted or mounted over while it was served; the pro" in ended[0]
    finally:
        host.shutdown()


def test_a_replica_whose_directory_has_another_one_in_its_place_ends(rig: Rig) -> None:
    """As where something is mounted over it: there is a control file, and it is not the one that is open."""
    ended: list[str] = []
    host = rig.host(on_fatal=ended.append)
    directory = replica_directory(str(rig.directory), 0)
    try:
        until(lambda: host.health() is ActorState.SERVING, "the replica serves")
        shutil.copytree(directory, rig.directory / "copy")
        os.rename(directory, rig.directory / "away")
        os.rename(rig.directory / "copy", directory)
        until(lambda: bool(ended), "the process would end")
        assert "replica-0 was removed, renamed, unmounted or mounted over while it was served; the pro" in ended[0]
    finally:
        host.shutdown()


def test_mounting_the_right_disk_is_enough(rig: Rig) -> None:
    directory = replica_directory(str(rig.directory), 0)
    open_storage(OsDisk(), directory, rig.store, 0, CONFIG).close()
    join_session(rig.store, 0)
    os.rename(directory, directory + ".elsewhere")
    host = rig.host()
    try:
        until(lambda: host.health() is ActorState.REFUSED, "the start without the disk is refused")
        os.rename(directory + ".elsewhere", directory)
        until(lambda: host.health() is ActorState.SERVING, "it serves with the disk")
    finally:
        host.shutdown()


def test_a_start_that_fails_in_an_unforeseen_way_says_so(rig: Rig) -> None:
    (rig.directory / "replica-0").write_text("a file where the directory should be")
    host = rig.host()
    try:
        until(lambda: host.health() is ActorState.REFUSED, "the start is refused")
        assert "replica-0" in host.status().reason
    finally:
        host.shutdown()


def test_a_lost_fence_takes_one_partition_away_and_not_the_replica(rig: Rig) -> None:
    directory = replica_directory(str(rig.directory), 0)
    open_storage(OsDisk(), directory, rig.store, 0, CONFIG).close()
    control = Path(directory) / "waltz-storage.ctl"
    content = control.read_bytes()
    control.write_bytes(content[: 128 + 4] + bytes(56) + content[128 + 60 :])  # both slots of partition 0
    host = rig.host()
    try:
        until(lambda: host.health() is ActorState.SERVING, "the replica serves what it can")
        partitions = host.status().partitions
        assert "both slots of partition 0" in str(partitions[0].damaged)
        assert partitions[1].damaged is None
        with connected(rig.store.replicas()[0].endpoint) as peer:
            refused = peer.ask(Open(0, 3, rig.info.cluster_key, joined_session_id=2))
            assert isinstance(refused, Refused)
            assert refused.code is RefusalCode.DAMAGED
            assert isinstance(peer.ask(Open(1, 3, rig.info.cluster_key)), StateReply)
            assert isinstance(peer.ask(Open(0, 3, rig.info.cluster_key)), StateReply)
        assert host.status().partitions[0].damaged is None
    finally:
        host.shutdown()


def test_a_second_replica_on_the_same_directory_waits_for_the_lock(rig: Rig) -> None:
    first = rig.host()
    try:
        until(lambda: first.health() is ActorState.SERVING, "the first serves")
        second = rig.host()
        try:
            until(lambda: "has not begun" not in second.status().reason, "the second has tried")
            assert second.health() is ActorState.STARTING
            first.shutdown()
            until(lambda: second.health() is ActorState.SERVING, "the second follows")
        finally:
            second.shutdown()
    finally:
        first.shutdown()


CHILD = """
import sys
from waltz_ray.actors.storage_replica import ReplicaHost
from waltz_ray.config import StorageConfig
secret = f"{sys.argv[3]}/cluster.secret"
host = ReplicaHost(sys.argv[1], sys.argv[2], 0, sys.argv[3], lambda store: StorageConfig(), "127.0.0.1", secret)
sys.stdin.read()
"""


def test_acknowledged_records_outlive_sigkill(rig: Rig, tmp_path: Path) -> None:
    secret_in(tmp_path)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, rig.cluster, rig.zookeeper, str(tmp_path)], stdin=subprocess.PIPE
    )
    acknowledged = -1
    try:
        until(lambda: bool(rig.store.replicas()), "the child announces itself")
        with connected(rig.store.replicas()[0].endpoint) as peer:
            peer.ask(Open(0, 3, rig.info.cluster_key))
            batches = [batch(0, first_id, 10, 500) for first_id in range(0, 400, 10)]
            peer.send(*[Append(0, 3, b.first_id, b.lengths, b.records) for b in batches])
            reply: Any = peer.receive()
            assert isinstance(reply, Appended)
            acknowledged = reply.last_id
            child.send_signal(signal.SIGKILL)
    finally:
        child.kill()
        child.communicate()
    host = rig.host()
    try:
        until(lambda: host.health() is ActorState.SERVING, "the successor serves")
        partition = host.status().partitions[0]
        assert partition.last_id is not None
        assert partition.last_id >= acknowledged >= 0
        assert partition.session == 3, "the fence is not forgotten"
    finally:
        host.shutdown()


def test_a_replica_waits_for_zookeeper(tmp_path: Path) -> None:
    host = ReplicaHost(
        "c", "127.0.0.1:1", 0, str(tmp_path), lambda store: CONFIG, "127.0.0.1", secret_in(tmp_path).path
    )
    try:
        until(lambda: "127.0.0.1:1" in host.status().reason, "the reason names ZooKeeper's address")
        assert host.health() is ActorState.STARTING
    finally:
        host.shutdown()
    assert os.listdir(tmp_path) == ["cluster.secret"]


def test_rot_is_repaired_from_the_peer_that_zookeeper_names(rig: Rig) -> None:
    """Found by a start, which goes on behind it."""
    small = replace(CONFIG, segment_size_bytes=4000, scrub_bytes_per_s=1 << 30, scrub_interval_s=1)
    hosts = [rig.host(number, small) for number in (0, 1)]
    records = batch(1, 0, 100, 1000)
    try:
        for number, host in enumerate(hosts):
            until(lambda host=host: host.health() is ActorState.SERVING, "both serve")  # type: ignore[misc]
            with connected(rig.store.replicas()[number].endpoint, replica_id=number) as peer:
                peer.ask(Open(1, 7, rig.info.cluster_key))
                assert peer.ask(Append(1, 7, 0, records.lengths, records.records)) == Appended(1, 7, 99)
                assert peer.ask(SetLowWaterMark(1, 7, 99, 99)) == LowWaterMarkSet(1, 7)
        hosts[0].shutdown()
        paths = sorted((rig.directory / "replica-0" / "1").glob("*.seg"))[3:6:2]
        whole = [path.read_bytes() for path in paths]
        for path, raw in zip(paths, whole, strict=True):
            path.write_bytes(raw[:-1])
        hosts[0] = again = rig.host(0, small)

        def repaired() -> bool:
            scrub = again.status().scrub
            return scrub is not None and scrub.repaired == 2 and scrub.last_pass_ms is not None

        until(repaired, "what has rotted is fetched")
        assert [path.read_bytes() for path in paths] == whole
        assert again.status().partitions[1].damaged is None
        assert again.status().partitions[1].last_id == 99
    finally:
        for host in hosts:
            host.shutdown()
