"""Every byte of a small directory flipped in turn: verify names the place, and a replica never serves a wrong byte."""

from __future__ import annotations

import pytest

from tests.storage.faulty_disk import FaultyDisk
from tests.storage.helpers import DIRECTORY, SMALL, SMALL_AHEAD, append, create, data_of, reopen
from waltz_ray.config import StorageConfig
from waltz_ray.errors import Corruption, StorageError
from waltz_ray.storage.verify import verify_directory

RECORDS = 14


def small_directory(config: StorageConfig, clean: bool) -> FaultyDisk:
    disk = FaultyDisk()
    store = create(disk, config)
    log = store.partition(0)
    log.open_session(1)
    append(log, RECORDS)
    log.set_low_water_mark(1, RECORDS - 1, RECORDS - 1)
    if clean:
        store.close()
    else:
        disk.crash()  # space written ahead stays, the index is behind
    return disk


def serve(disk: FaultyDisk, config: StorageConfig) -> None:
    """Whatever is served is right."""
    try:
        log = reopen(disk, config).partition(0)
        for first_id in range(RECORDS):
            batch = log.read(first_id, RECORDS, 100)
            assert [bytes(data) for data in batch.datas()] == [data_of(i) for i in range(first_id, batch.end_id)]
    except StorageError:
        return  # refused, which is not serving


@pytest.mark.parametrize("mask", [0x01, 0x80])
@pytest.mark.parametrize(("config", "clean"), [(SMALL, True), (SMALL_AHEAD, False)], ids=["clean", "crashed"])
def test_every_single_byte(config: StorageConfig, clean: bool, mask: int) -> None:
    pristine = small_directory(config, clean)
    assert verify_directory(pristine, DIRECTORY).ok
    missed = []
    for path in pristine.files():
        content = pristine.content(path)
        for offset in range(len(content)):
            if offset > 2000 and offset % 97:
                continue  # thousands of zeros written ahead are all alike
            disk = FaultyDisk()
            for name in pristine.files():
                disk.put(name, pristine.content(name))
            disk.flip(path, offset, mask)
            damage = verify_directory(disk, DIRECTORY).damage
            if damage is None:
                missed.append((path, offset))
            else:
                assert_named(damage, path, offset)
            serve(disk, config)
    control = f"{DIRECTORY}/waltz-storage.ctl"
    # A time index is advice, and a crash may have torn it: that is no damage, and what it says of is served.
    missed = [(path, offset) for path, offset in missed if not path.endswith(".tix")]
    # The creation time of the directory stands alone and means nothing; only an impossible one is noticed.
    assert [(path, offset) for path, offset in missed if not (path == control and 4 <= offset < 12)] == []


def test_an_index_entry_below_zero_costs_nothing() -> None:
    # It is the only one that a start looks at, where the low-water mark is at the end of the log.
    disk = small_directory(StorageConfig(preallocate_bytes=0), clean=True)
    index = f"{DIRECTORY}/0/{0:019d}.idx"
    before = disk.content(index)
    disk.flip(index, len(before) - 8, 0x80)
    log = reopen(disk).partition(0)
    assert (log.last_id, log.damaged) == (RECORDS - 1, None)
    assert disk.content(index) == before


def assert_named(damage: Corruption, path: str, offset: int) -> None:
    """The right file and no later a place than the flip; a wrong directory-wide number shows at the files it belies."""
    if path.endswith(".ctl") and 12 <= offset < 32:
        return
    if path.endswith(".idx") and 4 <= offset < 12:
        assert damage.file in (path, path.replace(".idx", ".seg"))
        return
    assert damage.file == path
    assert damage.offset <= offset
