"""What is said about a disk that has no room."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from waltz_ray.actors.full_disk import little_room


@pytest.mark.parametrize(("free_mb", "said"), [(0, "0 MB"), (63, "63 MB"), (64, "")])
def test_a_disk_with_little_room_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_mb: int, said: str
) -> None:
    assert little_room(str(tmp_path)) == "", "this machine's disk is full"
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=free_mb * 256, f_frsize=4096))
    text = little_room("/data/zookeeper")
    assert bool(text) == bool(said)
    assert not said or text == f"the disk of /data/zookeeper is full, or nearly: {said} are left; make room"
