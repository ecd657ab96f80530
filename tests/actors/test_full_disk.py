"""What is said about a disk that has no room."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from waltz_ray.actors.full_disk import FullDisk, little_room
from waltz_ray.protocol.messages.replica import (
    APPEND_REQUEST,
    OPEN_REQUEST,
    REPLICA_TYPES,
    Appended,
    LowWaterMarkSet,
    RefusalCode,
    Refused,
    ReplicaReply,
    SetLowWaterMark,
    StateReply,
)


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


def test_a_partition_to_which_nobody_appends_shows_that_there_is_room_by_what_else_is_done() -> None:
    """As of a space that was made while the disk was full, and is not used yet: nothing keeps it from being used."""
    opened, marked = StateReply(2, 7, 6, -1, -1, -1, False), LowWaterMarkSet(2, 7)
    told: list[tuple[int, ReplicaReply, bool]] = [
        (OPEN_REQUEST, opened, True),
        (OPEN_REQUEST, marked, True),
        (REPLICA_TYPES[SetLowWaterMark], opened, False),  # it was opened before, too
        (REPLICA_TYPES[SetLowWaterMark], marked, True),
        (APPEND_REQUEST, opened, False),  # what was not taken comes again
        (APPEND_REQUEST, marked, False),
    ]
    for asked, reply, room in told:
        full = FullDisk()
        full.noted([Refused(2, 7, asked, RefusalCode.DISK_FULL, 7, 4, "full")])
        assert full.problem()
        full.noted([reply])
        assert (full.problem() == "") is room, (asked, reply)
