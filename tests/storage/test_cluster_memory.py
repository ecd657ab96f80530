"""What a replica remembers of its cluster, on a disk without room."""

from __future__ import annotations

import pytest

from tests.storage.faulty_disk import FaultyDisk
from tests.storage.helpers import DIRECTORY, create
from waltz_ray.storage.cluster_memory import read_memory, write_memory


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
