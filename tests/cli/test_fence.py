"""``waltz fence``: offline, with a warning, and never while a replica has the directory open."""

from __future__ import annotations

import io
import json
import uuid
from pathlib import Path

import pytest

from tests.cli.test_commands import cluster_directory, run
from waltz_ray.config import StorageConfig
from waltz_ray.errors import Fenced
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.fence import read_fences
from waltz_ray.storage.store import ReplicaStore

__all__ = ["cluster_directory"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def fence_of(directory: Path, partition: int) -> int | None:
    return read_fences(OsDisk(), str(directory))[partition].session_id


def test_show_is_a_table_or_json_of_one_replica_or_all(
    cluster_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("fence", "show", str(cluster_directory)) == 0
    assert capsys.readouterr().out.count("replica-") == 2
    assert run("fence", "show", str(cluster_directory / "replica-1"), "--partition", "1", "--json") == 0
    (fence,) = json.loads(capsys.readouterr().out)
    assert (fence["partition_id"], fence["session_id"], fence["slots_valid"]) == (1, 3, [True, True])
    assert run("fence", "show", str(cluster_directory), "--partition", "2") == 1
    assert "no partition 2, only 0 to 1" in capsys.readouterr().err


def test_reset_lowers_one_fence_after_a_warning(cluster_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = cluster_directory / "replica-0"
    assert run("fence", "reset", str(directory), "--partition", "1", "--session", "2", "--yes") == 0
    captured = capsys.readouterr()
    assert "acknowledged can be\nlost" in captured.err
    assert (fence_of(directory, 1), fence_of(directory, 0)) == (2, 2)
    store = ReplicaStore.open(OsDisk(), str(directory), uuid.UUID(int=7), StorageConfig())
    try:
        assert store.partition(1).last_id == 9
        assert store.partition(1).open_session(2) == 2
        with pytest.raises(Fenced):
            store.partition(1).open_session(1)
    finally:
        store.close()


@pytest.mark.parametrize(("answer", "code", "fence"), [("n\n", 1, 3), ("y\n", 0, 1), ("", 130, 3)])
def test_reset_asks(
    cluster_directory: Path, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, fence: int
) -> None:
    directory = cluster_directory / "replica-0"
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert run("fence", "reset", str(directory), "--partition", "1", "--session", "1") == code
    assert fence_of(directory, 1) == fence


def test_reset_is_refused_while_a_replica_runs(cluster_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = cluster_directory / "replica-0"
    store = ReplicaStore.open(OsDisk(), str(directory), uuid.UUID(int=7), StorageConfig())
    try:
        assert run("fence", "reset", str(directory), "--partition", "1", "--session", "1", "--yes") == 1
        assert "another process has this storage directory open" in capsys.readouterr().err
    finally:
        store.close()
    assert fence_of(directory, 1) == 3


def test_reset_cannot_raise_a_fence_nor_hit_a_whole_cluster(
    cluster_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = cluster_directory / "replica-0"
    assert run("fence", "reset", str(directory), "--partition", "1", "--session", "4", "--yes") == 1
    assert "not be raised" in capsys.readouterr().err
    assert run("fence", "reset", str(cluster_directory), "--partition", "1", "--session", "1", "--yes") == 1
    assert "give one replica's" in capsys.readouterr().err
    assert fence_of(directory, 1) == 3


def test_without_a_terminal_nobody_is_asked_and_nothing_changed(
    cluster_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = cluster_directory / "replica-0"
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert run("fence", "reset", str(directory), "--partition", "1", "--session", "1") == 1
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == (
        "waltz: nothing was changed: the fence of partition 1 is lowered to 1; there is no terminal on which to ask, "
        "so say it with --yes"
    )
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before
