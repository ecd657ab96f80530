"""What was written last stays in the page cache, the rest is given up; whatever becomes of the files meanwhile."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.faulty_disk import FaultyDisk
from tests.storage.helpers import append, contents, data_of, new_log
from waltz_ray.config import StorageConfig
from waltz_ray.protocol.checksum import crc32
from waltz_ray.protocol.records import RecordBatch, few_records
from waltz_ray.storage.disk import Mode, OsDisk
from waltz_ray.storage.page_cache import PageCache
from waltz_ray.storage.store import ReplicaStore

MIB = 1 << 20


class Watched(FaultyDisk):
    """Remembers what was given up; ``gone``: files that cannot be opened."""

    def __init__(self) -> None:
        super().__init__()
        self.given_up: list[tuple[str, int, int]] = []
        self.gone: set[str] = set()
        self._opened: dict[int, str] = {}

    def open(self, path: str, mode: Mode) -> int:
        if path in self.gone:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        handle = super().open(path, mode)
        self._opened[handle] = path
        return handle

    def unneeded(self, handle: int, size: int, offset: int) -> None:
        self.given_up.append((self._opened[handle], offset, offset + size))


def watched(*paths: str) -> Watched:
    disk = Watched()
    for path in paths:
        disk.close(disk.open(path, "create"))
    return disk


def still_cached(disk: Watched, written: dict[str, int], path: str) -> int:
    """Bytes at the end of a file that nobody has given up."""
    return written[path] - max((end for name, _, end in disk.given_up if name == path), default=0)


@given(
    st.lists(st.tuples(st.sampled_from(["/a", "/b", "/c"]), st.integers(1, 3 * MIB)), max_size=60),
    st.integers(1, 20 * MIB),
)
def test_what_stays_is_the_newest_and_within_the_bound(writes: list[tuple[str, int]], most_bytes: int) -> None:
    disk = watched("/a", "/b", "/c")
    cache, written = PageCache(disk, most_bytes), dict.fromkeys(("/a", "/b", "/c"), 0)
    order: list[tuple[str, int, int]] = []
    for path, size in writes:
        cache.written(path, written[path], size)
        order.append((path, written[path], written[path] + size))
        written[path] += size
        assert sum(still_cached(disk, written, name) for name in written) <= most_bytes
    newest = 0
    for path, start, end in reversed(order):  # a piece is given up whole: of the newest bytes one piece less may stay
        newest += end - start
        if newest + 7 * MIB <= most_bytes:
            assert all(name != path or given <= start for name, _, given in disk.given_up)
    assert disk.open_handles() == 0


def test_each_byte_of_a_file_is_given_up_once_it_is_old_enough_and_the_seam_with_it() -> None:
    disk = watched("/a")
    cache = PageCache(disk, 8 * MIB)
    for at in range(40):
        cache.written("/a", at * MIB, MIB)
    ends = [end for _, _, end in disk.given_up]
    starts = [start for _, start, _ in disk.given_up]
    assert ends == sorted(ends)
    assert starts[0] == 0
    assert all(start < before for start, before in zip(starts[1:], ends, strict=False))  # across the seam
    assert 40 * MIB - 8 * MIB - 4 * MIB <= ends[-1] <= 40 * MIB - 4 * MIB


def test_zero_leaves_all_to_the_kernel() -> None:
    disk = watched("/a")
    cache = PageCache(disk, 0)
    for at in range(100):
        cache.written("/a", at * MIB, MIB)
    assert disk.given_up == []


def test_a_file_that_has_gone_hinders_nobody() -> None:
    disk = watched("/a", "/b")
    cache = PageCache(disk, 4 * MIB)
    cache.written("/a", 0, 3 * MIB)
    disk.gone.add("/a")
    cache.written("/b", 0, 3 * MIB)
    cache.written("/b", 3 * MIB, 3 * MIB)
    assert {path for path, _, _ in disk.given_up} == {"/b"}


def test_a_log_gives_up_its_old_segments_and_reads_the_same() -> None:
    disk = Watched()
    log = new_log(disk, StorageConfig(segment_size_bytes=2000, preallocate_bytes=0, page_cache_bytes=5000))
    while log.last_id < 199:
        append(log, 7)
    log.sync()
    segments = [path for path in disk.files() if path.endswith(".seg")]
    given_up = {path for path, _, _ in disk.given_up}
    assert len(segments) > 5
    assert given_up >= set(segments[:-4])
    assert segments[-1] not in given_up
    assert contents(log) == [data_of(transaction_id) for transaction_id in range(log.last_id + 1)]


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="this system does not say what is in its page cache")
def test_the_kernel_takes_the_advice(tmp_path: Path) -> None:
    """Pages of the disk that the tests run on: the newest are there, the old ones are not."""
    config = StorageConfig(page_cache_bytes=8 * MIB, preallocate_bytes=0)
    store = ReplicaStore.create(OsDisk(), str(tmp_path / "replica"), uuid.uuid4(), 1, config)
    log = store.partition(0)
    log.open_session(1)
    data = os.urandom(MIB)
    for first_id in range(48):
        log.append(1, _one(first_id, data))
        log.sync()
    (segment,) = (tmp_path / "replica" / "0").glob("*.seg")
    with segment.open("rb") as file:
        cached = [_is_cached(file.fileno(), (at << 20) + 4096 * 8) for at in range(48)]
    store.close()
    assert cached[-4:] == [True] * 4
    assert sum(cached) <= 24, "old pages were left in the page cache"


def _one(transaction_id: int, data: bytes) -> RecordBatch:
    return few_records(0, transaction_id, [(7, 1, transaction_id, 0, crc32(data), memoryview(data))])


def _is_cached(handle: int, offset: int) -> bool:
    try:
        return os.preadv(handle, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            pytest.skip("this file system does not say what is in its page cache")
        raise
