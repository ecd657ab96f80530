"""A cluster of ``harness`` whose replicas are those of the actors, on disks that a test makes sick."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

from tests.cluster.harness import Cluster, wait_until
from waltz_ray.actors.own_storage import replica_directory
from waltz_ray.actors.storage_replica import ReplicaHost
from waltz_ray.config import StorageConfig
from waltz_ray.runtime.status import ReplicaStatus
from waltz_ray.storage.disk import Mode, OsDisk, Writable
from waltz_ray.storage.store import ReplicaStore

__all__ = ["SickCluster", "SickDisk", "flip"]


class SickDisk(OsDisk):
    """``broken``: it neither reads nor writes (EIO). ``read_only``: as file systems become after an error. ``sync_s``:
    each sync takes so much longer, until it is ``heal``ed."""

    def __init__(self) -> None:
        self.broken = self.read_only = False
        self.sync_s = 0.0
        self._well = threading.Event()

    def heal(self) -> None:
        self.broken = self.read_only = False
        self.sync_s = 0.0
        self._well.set()

    def _check(self, changes: bool) -> None:
        number = errno.EIO if self.broken else errno.EROFS if self.read_only and changes else 0
        if number:
            raise OSError(number, os.strerror(number))

    def open(self, path: str, mode: Mode) -> int:
        self._check(changes=mode != "read")
        return super().open(path, mode)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        self._check(changes=False)
        return super().pread(handle, size, offset)

    def pwrite(self, handle: int, data: Writable, offset: int) -> None:
        self._check(changes=True)
        super().pwrite(handle, data, offset)

    def truncate(self, handle: int, size: int) -> None:
        self._check(changes=True)
        super().truncate(handle, size)

    def fdatasync(self, handle: int) -> None:
        self._sync()
        super().fdatasync(handle)

    def fsync(self, handle: int) -> None:
        self._sync()
        super().fsync(handle)

    def _sync(self) -> None:
        self._check(changes=True)
        if self.sync_s:
            self._well.wait(self.sync_s)

    def rename(self, old: str, new: str) -> None:
        self._check(changes=True)
        super().rename(old, new)

    def unlink(self, path: str) -> None:
        self._check(changes=True)
        super().unlink(path)


class _Hosted:
    """A replica that is started again whenever its process would have ended, as Ray does."""

    def __init__(self, cluster: SickCluster, replica_id: int) -> None:
        self.starts = 0
        self._cluster, self._replica_id = cluster, replica_id
        self._ended = threading.Event()
        self._stopping = False
        self.host = self._start()
        self._thread = threading.Thread(target=self._look_after, name=f"replica-{replica_id}-supervisor")
        self._thread.start()

    def _start(self) -> ReplicaHost:
        cluster, number = self._cluster, self._replica_id
        self.starts += 1
        return ReplicaHost(
            cluster.name,
            cluster.zookeeper,
            number,
            str(cluster.directory),
            lambda store: cluster.storage,
            "127.0.0.1",
            cluster.secret.path,
            cluster.disks[number],
            lambda why: self._ended.set(),
        )

    def _look_after(self) -> None:
        while True:
            self._ended.wait()
            self._ended.clear()
            if self._stopping:
                return
            self.host.shutdown()
            self.host = self._start()

    def stop(self) -> None:
        self._stopping = True
        self._ended.set()
        self._thread.join()
        self.host.shutdown()


class SickCluster(Cluster):
    """Three replicas, each with its ``disks[n]``."""

    def __init__(self, directory: Path, zookeeper: str, *, partitions: int = 1, storage: StorageConfig) -> None:
        self.disks = {replica_id: SickDisk() for replica_id in range(3)}
        self.hosted: dict[int, _Hosted] = {}
        self.storage = storage
        super().__init__(directory, zookeeper, partitions=partitions, storage=storage)

    def close(self) -> None:
        for disk in self.disks.values():
            disk.heal()
        for server_id in list(self.servers):
            self.stop_server(server_id)
        for replica_id in list(self.hosted):
            self.stop_replica(replica_id)
        for store in self.stores.values():
            store.close()
        self.stores.clear()
        super().close()

    def start_replica(self, replica_id: int) -> None:
        self.hosted[replica_id] = _Hosted(self, replica_id)

    def stop_replica(self, replica_id: int) -> None:
        self.hosted.pop(replica_id).stop()

    def replica_directory(self, replica_id: int) -> Path:
        return Path(replica_directory(str(self.directory), replica_id))

    def told(self, replica_id: int) -> ReplicaStatus:
        """What the replica says of itself."""
        return self.hosted[replica_id].host.status()

    def wait_told(self, replica_id: int, what: str) -> ReplicaStatus:
        """Until what it says of itself has ``what`` in it."""
        wait_until(lambda: what in f"{(now := self.told(replica_id)).reason} {now.problem} {now.slow}", what)
        return self.told(replica_id)

    def open_files(self) -> None:
        """Nobody serves any more; ``stores`` are what all replicas have on their disks."""
        for server_id in list(self.servers):
            self.stop_server(server_id)
        for replica_id in list(self.hosted):
            self.stop_replica(replica_id)
            directory = str(self.replica_directory(replica_id))
            self.stores[replica_id] = ReplicaStore.open(OsDisk(), directory, self.info.cluster_key, self.storage)


def flip(path: Path, offset: int, mask: int = 0x10) -> None:
    """One bad byte, as rot leaves it."""
    with open(path, "r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes((byte ^ mask,)))
