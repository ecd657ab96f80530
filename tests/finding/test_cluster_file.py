"""Clusters of this machine, by the processes of their Rays; those of others are among them."""

from __future__ import annotations

import json
import os
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


def test_a_head_is_known_after_the_clock_of_its_machine_was_set(tmp_path: Path) -> None:
    """It runs, though it seems to have been started at another time; nobody else who has its number does."""
    temporary = str(tmp_path / "ray")
    waits = [sys.executable, "-c", "input()", f"--temp-dir={temporary}"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        started_at = psutil.Process(process.pid).create_time()
        same = LocalRay("127.0.0.1:1", "", process.pid, started_at, temporary)
        assert same.process() is not None
        assert replace(same, started_at=started_at - 3600).process() is not None
        assert replace(same, started_at=started_at - 3600, temporary=f"{temporary}2").process() is None
        assert replace(same, started_at=started_at - 3600, temporary="").process() is None
    assert same.process() is None
