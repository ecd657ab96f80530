"""Clusters of this machine, by the processes of their Rays; those of others are among them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil  # type: ignore[import-untyped]
import pytest

from waltz_ray.errors import InvalidInput
from waltz_ray.finding import cluster_file
from waltz_ray.finding.cluster_file import ClusterFile, LocalRay


class Head:
    """As much of ``psutil.Process`` as is asked of it."""

    def __init__(self, directory: Path, pid: int = os.getpid()) -> None:
        self.pid, self._directory = pid, directory

    def cmdline(self) -> list[str]:
        return ["python", "ray.scripts.scripts", "start", "--head"]

    def cwd(self) -> str:
        return str(self._directory)


def damaged(**values: object) -> str:
    """What ``write`` writes, but for these."""
    ray = asdict(LocalRay("127.0.0.1:1", "", os.getpid(), 0.0))
    whole = {"version": 1} | asdict(ClusterFile("n", "d", 1, 1, 1, key=str(UUID(int=1)))) | {"ray": ray}
    return json.dumps(
        {name: ray | value if isinstance(value, dict) else value for name, value in (whole | values).items()}
    )


def test_a_loss_of_power_leaves_the_old_file_or_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is durable before what it names is an empty file: no command would find the cluster any more."""
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noted(handle: int) -> None:
        fsync(handle)
        steps.append(os.readlink(f"/proc/self/fd/{handle}"))

    def renamed(old: Path, new: Path) -> Path:
        steps.append(f"{old} is {new}")
        return replace(old, new)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(Path, "replace", renamed)
    cluster_file.write(ClusterFile("n", str(tmp_path), 1, 1, 1))
    aside = str(tmp_path / "cluster.new")
    assert steps == [aside, f"{aside} is {tmp_path / 'cluster.json'}", str(tmp_path)]


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"version": 2}', '{"version": 1, "name": "n", "of_a_later_waltz": 3}']
    + [damaged(ray={name: value}) for name, value in (("pid", "7"), ("pid", -1), ("started_at", None), ("address", 1))]
    + [damaged(ray=1), damaged(key="k"), damaged(name=1), damaged(zookeeper=None), damaged(partitions="1")],
)
def test_a_cluster_whose_file_is_not_understood_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    ray = LocalRay("127.0.0.1:1", "", os.getpid(), psutil.Process().create_time())
    cluster_file.write(ClusterFile("ours", str(ours), 1, 1, 1, ray=ray))
    (theirs / "cluster.json").write_text(text)
    heads: list[Any] = [Head(theirs), Head(ours), Head(tmp_path)]
    monkeypatch.setattr(psutil, "process_iter", lambda: heads)
    assert [cluster.name for cluster in cluster_file.running_clusters()] == ["ours"]
    assert cluster_file.find_running().directory == str(ours)
    assert str(theirs) in caplog.text
    with pytest.raises(InvalidInput):
        cluster_file.find_running(str(theirs))


def test_a_copy_of_a_directory_does_not_run_and_one_that_was_moved_does(tmp_path: Path) -> None:
    ours, copy, moved = tmp_path / "ours", tmp_path / "copy", tmp_path / "moved"
    ours.mkdir()
    ray = LocalRay("127.0.0.1:1", "", os.getpid(), psutil.Process().create_time())
    written = ClusterFile("c", str(ours), 1, 1, 1, address="127.0.0.1:1", ray=ray)
    cluster_file.write(written)
    shutil.copytree(ours, copy)
    assert cluster_file.read(copy) == replace(written, directory=str(copy)).stopped()
    assert cluster_file.read(ours) == written
    (tmp_path / "link").symlink_to(ours)
    assert cluster_file.read(tmp_path / "link") == written
    ours.rename(moved)
    assert cluster_file.read(moved) == replace(written, directory=str(moved))
    ours.mkdir()
    cluster_file.write(replace(written, ray=replace(ray, pid=1)))  # another one, where it was
    assert cluster_file.read(moved) == replace(written, directory=str(moved))


def test_a_copy_of_a_directory_whose_cluster_is_on_a_ray_of_others_does_not_run(tmp_path: Path) -> None:
    (ours := tmp_path / "ours").mkdir()
    cluster_file.write(ClusterFile("c", str(ours), 1, 1, 1, address="10.0.0.1:6379"))
    shutil.copytree(ours, tmp_path / "copy")
    found = cluster_file.read(tmp_path / "copy")
    assert found is not None
    assert not found.running


def test_a_head_is_known_after_the_clock_of_its_machine_was_set(tmp_path: Path) -> None:
    """It runs, though it seems to have been started at another time; nobody else who has its number does."""
    temporary = str(tmp_path / "ray")
    waits = [sys.executable, "-c", "print(flush=True); input()", f"--temp-dir={temporary}"]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(waits, stdin=pipe, stdout=pipe, stderr=null) as process:
        assert process.stdout is not None
        process.stdout.readline()  # Popen is back before Linux shows the new program's arguments: it tells that it runs
        started_at = psutil.Process(process.pid).create_time()
        same = LocalRay("127.0.0.1:1", "", process.pid, started_at, temporary)
        assert same.process() is not None
        assert replace(same, started_at=started_at - 3600).process() is not None
        assert replace(same, started_at=started_at - 3600, temporary=f"{temporary}2").process() is None
        assert replace(same, started_at=started_at - 3600, temporary="").process() is None
    assert same.process() is None
