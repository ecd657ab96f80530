"""A replica's faulty disk in the simulation: it outlives its processes, and knows what has become of it."""

from __future__ import annotations

from collections.abc import Callable

from tests.storage.faulty_disk import ALL_LOST, FaultyDisk, Survival
from waltz_ray.storage.disk import Writable
from waltz_ray.storage.journal import journal_path

__all__ = ["DIRECTORY", "SimDisk"]

DIRECTORY = "/data"


class SimDisk(FaultyDisk):
    """A disk that outlives its processes. ``rotten``: files in which bits have been flipped, and how often; ``failed``:
    syncs that did, since the process started."""

    def __init__(self, seed: int, now_ms: Callable[[], int]) -> None:
        super().__init__(seed)
        self._now_ms = now_ms
        self.rotten: dict[str, int] = {}
        self.failed = 0

    def now_ms(self) -> int:
        return self._now_ms()

    def end_process(self) -> None:
        super().end_process()
        self.calls.clear()
        self.failed = 0

    def crash(self, survival: Survival = ALL_LOST) -> None:
        super().crash(survival)
        self.calls.clear()
        self.failed = 0

    def flip(self, path: str, offset: int, mask: int = 0xFF) -> None:
        super().flip(path, offset, mask)
        self.rotten[path] = self.rotten.get(path, 0) + 1

    def rotten_in(self, partition_id: int) -> list[str]:
        """Files of the partition that have rotted, whether or not they are there still."""
        folder = f"{DIRECTORY}/{partition_id}/"
        return [path for path in self.rotten if path.startswith(folder)]

    def _sync_fails(self) -> bool:
        fails = super()._sync_fails()
        self.failed += fails
        return fails

    def lose_everything(self) -> None:
        """Another disk, empty."""
        self.rotten.clear()
        self._files.clear()
        self._durable_files.clear()
        self._folders, self._durable_folders = {"/"}, {"/"}

    def pwrite(self, handle: int, data: Writable, offset: int) -> None:
        if len(self.calls) > 1000:
            self.calls.clear()
        super().pwrite(handle, data, offset)

    def fill_up(self, room_bytes: int) -> None:
        self.capacity_bytes = self._used() + room_bytes

    def is_durable(self, partition_id: int, record: bytes) -> bool:
        """Whether a segment of the partition, or the journal, has these bytes also after the worst of crashes."""
        folder = f"{DIRECTORY}/{partition_id}/"
        segments = (path for path in reversed(self._files) if path.startswith(folder) and path.endswith(".seg"))
        for path in (journal_path(DIRECTORY, 0), journal_path(DIRECTORY, 1), *segments):
            inode = self._files.get(path)
            if inode is not None and inode is self._durable_files.get(path) and inode.synced.rfind(record) >= 0:
                return True
        return False
