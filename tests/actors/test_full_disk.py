"""What is said about a disk that has no room."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from waltz_ray.actors.full_disk import FullDisk, little_room
from waltz_ray.protocol.messages.replica import APPEND_REQUEST, Appended, RefusalCode, Refused


@pytest.mark.parametrize(("free_mb", "said"), [(0, "0 MB"), (63, "63 MB"), (64, "")])
def test_a_disk_with_little_room_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_mb: int, said: str
) -> None:
    assert little_room(str(tmp_path)) == "", "this machine's disk is full"
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=free_mb * 256, f_frsize=4096))
    text = little_room("/data/zookeeper")
    assert bool(text) == bool(said)
    assert not said or text == f"the disk of /data/zookeeper is full, or nearly: {said} are left; make room"


def test_a_partition_that_was_moved_away_or_deleted_wants_no_room() -> None:
    """Which is how room is made: nobody appends to it again, and that there is room would never be seen."""
    full = FullDisk()
    full.noted([Refused(p, 7, APPEND_REQUEST, RefusalCode.DISK_FULL, 7, 4, f"{p}: full") for p in (2, 3, 5)])
    assert full.problem().startswith("no space left for partitions 2, 3, 5 since ")
    assert full.problem(gone=[3, 5, 8]).startswith("no space left for partition 2 since ")
    assert full.problem().startswith("no space left for partition 2 since "), "one that comes back is a new one"
    full.noted([Appended(2, 7, 5)])
    assert full.problem() == ""
