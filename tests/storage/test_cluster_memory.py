"""What a replica remembers of its cluster, on a disk without room."""

from __future__ import annotations

import json

import pytest

from tests.storage.faulty_disk import FaultyDisk
from tests.storage.helpers import DIRECTORY, create
from waltz_ray.storage.cluster_memory import MEMORY_FILE, read_memory, write_memory


def test_what_finds_no_room_leaves_the_old_one_and_takes_no_room() -> None:
    """The last room is for records, and for what makes room."""
    disk = FaultyDisk()
    create(disk).close()
    write_memory(disk, DIRECTORY, {"nodes": {"/a": "b"}})
    before = disk.files()
    disk.capacity_bytes = sum(len(disk.content(path)) for path in before) + 50
    with pytest.raises(OSError, match="No space left"):
        write_memory(disk, DIRECTORY, {"nodes": {"/a": "c" * 1000}})
    assert disk.files() == before
    found = read_memory(disk, DIRECTORY)
    assert found is not None
    assert found["nodes"] == {"/a": "b"}


def test_one_with_a_rotten_byte_is_none() -> None:
    """By it `waltz recover` knows on how many replicas a partition was, and whose memory is the newest."""
    disk = FaultyDisk()
    create(disk).close()
    said = {"name": "demo", "nodes": {"/a": '{"b": 1}'}, "sets": {"5": [0, 1, 2]}, "seen_ms": 1_700_000_000_000}
    write_memory(disk, DIRECTORY, said)
    path = f"{DIRECTORY}/{MEMORY_FILE}"
    pristine = disk.content(path)
    whole = read_memory(disk, DIRECTORY)
    assert whole is not None
    assert said.items() <= whole.items()
    for offset in range(len(pristine)):
        for mask in (0x01, 0x02, 0x20, 0xFF):
            disk.put(path, pristine)
            disk.flip(path, offset, mask)
            found = read_memory(disk, DIRECTORY)
            assert found is None or said.items() <= found.items(), offset


def test_one_of_an_earlier_version_is_read_too() -> None:
    disk = FaultyDisk()
    create(disk).close()
    write_memory(disk, DIRECTORY, {"name": "demo"})
    path = f"{DIRECTORY}/{MEMORY_FILE}"
    fields = json.loads(disk.content(path))
    del fields["crc"]
    disk.put(path, json.dumps(fields).encode())
    assert read_memory(disk, DIRECTORY) == fields
