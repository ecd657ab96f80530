"""What happens while a read or a flush is on its way, made to happen at that very moment by the disk itself."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.storage.faulty_disk import FaultyDisk
from tests.storage.helpers import SMALL, append, assert_verifies, contents, data_of, new_log, reopen
from waltz_ray.config import StorageConfig
from waltz_ray.errors import InvalidInput
from waltz_ray.storage.disk import Mode


class HookedDisk(FaultyDisk):
    """Calls ``hooks[name]`` once, before the next call of that name on a segment and without the disk's mutex."""

    def __init__(self) -> None:
        super().__init__()
        self.hooks: dict[str, Callable[[], None]] = {}

    def _hook(self, name: str, path: str) -> None:
        if name in self.hooks and path.endswith(".seg"):
            self.hooks.pop(name)()

    def open(self, path: str, mode: Mode) -> int:
        self._hook("open", path)
        return super().open(path, mode)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        self._hook("pread", self._of(handle)[0])
        return super().pread(handle, size, offset)

    def fdatasync(self, handle: int) -> None:
        self._hook("fdatasync", self._of(handle)[0])
        super().fdatasync(handle)


def test_a_cut_under_a_reader_is_not_taken_for_damage() -> None:
    for config in (SMALL, StorageConfig(index_flush_interval=2, preallocate_bytes=0)):
        disk = HookedDisk()
        log = new_log(disk, config)
        append(log, 30)
        log.sync()

        def cut_and_write_others(log: object = log) -> None:
            log.truncate(1, 3)  # type: ignore[attr-defined]
            append(log, 30, tag=1)  # type: ignore[arg-type]

        disk.hooks["pread"] = cut_and_write_others
        batch = log.read(2, 30, 100_000)
        assert [bytes(data) for data in batch.datas()] == [data_of(i, int(i > 3)) for i in range(2, batch.end_id)]
        assert log.damaged is None


def test_a_truncation_waits_for_a_running_sync() -> None:
    """Were it not to, the sync would go on with a closed handle, and write index entries of records that are gone."""
    disk = HookedDisk()
    log = new_log(disk)
    append(log, 8)
    truncation = threading.Thread(target=log.truncate, args=(1, 2))
    seen: list[str] = []

    def cut_meanwhile() -> None:
        disk.calls.clear()
        truncation.start()
        truncation.join(timeout=0.2)  # it must not get anywhere; a right log only waits here
        seen.extend(name for name, _ in disk.calls)

    disk.hooks["fdatasync"] = cut_meanwhile
    log.sync()
    truncation.join()
    assert seen == []
    assert (log.last_id, log.synced_id) == (2, 2)
    append(log, 20, tag=1)
    log.sync()
    disk.crash()
    store = reopen(disk)
    assert contents(store.partition(0)) == [data_of(i, int(i > 2)) for i in range(23)]
    store.close()
    assert_verifies(disk, 22)


def test_records_appended_during_a_sync_are_not_called_durable() -> None:
    disk = HookedDisk()
    log = new_log(disk, StorageConfig(preallocate_bytes=0))
    append(log, 3)
    disk.hooks["fdatasync"] = lambda: append(log, 4)
    assert log.sync() == 2
    assert (log.last_id, log.synced_id) == (6, 2)
    assert log.sync() == 6


def test_a_reader_whose_records_were_cut_away_is_told_so() -> None:
    disk = HookedDisk()
    log = new_log(disk)
    append(log, 40)
    log.sync()
    disk.hooks["open"] = lambda: log.truncate(1, 3)
    with pytest.raises(InvalidInput):
        log.read(20, 40, 100_000)
    assert (log.damaged, log.last_id) == (None, 3)
