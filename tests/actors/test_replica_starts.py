"""A replica that meets a sick disk, damage or a full disk looks again by itself, and says meanwhile what is wrong."""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.actors.replica_client import connected
from tests.actors.test_storage_replica import CONFIG, Rig, batch, join_session, until
from tests.security.keys import secret_in
from waltz_ray.actors import storage_replica
from waltz_ray.actors.own_storage import open_storage, replica_directory
from waltz_ray.actors.storage_replica import ReplicaHost
from waltz_ray.client.readers.sockets import open_stream
from waltz_ray.errors import AuthenticationFailed, StorageError
from waltz_ray.net.tls import replica_tls
from waltz_ray.protocol.messages.replica import (
    Append,
    Appended,
    Open,
    RefusalCode,
    Refused,
    StateReply,
)
from waltz_ray.runtime.status import ActorState
from waltz_ray.security.certificates import make_certificates
from waltz_ray.security.handshakes import Keyring
from waltz_ray.storage.disk import Mode, OsDisk, Writable
from waltz_ray.wire.framing import MAGIC_REPLICA


class SickDisk(OsDisk):
    """One call of the gate fails with ``code`` while ``sick``; counts the failures and the handles that are open."""

    def __init__(self, call: str, code: int) -> None:
        self.sick, self.failures = True, 0
        self.handles = set[int]()
        self._call, self._code = call, code

    def _may(self, call: str, path: str) -> None:
        if self.sick and call == self._call:
            self.failures += 1
            raise OSError(self._code, os.strerror(self._code), path)

    def open(self, path: str, mode: Mode) -> int:
        self._may("open", path)
        self._may(mode, path)
        handle = super().open(path, mode)
        self.handles.add(handle)
        return handle

    def lock(self, path: str, shared: bool) -> int:
        self._may("lock", path)
        handle = super().lock(path, shared)
        self.handles.add(handle)
        return handle

    def close(self, handle: int) -> None:
        self.handles.discard(handle)
        super().close(handle)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        self._may("pread", "a file")
        return super().pread(handle, size, offset)

    def pwrite(self, handle: int, data: Writable, offset: int) -> None:
        self._may("pwrite", "a file")
        super().pwrite(handle, data, offset)

    def fdatasync(self, handle: int) -> None:
        self._may("fdatasync", "a file")
        super().fdatasync(handle)

    def fsync(self, handle: int) -> None:
        self._may("fsync", "a file")
        super().fsync(handle)

    def fsync_directory(self, path: str) -> None:
        self._may("fsync_directory", path)
        super().fsync_directory(path)

    def listdir(self, path: str) -> list[str]:
        self._may("listdir", path)
        return super().listdir(path)


@pytest.fixture
def rig(zookeeper_server: str, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(zookeeper_server, tmp_path)
    yield rig
    rig.client.close()


def host_on(rig: Rig, disk: OsDisk, monkeypatch: pytest.MonkeyPatch) -> ReplicaHost:
    monkeypatch.setattr(storage_replica, "OsDisk", lambda: disk)
    return rig.host()


def with_records(rig: Rig) -> str:
    """Replica 0's directory with ten records in partition 1, all synced."""
    directory = replica_directory(str(rig.directory), 0)
    store = open_storage(OsDisk(), directory, rig.store, 0, CONFIG)
    log = store.partition(1)
    log.open_session(3)
    log.append(3, batch(1, 0, 10))
    store.sync([1])
    store.close()
    return directory


def test_a_replica_without_the_secret_says_so_and_serves_when_it_has_come(rig: Rig) -> None:
    """Nobody is believed without it, and nothing is made before."""
    path = rig.directory / "elsewhere.secret"
    host = ReplicaHost(rig.cluster, rig.zookeeper, 0, str(rig.directory), lambda store: CONFIG, "127.0.0.1", str(path))
    try:
        until(lambda: host.health() is ActorState.REFUSED, "the start is refused")
        assert f"the cluster's secret {path} cannot be read (No such file or directory)" in host.status().reason
        assert os.listdir(rig.directory) == []
        secret_in(rig.directory)
        (rig.directory / "cluster.secret").rename(path)
        host._wake.set()
        until(lambda: host.health() is ActorState.SERVING, "it serves")
    finally:
        host.shutdown()


def test_a_replica_without_its_certificate_says_so_and_serves_when_it_has_come(rig: Rig) -> None:
    files = rig.directory / "certificates"
    certificate, key, authority = (str(files / name) for name in ("server.pem", "server.key", "authority.pem"))
    config = replace(CONFIG, tls_certificate=certificate, tls_key=key, tls_authority=authority, tls_only=True)
    secret = secret_in(rig.directory)
    host = ReplicaHost(
        rig.cluster, rig.zookeeper, 0, str(rig.directory), lambda store: config, "127.0.0.1", secret.path
    )
    try:
        until(lambda: host.health() is ActorState.REFUSED, "the start is refused")
        assert f"TLS cannot be used ({certificate}, {key}): No such file or directory" in host.status().reason
        make_certificates(files, ["127.0.0.1"], [], 2)
        host._wake.set()
        until(lambda: host.health() is ActorState.SERVING, "it serves")
        place = host.status().endpoint
        assert place is not None
        trusting, plain = Keyring.of_reader(secret, replica_tls(authority)), Keyring.of_reader(secret)
        open_stream(place, MAGIC_REPLICA, 2, 20, partial(trusting.open, 0), trusting.context()).close()
        with pytest.raises(AuthenticationFailed, match="it takes TLS only"):
            open_stream(place, MAGIC_REPLICA, 2, 20, partial(plain.open, 0))
    finally:
        host.shutdown()


@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("open", errno.EIO),
        ("pread", errno.EIO),
        ("write", errno.EROFS),
        ("lock", errno.EACCES),
        ("fsync_directory", errno.EIO),  # a failed flush: this store is given up, the next one is wholly new
        ("listdir", errno.ENOENT),
    ],
)
def test_a_disk_that_was_sick_for_a_while_serves_without_anybodys_help(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    with_records(rig)
    disk = SickDisk(call, code)
    host = host_on(rig, disk, monkeypatch)
    try:
        until(lambda: host.health() is ActorState.REFUSED, "the start is refused")
        reason = host.status().reason
        assert os.strerror(code) in reason
        assert reason.startswith("replica 0: ")
        assert (host.status().since_ms or 0) > 0
        until(lambda: disk.failures >= 3, "it looks again")
        assert len(disk.handles) == 0, "what a failed start had opened is closed"
        disk.sick = False
        until(lambda: host.health() is ActorState.SERVING, "it serves")
        assert host.status().partitions[1].last_id == 9
        assert host.status().reason == ""
    finally:
        host.shutdown()


def test_a_first_start_on_a_disk_that_cannot_sync_is_tried_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SickDisk("fsync", errno.EIO)
    host = host_on(rig, disk, monkeypatch)
    try:
        until(lambda: disk.failures >= 2 and host.health() is ActorState.REFUSED, "it looks again")
        assert "do not retry" not in host.status().reason, "a message for the process is none for people"
        disk.sick = False
        until(lambda: host.health() is ActorState.SERVING, "it serves")
    finally:
        host.shutdown()


def test_a_damaged_control_file_is_refused_with_its_reason_and_looked_at_again(rig: Rig) -> None:
    control = Path(with_records(rig)) / "waltz-storage.ctl"
    content = control.read_bytes()
    control.write_bytes(b"\xff" * len(content))
    host = rig.host()
    try:
        until(lambda: host.health() is ActorState.REFUSED, "the start is refused")
        assert "waltz-storage.ctl: damaged at byte 0" in host.status().reason
        control.write_bytes(content)
        until(lambda: host.health() is ActorState.SERVING, "it serves with the right file")
    finally:
        host.shutdown()


def lose_both_slots(directory: str, partition_id: int) -> None:
    control = Path(directory) / "waltz-storage.ctl"
    content = bytearray(control.read_bytes())
    at = 128 + 60 * partition_id + 4
    content[at : at + 56] = b"\xee" * 56
    control.write_bytes(content)


def test_one_partition_without_its_fence_takes_only_itself_away(rig: Rig) -> None:
    lose_both_slots(with_records(rig), 0)
    host = rig.host()
    try:
        until(lambda: host.health() is ActorState.SERVING, "the replica serves")
        partitions = host.status().partitions
        assert "both slots of partition 0" in str(partitions[0].damaged)
        assert partitions[0].last_id in (None, -1), "nothing is known of it"
        assert (partitions[1].last_id, partitions[1].damaged) == (9, None)
        with connected(rig.store.replicas()[0].endpoint) as peer:
            refused = peer.ask(Open(0, 4, rig.info.cluster_key, 3))
            assert isinstance(refused, Refused)
            assert refused.code in (RefusalCode.DAMAGED, RefusalCode.LOST_FILES)
            assert isinstance(peer.ask(Open(1, 4, rig.info.cluster_key)), StateReply)
    finally:
        host.shutdown()


def test_a_full_disk_is_a_problem_until_an_append_works_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SickDisk("pwrite", errno.ENOSPC)
    disk.sick = False
    host = host_on(rig, disk, monkeypatch)
    try:
        until(lambda: host.health() is ActorState.SERVING, "the replica serves")
        records = batch(1, 0, 10)
        append = Append(1, 7, 0, records.lengths, records.records)
        with connected(rig.store.replicas()[0].endpoint) as peer:
            assert isinstance(peer.ask(Open(1, 7, rig.info.cluster_key)), StateReply)
            assert host.status().problem == ""
            disk.sick = True
            refused = peer.ask(append)
            assert isinstance(refused, Refused)
            assert refused.code is RefusalCode.DISK_FULL
            status = host.status()
            assert status.state is ActorState.SERVING
            assert "no space left" in status.problem
            assert "partition 1" in status.problem
            assert "since" in status.problem
            disk.sick = False
            assert peer.ask(append) == Appended(1, 7, 9)
        assert host.status().problem == ""
    finally:
        host.shutdown()


# -- files set aside ----------------------------------------------------------------------------------------


def test_a_refused_replicas_files_are_set_aside_and_it_begins_anew(rig: Rig) -> None:
    directory = with_records(rig)
    control = Path(directory) / "waltz-storage.ctl"
    control.write_bytes(b"\xff" * 300)
    host = rig.host()
    try:
        until(lambda: host.health() is ActorState.REFUSED, "the start is refused")
        aside = host.set_files_aside()
        assert (Path(aside) / "waltz-storage.ctl").read_bytes() == b"\xff" * 300, "nothing is deleted"
        assert Path(aside).parent == rig.directory
        until(lambda: host.health() is ActorState.SERVING, "it begins anew")
        assert host.status().partitions[1].last_id == -1
    finally:
        host.shutdown()


def test_files_of_a_joined_replica_are_never_set_aside(rig: Rig) -> None:
    directory = with_records(rig)
    (Path(directory) / "waltz-storage.ctl").write_bytes(b"\xff" * 300)
    join_session(rig.store, 0)
    host = rig.host()
    try:
        until(lambda: host.health() is ActorState.REFUSED, "the start is refused")
        with pytest.raises(StorageError, match=r"joined sessions of partitions 1.*replace-replica 0"):
            host.set_files_aside()
        assert os.path.isdir(directory)
    finally:
        host.shutdown()


def test_a_healthy_replicas_files_are_never_set_aside(rig: Rig) -> None:
    directory = with_records(rig)
    host = rig.host()
    try:
        until(lambda: host.health() is ActorState.SERVING, "the replica serves")
        with pytest.raises(StorageError, match="is SERVING, not REFUSED"):
            host.set_files_aside()
        assert os.path.isdir(directory)
        assert host.health() is ActorState.SERVING
    finally:
        host.shutdown()


def test_another_clusters_files_are_told_to_the_operator(rig: Rig) -> None:
    other = Rig(rig.zookeeper, rig.directory)
    try:
        with_records(other)
    finally:
        other.client.close()
    host = rig.host()
    try:
        until(lambda: host.health() is ActorState.REFUSED, "the start is refused")
        assert str(uuid.UUID(str(other.info.cluster_key))) in host.status().reason
    finally:
        host.shutdown()
