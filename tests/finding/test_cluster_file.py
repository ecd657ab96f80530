"""Clusters of this machine, by the processes of their Rays; those of others are among them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
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
