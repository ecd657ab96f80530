"""Which layout a control file has is decided by its checksums: the tools of Waltz 0.13 lengthen the files of ours."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable

import pytest

from tests.storage.faulty_disk import FaultyDisk, Survival
from tests.storage.helpers import DIRECTORY, KEY, append, contents, crashed_while_opened, create, data_of, reopen
from tests.storage.originals import CONTROL, original_control, original_directory
from waltz_ray.errors import Corruption
from waltz_ray.storage.control_file import ORIGINAL_COPY, read_control_image
from waltz_ray.storage.fence import read_fences
from waltz_ray.storage.inspect import describe_directory
from waltz_ray.storage.verify import verify_directory

TAILS: dict[str, Callable[[int], bytes]] = {
    "zeros as theirs": lambda partitions: bytes(16 * partitions),
    "garbage as theirs": lambda partitions: bytes((i * 37 + 11) % 256 for i in range(16 * partitions)),
    "ones": lambda partitions: b"\xff" * 16 * partitions,
    "one byte": lambda partitions: b"\x01",
    "many": lambda partitions: bytes(5000),
}


def lengthened(disk: FaultyDisk, partitions: int, tail: bytes) -> FaultyDisk:
    """A directory of ours in session 3, mark 4, that somebody has lengthened the control file of."""
    store = create(disk, partitions=partitions)
    log = store.partition(partitions - 1)
    log.open_session(3)
    append(log, 9)
    log.set_low_water_mark(3, 4, 4)
    store.close()
    disk.put(CONTROL, disk.content(CONTROL) + tail)
    return disk


@pytest.mark.parametrize("partitions", [1, 2, 5, 16])
@pytest.mark.parametrize("tail", TAILS)
def test_a_lengthened_file_is_ours_still(partitions: int, tail: str, caplog: pytest.LogCaptureFixture) -> None:
    added = TAILS[tail](partitions)
    disk = lengthened(FaultyDisk(), partitions, added)
    report = verify_directory(disk, DIRECTORY)
    assert report.ok, str(report.damage)
    assert any(f"{len(added)} bytes behind the last entry" in note for note in report.notes)
    assert describe_directory(disk, DIRECTORY)["written_by"] == "waltz_ray"
    assert read_fences(disk, DIRECTORY)[-1][1:4] == (3, 4, 4)
    with caplog.at_level(logging.WARNING):
        store = reopen(disk)
    assert "behind the last entry" in caplog.text
    disk.crash()
    log = reopen(disk).partition(partitions - 1)
    assert (log.session_id, log.low_water_mark) == (3, 4)
    assert contents(log) == [data_of(i) for i in range(9)]
    assert store.partition_ids == range(partitions)
    assert len(disk.content(CONTROL)) == 128 + 60 * partitions
    assert not disk.exists(f"{DIRECTORY}/{ORIGINAL_COPY}")
    disk.end_process()
    assert verify_directory(disk, DIRECTORY).notes == []


@pytest.mark.parametrize("survival", [Survival(1.0), Survival(0.0), Survival(0.5), Survival(0.0, 1.0)], ids=str)
def test_a_crash_while_it_is_mended_touches_no_entry(survival: Survival) -> None:
    disks = list(crashed_while_opened(lambda step: lengthened(FaultyDisk(seed=step), 2, bytes(32)), survival))
    for disk in disks:
        assert read_fences(disk, DIRECTORY)[1][1:4] == (3, 4, 4)
        assert reopen(disk).partition(1).session_id == 3
        assert len(disk.content(CONTROL)) == 128 + 60 * 2
    assert len(disks) >= 4


@pytest.mark.parametrize("tail", [b"", bytes(7), bytes(1000)])
def test_one_of_the_original_is_recognised_as_before(tail: bytes) -> None:
    disk = original_directory(FaultyDisk())
    raw = disk.content(CONTROL) + tail
    disk.put(CONTROL, raw)
    image = read_control_image(disk, DIRECTORY)
    assert (image.original, image.trailing_bytes) == (True, len(tail))
    log = reopen(disk).partition(0)
    assert (log.session_id, log.low_water_mark, log.local_low_water_mark) == (4, 12, 11)
    assert disk.content(f"{DIRECTORY}/{ORIGINAL_COPY}") == raw
    assert len(disk.content(CONTROL)) == 128 + 60


def test_one_valid_slot_is_enough_to_tell() -> None:
    """All others rotten, and the length of the other layout."""
    disk = lengthened(FaultyDisk(), 3, bytes(16 * 3))
    raw = bytearray(disk.content(CONTROL))
    for slot in range(5):
        raw[128 + 60 * (slot // 2) + 4 + 28 * (slot % 2) + 5] ^= 1
    disk.put(CONTROL, bytes(raw))
    image = read_control_image(disk, DIRECTORY)
    assert not image.original
    assert image.currents == [-1, -1, 1]
    original = bytearray(original_control((4, 12, 11), (5, 1, 1)))
    for at in (128 + 4, 128 + 40, 128 + 76 + 4):
        original[at] ^= 1
    disk.put(CONTROL, bytes(original))
    assert read_control_image(disk, DIRECTORY).original


@pytest.mark.parametrize(("length", "original"), [(128 + 60 * 2, False), (128 + 76 * 2, True)])
def test_without_a_valid_slot_the_length_decides(length: int, original: bool) -> None:
    disk = lengthened(FaultyDisk(), 2, b"")
    header = disk.content(CONTROL)[:128]
    size = 76 if original else 60
    entries = b"".join(struct.pack(">i", partition_id).ljust(size, b"\0") for partition_id in range(2))
    disk.put(CONTROL, header + entries)
    assert len(disk.content(CONTROL)) == length
    image = read_control_image(disk, DIRECTORY)
    assert (image.original, image.currents) == (original, [-1, -1])
    disk.put(CONTROL, header + entries + b"\0")
    with pytest.raises(Corruption, match="do not fit"):
        read_control_image(disk, DIRECTORY)


def test_a_rotten_number_of_partitions_never_cuts_entries_off() -> None:
    """Fewer than there are would make the others trailing bytes; they would be cut off, fences and all."""
    for partitions in (2, 3, 12):
        pristine = lengthened(FaultyDisk(), partitions, b"").content(CONTROL)
        for bit in range(32):
            disk = FaultyDisk()
            wrong = int.from_bytes(pristine[28:32], "big") ^ (1 << bit)
            disk.put(CONTROL, pristine[:28] + wrong.to_bytes(4, "big") + pristine[32:])
            with pytest.raises(Corruption) as caught:
                read_control_image(disk, DIRECTORY)
            assert caught.value.offset == 28
    assert KEY.bytes in pristine
