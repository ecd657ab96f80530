"""A byte of the control file rots outside of the slots: the next start puts it right, or knows that it cannot."""

from __future__ import annotations

import logging
import struct
from uuid import UUID

import pytest

from tests.storage.faulty_disk import FaultyDisk, Survival
from tests.storage.helpers import DIRECTORY, KEY, append, contents, crashed_while_opened, create, data_of, reopen
from tests.storage.originals import CONTROL, original_control
from waltz_ray.errors import Corruption, ForeignStorage
from waltz_ray.storage.control_file import read_control_image, read_to_serve

PARTITIONS = 3
HEADER = range(128)
NUMBERS = [128 + 60 * p + n for p in range(PARTITIONS) for n in range(4)]
TIME = range(4, 12)  # of which nothing depends


def pristine() -> bytes:
    """Partition 2 in session 3, with nine records; the others never had one."""
    disk = FaultyDisk()
    in_session(disk)
    return disk.content(CONTROL)


def in_session(disk: FaultyDisk) -> None:
    store = create(disk, partitions=PARTITIONS)
    log = store.partition(2)
    log.open_session(3)
    append(log, 9)
    log.set_low_water_mark(3, 4, 4)
    store.close()


def flipped(offset: int, mask: int, seed: int = 0) -> FaultyDisk:
    disk = FaultyDisk(seed=seed)
    in_session(disk)
    disk.flip(CONTROL, offset, mask)
    return disk


def as_before(disk: FaultyDisk) -> None:
    store = reopen(disk)
    log = store.partition(2)
    assert (log.session_id, log.low_water_mark, store.partition_ids) == (3, 4, range(PARTITIONS))
    assert contents(log) == [data_of(i) for i in range(9)]


@pytest.mark.parametrize("mask", [0x01, 0x40, 0x80, 0xFF])
@pytest.mark.parametrize("offset", [at for at in (*HEADER, *NUMBERS) if at >= 4])
def test_it_is_put_right_in_memory_and_on_the_disk(offset: int, mask: int, caplog: pytest.LogCaptureFixture) -> None:
    disk, before = flipped(offset, mask), pristine()
    if struct.unpack_from(">i", disk.content(CONTROL), 28)[0] > PARTITIONS:
        with pytest.raises(Corruption, match="do not fit"):  # or it was cut: nobody can tell
            read_to_serve(disk, DIRECTORY, KEY)
        return
    with caplog.at_level(logging.WARNING):
        as_before(disk)
    if offset in TIME and disk.content(CONTROL)[4] < 0x80 and not caplog.records:
        return  # it is a time still
    assert f"byte {offset} had rotted" in caplog.text
    assert disk.content(CONTROL)[12:] == before[12:]
    disk.end_process()
    assert read_control_image(disk, DIRECTORY).rotten < 0


@pytest.mark.parametrize("offset", range(4))
def test_another_version_may_be_meant(offset: int) -> None:
    with pytest.raises(Corruption, match="format version"):
        read_to_serve(flipped(offset, 1), DIRECTORY, KEY)


@pytest.mark.parametrize("second", [*range(12, 128, 3), *NUMBERS])
def test_two_bytes_are_more_than_rot(second: int) -> None:
    """Of which each alone would be put right: another disk, or one that nobody should trust."""
    for first in (30, 100, NUMBERS[1], 20):
        if first == second:
            continue
        disk = flipped(first, 4)
        disk.flip(CONTROL, second, 8)
        with pytest.raises((Corruption, ForeignStorage)):
            read_to_serve(disk, DIRECTORY, KEY)


def test_another_clusters_disk_is_another_clusters() -> None:
    disk = flipped(0, 0)
    for other in (UUID(bytes=KEY.bytes[::-1]), UUID(int=KEY.int ^ 0x0101)):
        with pytest.raises(ForeignStorage, match="is this the right disk"):
            read_to_serve(disk, DIRECTORY, other)


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("original", [False, True])
def test_of_a_file_that_was_cut_nothing_is_believed_whatever_is_wrong_with_it(partitions: int, original: bool) -> None:
    disk = FaultyDisk()
    in_session(disk)
    whole = original_control(*[(3, 4, 4)] * partitions) if original else pristine()
    for length in range(len(whole)):
        for at in (4, 20, 31, 60, 130, 131, 190, length - 1):
            raw = bytearray(whole[:length])
            if 0 <= at < length:
                raw[at] ^= 0x81
            disk.put(CONTROL, bytes(raw))
            try:
                image = read_to_serve(disk, DIRECTORY, KEY)
            except (Corruption, ForeignStorage):
                continue
            if all(image.current(p) is None for p in range(len(image.slots))):
                continue  # it has the length of one of ours, and nothing in it is believed
            raise AssertionError(f"cut to {length}, with byte {at} changed, it has {len(image.slots)} entries")


def test_an_entry_without_a_valid_slot_is_nobodys() -> None:
    disk = flipped(NUMBERS[5], 2)
    for slot in (0, 1):
        disk.flip(CONTROL, 128 + 60 + 4 + 28 * slot, 1)
    with pytest.raises(Corruption, match="entry 1 is of partition"):
        read_to_serve(disk, DIRECTORY, KEY)


def test_a_file_of_the_original_is_not_touched() -> None:
    disk = FaultyDisk()
    in_session(disk)
    raw = bytearray(original_control(*[(3, 4, 4)] * PARTITIONS))
    raw[128 + 76 + 3] ^= 4
    disk.put(CONTROL, bytes(raw))
    with pytest.raises(Corruption, match="entry 1 is of partition 5"):
        read_to_serve(disk, DIRECTORY, KEY)


@pytest.mark.parametrize("survival", [Survival(1.0), Survival(0.0), Survival(0.5), Survival(0.0, 1.0)], ids=str)
@pytest.mark.parametrize("offset", [15, 77, NUMBERS[9]])
def test_a_crash_while_it_is_put_right_leaves_it_as_it_was_or_right(survival: Survival, offset: int) -> None:
    disks = list(crashed_while_opened(lambda step: flipped(offset, 0x10, seed=step), survival))
    for disk in disks:
        as_before(disk)
        assert disk.content(CONTROL)[12:] == pristine()[12:]
    assert len(disks) >= 3
