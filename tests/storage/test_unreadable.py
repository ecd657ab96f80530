"""Sectors that a disk does not give when a partition is opened: damage of that partition, and of no other."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.storage.faulty_disk import FaultyDisk
from tests.storage.helpers import DIRECTORY, SMALL, append, assert_verifies, contents, create, data_of, records, reopen
from tests.storage.test_repair import Peer
from tests.storage.test_scrub import Clock, closed_path
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.inspect import describe_directory
from waltz_ray.storage.layout import segment_ids
from waltz_ray.storage.upkeep import Upkeep
from waltz_ray.storage.verify import verify_directory

SECTOR = 64
"""Small, so that there are several in these files."""


class BadSectors(FaultyDisk):
    """Some bytes of some files cannot be read until they are written again."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: set[tuple[str, int]] = set()  # (path, number of the sector)

    def pread(self, handle: int, size: int, offset: int) -> bytes:
        data = super().pread(handle, size, offset)
        path = self._of(handle)[0]
        if any((path, sector) in self.bad for sector in range(offset // SECTOR, -(-(offset + len(data)) // SECTOR))):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return data

    def pwrite(self, handle: int, data: bytes | memoryview, offset: int) -> None:
        super().pwrite(handle, data, offset)
        path, end = self._of(handle)[0], offset + len(bytes(data))
        self.bad -= {(path, sector) for sector in range(offset // SECTOR, -(-end // SECTOR))}

    def truncate(self, handle: int, size: int) -> None:
        super().truncate(handle, size)
        path = self._of(handle)[0]
        self.bad = {(other, sector) for other, sector in self.bad if other != path or sector * SECTOR < size}

    def unlink(self, path: str) -> None:
        super().unlink(path)
        self.bad = {(other, sector) for other, sector in self.bad if other != path}

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        self.bad = {(path, sector) for path, sector in self.bad if path != new}


def filled(mark: int) -> BadSectors:
    """Two partitions of 63 records, all acknowledged; the process has ended."""
    disk = BadSectors()
    store = create(disk, SMALL, 2)
    for partition_id in (0, 1):
        log = store.partition(partition_id)
        log.open_session(1)
        append(log, 40)
        log.set_low_water_mark(1, mark, mark)
        append(log, 23)
        log.sync()
    disk.end_process()
    return disk


def sectors(disk: FaultyDisk, suffix: str) -> list[tuple[str, int]]:
    paths = [path for path in disk.files() if path.startswith(f"{DIRECTORY}/0/") and path.endswith(suffix)]
    return [(path, sector) for path in paths for sector in range(-(-disk.file_size(path) // SECTOR))]


@pytest.mark.parametrize("mark", [39, -1], ids=["marked", "no mark"])
def test_any_sector_of_a_segment_is_damage_of_its_partition_alone(mark: int) -> None:
    """Nothing that may have been acknowledged is cut, nothing wrong is told, and its peers make the copy whole."""
    met = 0
    for bad in sectors(filled(mark), ".seg"):
        disk = filled(mark)
        disk.bad = {bad}
        before = disk.content(bad[0])
        store = reopen(disk)
        assert store.partition(1).last_id == 62
        log = store.partition(0)
        assert disk.content(bad[0]) == before
        if log.damaged is None:
            assert log.last_id == 62, "it is not a shorter log that votes"
            assert all(end_id - 1 <= mark for first_id, end_id in log.closed()[1] if first_id in log.rotten)
            met += bool(log.rotten)
            clock = Clock()
            upkeep = Upkeep(store, SMALL, lambda: [Peer()], clock)
            while log.rotten:
                clock.now_s += max(upkeep.step(), 1e-3)
        else:
            met += 1
            assert log.damaged.unreadable
            assert "cannot be read: Input/output error" in str(log.damaged)
            assert log.damaged.file == bad[0]
            log.open_session(2)
            assert log.damaged is not None
            log.truncate(2, log.last_id)
            assert not disk.bad
        log.open_session(2)
        if log.last_id < 62:
            log.append(2, records(log.last_id + 1, 62 - log.last_id))
        log.sync()
        if not disk.bad:
            assert contents(log) == [data_of(i) for i in range(63)]
            store.close()
            assert_verifies(disk, 62)
    assert met > 10


@pytest.mark.parametrize("suffix", [".idx", ".tix"])
def test_any_sector_of_what_can_be_made_anew_is_no_damage(suffix: str) -> None:
    for bad in sectors(filled(39), suffix):
        disk = filled(39)
        disk.bad = {bad}
        store = reopen(disk)
        log = store.partition(0)
        log.open_session(2)
        assert (log.damaged, log.rotten) == (None, {})
        assert contents(log) == [data_of(i) for i in range(63)]
        append(log, 10)
        log.sync()
        store.close()
        disk.bad.clear()  # of an index in whose sector no entry was looked at
        assert_verifies(disk, 72)


def test_where_a_log_begins_cannot_be_read() -> None:
    disk = filled(39)
    store = reopen(disk)
    store.partition(0).trim(30)
    disk.end_process()
    disk.bad = {(f"{DIRECTORY}/0/trimmed", 0)}
    store = reopen(disk)
    assert store.partition(1).last_id == 62
    damage = store.partition(0).damaged
    assert damage is not None
    assert damage.unreadable


def test_what_can_be_read_again_is_whole_again_with_the_next_session() -> None:
    """A disk may be away for a moment, with all copies of a log: nobody else could give it back its voice."""
    for path, sector in sectors(filled(39), ".seg"):
        disk = filled(39)
        disk.bad = {(path, sector)}
        log = reopen(disk).partition(0)
        disk.bad.clear()
        log.open_session(2)
        assert (log.damaged, log.last_id, log.synced_id) == (None, 62, 62)
        append(log, 3)
        log.sync()
        assert contents(log) == [data_of(i) for i in range(66)]


def test_what_is_in_front_of_a_bad_sector_is_read_with_few_tries() -> None:
    """Each of them may take a disk seconds."""
    disk = BadSectors()
    log = create(disk, SMALL.__class__(preallocate_bytes=0)).partition(0)
    log.open_session(1)
    append(log, 200)
    log.sync()
    disk.end_process()
    path = f"{DIRECTORY}/0/{segment_ids(disk.listdir(f'{DIRECTORY}/0'))[0]:019d}.seg"
    disk.bad = {(path, disk.file_size(path) // SECTOR - 1)}
    failed, pread = 0, disk.pread

    def counted(handle: int, size: int, offset: int) -> bytes:
        nonlocal failed
        try:
            return pread(handle, size, offset)
        except OSError:
            failed += 1
            raise

    disk.pread = counted  # type: ignore[method-assign]
    log = reopen(disk).partition(0)
    assert log.damaged is not None
    assert 195 < log.last_id < 199
    assert failed < 5


def test_verify_says_which_record_it_is_and_goes_on() -> None:
    disk = filled(39)
    bad = closed_path(disk, 1)
    disk.bad = {(bad, 5)}
    report = verify_directory(disk, DIRECTORY)
    assert report.damage is not None
    assert (report.damage.file, report.partitions[1].last_id) == (bad, 62)
    assert "cannot be read: Input/output error" in report.damage.reason
    assert report.damage.offset > 128


@pytest.mark.parametrize("call", ["open", "pread", "file_size"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOENT])
@pytest.mark.parametrize("suffix", [".seg", ".idx"])
def test_inspect_shows_all_else(call: str, number: int, suffix: str) -> None:
    """A disk that is sick is what it is for; and a replica that runs may have removed what was listed."""
    disk = filled(39)
    for position in (0, -1):
        disk.errors = {(call, closed_path(disk, position, suffix)): number}
        one, other = describe_directory(disk, DIRECTORY)["partitions"]
        assert other["last_id"] == 62
        assert len(other["segments"]) - 1 <= len(one["segments"]) <= len(other["segments"])
        if suffix == ".seg":
            assert any("damage" in each for each in one["segments"]) == (number == errno.EIO)


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that is REFUSED for it says no more than this."""
    path = tmp_path / "waltz-journal.0"
    path.write_bytes(bytes(100))
    disk = OsDisk()
    handle = disk.open(str(path), "read")
    assert disk.pread(handle, 200, 0) == bytes(100)

    def fail(handle: int, size: int, offset: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(OSError, match=rf"Input/output error: '{path}'"):
        disk.pread(handle, 100, 0)
    disk.close(handle)
