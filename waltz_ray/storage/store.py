"""One replica's storage directory: who owns it, and its partitions.

On-disk story
    ``create`` makes the directory and, last of all, the control file, which appears whole or not at all. A directory
    with partition folders but without a control file has lost it: nobody may write a new one over that, for the
    fences would be forgotten. ``open`` takes the directory's ``flock`` (it goes when the process does, however it
    ends), checks that the directory belongs to this cluster, converts a control file of Waltz 0.13, and brings the
    segments to where the journal (``journal.py``) says they are.
    Partitions are recovered when they are first used.

    ``grow`` extends the control file (its crash story: ``control_file.py``). Every slot is written with its partition's
    lock held, so with all of these locks held none is under way that the copy could miss.

    ``remove`` takes away the files of a partition whose space was deleted; ``removal.py`` tells how.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Iterable, Iterator

from waltz_ray.config import StorageConfig
from waltz_ray.errors import ControlFileMissing, InvalidInput, StorageError, StorageLocked
from waltz_ray.storage.control_file import (
    CONTROL_FILE,
    ControlFile,
    convert_original,
    create_control_file,
    read_to_serve,
)
from waltz_ray.storage.disk import Disk, DurableDisk, enough_resources
from waltz_ray.storage.journal import Journal, replay
from waltz_ray.storage.page_cache import PageCache
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.pending_sync import PendingSync
from waltz_ray.storage.removal import is_removed, remove_files

__all__ = ["ReplicaStore", "lock_directory"]


def lock_directory(disk: Disk, directory: str, shared: bool = False) -> int:
    """The directory's ``flock``, as a handle to close; StorageLocked if another process is in the way."""
    try:
        return disk.lock(directory, shared)
    except BlockingIOError as error:
        raise StorageLocked(f"{directory}: another process has this storage directory open; stop it first") from error


@contextlib.contextmanager
def _locked(disk: Disk, directory: str) -> Iterator[int]:
    """The directory's lock, given back if the start that goes on inside fails."""
    with enough_resources(directory):
        lock = lock_directory(disk, directory)
        try:
            yield lock
        except BaseException:
            disk.close(lock)
            raise


def _make_directories(disk: DurableDisk, directory: str) -> None:
    if disk.disk.is_directory(directory) or not directory:
        return
    _make_directories(disk, directory.rpartition("/")[0])
    disk.mkdir(directory)
    disk.fsync_directory(_parent(directory))


def _parent(directory: str) -> str:
    return directory.rpartition("/")[0] or ("/" if directory.startswith("/") else ".")


_FILES = (".seg", ".idx", ".tix")


class ReplicaStore:
    """An open storage directory. Every method may be called by any thread."""

    def __init__(
        self,
        disk: DurableDisk,
        directory: str,
        cluster_key: uuid.UUID,
        control: ControlFile,
        lock: int,
        config: StorageConfig,
    ) -> None:
        """Use ``create`` or ``open``."""
        self.directory, self.cluster_key = directory, cluster_key
        self.partition_ids: range = range(len(control))
        self.disk, self._control, self._lock_handle, self._config = disk, control, lock, config
        self._journal = Journal(disk, directory, cluster_key, config)
        self._page_cache = PageCache(disk.disk, config.page_cache_bytes)
        self._opening = threading.Lock()
        self._partitions: dict[int, PartitionLog] = {}
        self.removed = frozenset(p for p in self.partition_ids if is_removed(disk.disk, f"{directory}/{p}"))
        """Partitions whose space was deleted: nothing of them is served, or made, any more."""
        self._closed = False

    @classmethod
    def create(
        cls, disk: Disk, directory: str, cluster_key: uuid.UUID, partitions: int, config: StorageConfig
    ) -> ReplicaStore:
        """Make a new storage directory (``directory`` may exist, empty) and open it.

        StorageError if there is a control file, or anything of a partition without one; StorageLocked.
        """
        if partitions < 1:
            raise InvalidInput(f"{directory}: a storage directory needs at least one partition, not {partitions}")
        durable = DurableDisk(disk)
        directory = _absolute(directory)
        _make_directories(durable, directory)
        with _locked(disk, directory) as lock:
            if disk.exists(f"{directory}/{CONTROL_FILE}"):
                raise StorageError(f"{directory}: there is a storage directory already; open it instead")
            left = [name for name in disk.listdir(directory) if name.isdigit() or name.endswith(_FILES)]
            if left:
                raise StorageError(
                    f"{directory}: {left[0]} is there but no control file; it was lost, and with it the fences. "
                    f"Restore it, or empty the directory and let the replica be copied from its peers"
                )
            create_control_file(durable, directory, cluster_key, partitions)
            return cls._open_locked(durable, directory, cluster_key, lock, config)

    @classmethod
    def open(cls, disk: Disk, directory: str, cluster_key: uuid.UUID, config: StorageConfig) -> ReplicaStore:
        """Open an existing storage directory.

        StorageLocked, ControlFileMissing, ForeignStorage (another cluster's), Corruption (of the control file),
        OutOfResources.
        """
        directory = _absolute(directory)
        if not disk.is_directory(directory):
            raise ControlFileMissing(f"{directory}: there is no such directory; is the right disk mounted?")
        with _locked(disk, directory) as lock:
            return cls._open_locked(DurableDisk(disk), directory, cluster_key, lock, config)

    @classmethod
    def _open_locked(
        cls, disk: DurableDisk, directory: str, cluster_key: uuid.UUID, lock: int, config: StorageConfig
    ) -> ReplicaStore:
        # A process may have been killed between making a name and syncing it, and what it made is here now.
        disk.fsync_directory(directory)
        disk.fsync_directory(_parent(directory))
        image = read_to_serve(disk.disk, directory, cluster_key)
        if image.original:
            image = convert_original(disk, directory, image)
        replay(disk, directory, cluster_key)
        control = ControlFile(disk, image)
        try:
            return cls(disk, directory, cluster_key, control, lock, config)
        except BaseException:
            control.close()
            raise

    def partition(self, partition_id: int) -> PartitionLog:
        """The partition, recovered on first use. InvalidInput if there is none of that number; OutOfResources (to be
        tried again). One that is damaged, or whose control entry is, says so itself: the others serve."""
        known = self._partitions.get(partition_id)
        if known is not None:
            return known
        if partition_id not in self.partition_ids:
            raise InvalidInput(f"{self.directory}: there is no partition {partition_id}, only {len(self._control)}")
        self._check_not_removed(partition_id)
        with self._opening:
            self.disk.check()
            self._check_not_removed(partition_id)  # in this moment
            if partition_id not in self._partitions:
                folder = f"{self.directory}/{partition_id}"
                shared = self._control, self._journal, self._page_cache, self._config
                self._partitions[partition_id] = PartitionLog(
                    self.disk, folder, self.cluster_key, partition_id, *shared
                )
            return self._partitions[partition_id]

    def _check_not_removed(self, partition_id: int) -> None:
        if partition_id in self.removed:
            raise InvalidInput(f"{self.directory}: partition {partition_id} was removed: its space has been deleted")

    @property
    def served_ids(self) -> list[int]:
        """The partitions that have not been removed."""
        return [partition_id for partition_id in self.partition_ids if partition_id not in self.removed]

    def grow(self, partitions: int) -> None:
        """Have at least so many partitions; the others go on. DiskFull, OutOfResources: nothing was changed."""
        with self._opening, contextlib.ExitStack() as held:
            self.disk.check()
            for _, log in sorted(self._partitions.items()):
                held.enter_context(log.standing_still())
            self._control.extend(partitions)
            self.partition_ids = range(len(self._control))

    def remove(self, partition_id: int) -> None:
        """Delete the files of a partition, and serve nothing of it from now on. Idempotent.

        The caller sees to it that nobody changes the partition meanwhile. DiskFull, OutOfResources: to be done again.
        """
        with self._opening:
            self.disk.check()
            self.removed |= {partition_id}
            log = self._partitions.get(partition_id)
        if log is not None:
            log.retire()
        folder = f"{self.directory}/{partition_id}"
        with enough_resources(folder):
            remove_files(self.disk, folder)

    def sync(self, partition_ids: Iterable[int]) -> None:
        """Everything appended so far to these partitions is durable when this returns.

        Small pieces of several partitions go through the journal, with one sync for all of them. Others are synced
        each in its own file, all at once: a crash meanwhile leaves those of any of them, and nobody has heard of any.
        """
        logs = [self.partition(partition_id) for partition_id in sorted(set(partition_ids))]
        if len(logs) == 1 < self._config.journal_partitions:
            logs[0].sync()
            return
        begun: list[tuple[PartitionLog, PendingSync]] = []
        try:
            for log in logs:
                if (one := log.begin_sync()) is not None:
                    begun.append((log, one))
            self._sync([pending for _, pending in begun])
            for log, pending in begun:
                log.synced(pending)
        finally:
            for log, _ in begun:
                log.end_sync()

    def _sync(self, pending: list[PendingSync]) -> None:
        size_bytes = sum(one.size_bytes for one in pending)
        together = bool(pending) and self._journal.takes(size_bytes, len(pending))
        if not (together and self._journal.write([one.entry() for one in pending])):
            if len(pending) > 1:
                for one in pending:
                    one.begin()
            self.disk.disk.at_once([one.flush for one in pending])

    def now_ms(self) -> int:
        """The wall clock of this replica's node."""
        return self.disk.disk.now_ms()

    def is_in_place(self) -> bool:
        """Whether the directory's name still leads to what is open here: it may have been removed or renamed, and
        another one may have been mounted, or put, in its place."""
        disk = self.disk.disk
        return disk.is_at(self.directory, self._lock_handle) and disk.exists(f"{self.directory}/{CONTROL_FILE}")

    def disk_use_bytes(self) -> int:
        """Sum of the lengths of all files of the directory, but for what others have put there and we may not look
        into: a file system has its ``lost+found`` there."""
        disk, total = self.disk.disk, 0
        for name in disk.listdir(self.directory):
            path, files = f"{self.directory}/{name}", list[str]()
            with contextlib.suppress(PermissionError):
                files = [f"{path}/{inner}" for inner in disk.listdir(path)] if disk.is_directory(path) else [path]
            for file in files:
                with contextlib.suppress(FileNotFoundError):  # removed, or renamed, since it was listed
                    total += disk.file_size(file)
        return total

    def close(self) -> None:
        """Close all files cleanly and give the directory back. Nothing can be done with the store afterwards."""
        with self._opening:
            if self._closed:
                return
            self._closed = True
            try:
                for log in self._partitions.values():
                    log.close()
                self._journal.close()
            finally:
                self.disk.close(self.directory)
                self._control.close()
                self.disk.disk.close(self._lock_handle)


def _absolute(directory: str) -> str:
    stripped = directory.rstrip("/")
    if not stripped:
        raise InvalidInput(f"{directory!r} cannot be a storage directory")
    return stripped
