"""Clusters of this machine, by the processes of their Rays; those of others are among them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"version": 2}', '{"version": 1, "name": "n", "of_a_later_waltz": 3}'],
    ids=["empty", "half", "another version", "a later one"],
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
