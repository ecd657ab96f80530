"""Commands without a cluster: exit codes, one line for an error, verify and inspect on real files."""

from __future__ import annotations

import errno
import json
import os
import shutil
import uuid
import zlib
from pathlib import Path

import numpy as np
import psutil  # type: ignore[import-untyped]
import pytest

from waltz_ray.actors import local_ray
from waltz_ray.cli import main
from waltz_ray.cli.up import cluster_name
from waltz_ray.cli.verify import _replicas_of
from waltz_ray.config import ClusterConfig, StorageConfig
from waltz_ray.errors import ClusterNotFound, InvalidInput, RayNotRunning
from waltz_ray.finding import cluster_file, ray_lookup
from waltz_ray.finding.cluster_file import ClusterFile, LocalRay
from waltz_ray.protocol.records import build_records
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.store import ReplicaStore


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as leaving:
        main(list(arguments))
    assert isinstance(leaving.value.code, int)
    return leaving.value.code


@pytest.fixture
def cluster_directory(tmp_path: Path) -> Path:
    """Two replicas with ten records in partition 1."""
    for replica_id in range(2):
        directory = str(tmp_path / f"replica-{replica_id}")
        store = ReplicaStore.create(OsDisk(), directory, uuid.UUID(int=7), 2, StorageConfig(preallocate_bytes=0))
        zeros, lengths = np.zeros(10, dtype=np.int32), np.full(10, 20, dtype=np.int32)
        columns = (zeros, zeros, lengths, np.full(10, zlib.crc32(bytes(20)), dtype=np.uint32))
        store.partition(0).open_session(2)
        partition = store.partition(1)
        partition.open_session(3)
        partition.append(3, build_records(1, 0, 1, 1, columns, bytes(200)))
        partition.sync()
        store.close()
    return tmp_path


@pytest.mark.parametrize("arguments", [["--help"], ["up", "--help"], ["status", "--help"]])
def test_help_is_success(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 0
    assert "Usage" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["up"], ["bogus"], ["status", "--bogus"], ["up", "--dir", "x", "--servers", "a"]]
)
def test_usage_errors_are_2_and_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_error_is_one_line_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", str(tmp_path / "nowhere")) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("waltz: ")
    assert captured.err.count("\n") == 1


def test_the_traceback_can_be_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WALTZ_TRACEBACK", "1")
    with pytest.raises(InvalidInput):
        main(["inspect", str(tmp_path / "nowhere")])


def test_interrupted_is_130_and_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(directory: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cluster_file, "read", interrupted)
    assert run("up", "--dir", str(tmp_path)) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_what_fails_while_an_interrupted_command_cleans_up_is_told_and_still_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(directory: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise InvalidInput("the lock cannot be given back")

    monkeypatch.setattr(cluster_file, "read", interrupted)
    assert run("up", "--dir", str(tmp_path)) == 130
    assert capsys.readouterr().err == "waltz: the lock cannot be given back\n"


def test_verify_is_ok_for_a_cluster_and_for_one_replica(
    cluster_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("verify", str(cluster_directory)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[1].split(",")[0] for line in lines[:2]] == ["ok", "ok"]
    assert lines[-1].split() == ["1", "9", "9", "9", "ok"]
    assert run("verify", str(cluster_directory / "replica-1"), "--json") == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert report["ok"]
    assert report["partitions"][1]["records"] == 10
    assert report["partitions"][1]["compared"] is None


def cut(directory: Path, last_id: int) -> None:
    """As an attacker would: records gone, and every file in order."""
    store = ReplicaStore.open(OsDisk(), str(directory), uuid.UUID(int=7), StorageConfig(preallocate_bytes=0))
    store.partition(1).open_session(3)
    store.partition(1).truncate(3, last_id)
    store.close()


def test_verify_of_a_cluster_tells_a_copy_that_was_cut(
    cluster_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(cluster_directory / "replica-1", cluster_directory / "replica-2")
    cut(cluster_directory / "replica-1", 3)
    assert run("verify", str(cluster_directory)) == 0
    told = capsys.readouterr().out
    assert "3, behind by 6" in told
    assert "BEHIND" in told
    assert run("verify", str(cluster_directory), "--json") == 0
    compared = [report["partitions"][1]["compared"] for report in json.loads(capsys.readouterr().out)]
    assert [(one["verdict"], one["behind"]) for one in compared] == [("BEHIND", 0), ("BEHIND", 6), ("BEHIND", 0)]


def test_verify_of_a_cluster_fails_when_fewer_than_a_quorum_have_what_was_committed(
    cluster_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = str(cluster_directory / "replica-0")
    store = ReplicaStore.open(OsDisk(), directory, uuid.UUID(int=7), StorageConfig(preallocate_bytes=0))
    store.partition(1).open_session(3)
    store.partition(1).set_low_water_mark(3, 9, 9)
    store.close()
    cut(cluster_directory / "replica-1", 3)
    assert run("verify", str(cluster_directory)) == 1
    assert "partition 1: transaction 9 was committed, and 1 of 2 copies have it; 2 of 2 must" in capsys.readouterr().err


def test_verify_of_a_cluster_says_what_is_not_there_and_goes_on(
    cluster_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (cluster_directory / "replica-0" / "waltz-storage.ctl").unlink()
    assert run("verify", str(cluster_directory)) == 1
    captured = capsys.readouterr()
    assert "replica-0: DAMAGED" in captured.out
    assert "replica-1: ok" in captured.out
    assert "there is no control file" in captured.err


@pytest.mark.parametrize("name", ["waltz-storage.ctl", f"1/{0:019d}.seg", f"1/{0:019d}.idx"])
def test_verify_of_a_cluster_names_what_cannot_be_read_and_goes_on(
    name: str, cluster_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where a sector is bad: here the kernel says so of what is no file."""
    bad = cluster_directory / "replica-0" / name
    bad.unlink()
    bad.mkdir()
    assert run("verify", str(cluster_directory)) == 1
    captured = capsys.readouterr()
    assert "replica-0: DAMAGED" in captured.out
    assert "replica-1: ok" in captured.out
    assert f"{bad}" in captured.err
    assert "it cannot be read: Is a directory" in captured.err


def test_replicas_of_different_clusters_are_told(cluster_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(cluster_directory / "replica-2")
    ReplicaStore.create(OsDisk(), directory, uuid.UUID(int=8), 2, StorageConfig(preallocate_bytes=0)).close()
    assert run("verify", str(cluster_directory)) == 1
    assert "belong to different clusters" in capsys.readouterr().err


def test_verify_names_the_damage_and_exits_1(cluster_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    segment = next((cluster_directory / "replica-1" / "1").glob("*.seg"))
    damaged = bytearray(segment.read_bytes())
    damaged[128 + 3 * 60 + 45] ^= 1
    segment.write_bytes(damaged)
    assert run("verify", str(cluster_directory)) == 1
    captured = capsys.readouterr()
    assert "replica-0: ok" in captured.out
    assert "replica-1: DAMAGED" in captured.out
    assert f"{segment}: damaged at byte" in captured.err
    assert run("verify", str(cluster_directory), "--json") == 1
    reports = json.loads(capsys.readouterr().out)
    assert [report["ok"] for report in reports] == [True, False]
    assert reports[1]["damages"][0]["file"] == str(segment)


def test_a_directory_in_use_is_not_verified_unless_told(
    cluster_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = str(cluster_directory / "replica-0")
    store = ReplicaStore.open(OsDisk(), directory, uuid.UUID(int=7), StorageConfig())
    try:
        assert run("verify", directory) == 1
        assert directory in capsys.readouterr().err
        assert run("verify", directory, "--running") == 0
    finally:
        store.close()


def test_inspect_shows_what_is_there(cluster_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", str(cluster_directory)) == 0
    assert str(uuid.UUID(int=7)) in capsys.readouterr().out
    assert run("inspect", str(cluster_directory), "--json") == 0
    described = json.loads(capsys.readouterr().out)
    assert [each["partitions"][1]["last_id"] for each in described] == [9, 9]


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_names_with_digits_that_are_no_numbers_are_somebodys(command: str, cluster_directory: Path) -> None:
    replica = cluster_directory / "replica-0"
    for each in (cluster_directory / "replica-\u00b2", replica / "\u00b2"):
        each.mkdir()
    (replica / "1" / ("\u00b2" * 19 + ".seg")).write_text("of somebody")
    assert run(command, str(cluster_directory)) == 0
    ReplicaStore.open(OsDisk(), str(replica), uuid.UUID(int=7), StorageConfig()).close()


def test_inspect_shows_what_was_made_at_no_time_that_can_be(
    cluster_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = cluster_directory / "replica-0" / "waltz-storage.ctl"
    raw = bytearray(path.read_bytes())
    raw[4] = 0x7F  # of milliseconds since 1970 the first byte, of which no checksum knows
    path.write_bytes(raw)
    assert run("inspect", str(cluster_directory)) == 0
    out = capsys.readouterr().out
    assert "ms since 1970), by waltz_ray" in out
    assert out.count(str(uuid.UUID(int=7))) == 2


# -- finding clusters ---------------------------------------------------------------------------------------


def cluster(directory: Path, **more: object) -> ClusterFile:
    values: dict[str, object] = {"name": "c", "directory": str(directory), "partitions": 4, "replicas": 3, "servers": 2}
    return ClusterFile(**values | more)  # type: ignore[arg-type]


def this_process() -> LocalRay:
    return LocalRay("127.0.0.1:1", "", os.getpid(), psutil.Process().create_time())


def test_the_cluster_file_is_read_as_written(tmp_path: Path) -> None:
    assert cluster_file.read(tmp_path) is None
    written = cluster(tmp_path, ray=this_process(), address="127.0.0.1:1")
    cluster_file.write(written)
    assert cluster_file.read(tmp_path) == written
    assert written.running
    assert not written.stopped().running
    assert os.listdir(tmp_path) == ["cluster.json"]


def test_a_pid_that_was_given_to_somebody_else_is_not_ours(tmp_path: Path) -> None:
    ours = this_process()
    stranger = LocalRay(ours.address, "", ours.pid, ours.started_at - 100)
    assert stranger.process() is None
    assert not cluster(tmp_path, ray=stranger, address="127.0.0.1:1").running


@pytest.mark.parametrize("text", ["{", "{}", '{"version": 9}', '{"version": 1, "name": "c"}'])
def test_a_damaged_cluster_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(InvalidInput, match=r"cluster\.json"):
        cluster_file.read(tmp_path)


def test_not_finding_a_cluster_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterNotFound, match="holds no cluster; make one with: waltz up"):
        cluster_file.find_running(str(tmp_path))
    cluster_file.write(cluster(tmp_path))
    with pytest.raises(ClusterNotFound, match="not running; start it with: waltz up"):
        cluster_file.find_running(str(tmp_path))
    with pytest.raises(ClusterNotFound, match="holds cluster 'c', not 'd'"):
        cluster_file.find_running(str(tmp_path), "d")
    running = [cluster(tmp_path / "a", name="a"), cluster(tmp_path / "b", name="b")]
    monkeypatch.setattr(cluster_file, "running_clusters", lambda: running)
    assert cluster_file.find_running(name="b") is running[1]
    with pytest.raises(
        ClusterNotFound, match=r"several clusters run here: a .*, b .*; say which by its directory \(--dir, WALTZ_DIR\)"
    ):
        cluster_file.find_running()
    with pytest.raises(ClusterNotFound, match=r"no cluster 'x'"):
        cluster_file.find_running(name="x")
    monkeypatch.setattr(cluster_file, "running_clusters", lambda: running[:1])
    assert cluster_file.find_running() is running[0]


@pytest.mark.parametrize(
    ("directory", "why"),
    [
        ("{tmp}/file", "it is a file"),
        ("{tmp}/file/below", "it is a file"),
        ("/proc/waltz", "No such file or directory"),
    ],
)
def test_up_where_no_cluster_can_be(
    tmp_path: Path, directory: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("kept")
    directory = directory.format(tmp=tmp_path)
    assert run("up", "--dir", directory) == 1
    assert capsys.readouterr().err == f"waltz: {directory} cannot be a cluster's directory: {why}; give another --dir\n"
    assert (tmp_path / "file").read_text() == "kept"


def test_up_without_permission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(path: str, mode: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr("waltz_ray.cluster_directory.open", refused, raising=False)
    assert run("up", "--dir", str(tmp_path)) == 1
    error = capsys.readouterr().err
    assert error == f"waltz: {tmp_path} cannot be a cluster's directory: Permission denied; give another --dir\n"


@pytest.mark.parametrize(
    ("directory", "name"),
    [("/data/bank", "bank"), ("/data/my bank (2)", "my-bank-2"), ("/data/zookeeper", "waltz"), ("/", "waltz")],
)
def test_a_cluster_is_named_after_its_directory(directory: str, name: str) -> None:
    assert cluster_name(directory) == name
    assert ClusterConfig(name).name == name


def test_down_where_nothing_runs_is_well(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(cluster_file, "running_clusters", list)
    monkeypatch.setattr(ray_lookup, "here", lambda: "")  # a test before this one may have joined one
    for name in ("WALTZ_DIR", "WALTZ_CLUSTER", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    assert run("down") == 0
    assert capsys.readouterr().err == "no cluster runs on this machine\n"
    assert run("down", "--cluster", "x") == 1
    assert "no cluster 'x' of this machine runs (running: none)" in capsys.readouterr().err


def test_an_address_beside_a_directory_is_not_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster_file.write(cluster(tmp_path, ray=this_process(), address="127.0.0.1:1"))
    for command in ("status", "down"):
        assert run(command, "--dir", str(tmp_path), "--address", "127.0.0.1:2") == 1
        assert "runs on the Ray at 127.0.0.1:1, not at 127.0.0.1:2" in capsys.readouterr().err


def test_a_ray_that_does_not_start_in_time_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "start.log").write_text("at it\n\n")
    head = LocalRay("LOCALHOST:1", "", os.getpid(), psutil.Process().create_time(), str(tmp_path))
    with pytest.raises(
        RayNotRunning, match=r"not start within 0 s: at it .all of it: .*start\.log.; .* with --timeout"
    ):
        local_ray.wait_until_started(head, 0.0)


def test_the_path_of_a_socket_is_short_whatever_the_directory_is_called(tmp_path: Path) -> None:
    socket = "/session_2026-11-22_11-08-50_758631_4194304/sockets/plasma_store"
    for name in ("c", "c" * 100, "donn\u00e9es"):
        directory = tmp_path / name
        directory.mkdir()
        for _ in range(2):  # the second time there is one already
            temporary = local_ray._temporary(directory)
            assert len(f"{temporary}{socket}") <= 107
            assert str(temporary).isascii()
            assert temporary.resolve() == directory / "ray"
            if temporary.is_symlink():
                shutil.rmtree(temporary.parent)


@pytest.mark.parametrize("name", ["ray", "ray.before"])
def test_somebodys_files_are_not_taken_for_those_of_a_ray(tmp_path: Path, name: str) -> None:
    """They would be removed two starts later."""
    file = tmp_path / name / "thesis.tex"
    file.parent.mkdir()
    file.touch()
    with pytest.raises(InvalidInput, match=f"{name} is there, and no Ray was started in it by waltz"):
        local_ray.launch(tmp_path)
    assert file.exists()


@pytest.mark.parametrize("at", range(3))
def test_who_is_killed_while_it_removes_the_files_of_a_ray_goes_on_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    for name in ("ray", "ray.before"):
        (tmp_path / name / "session_1" / "logs").mkdir(parents=True)
        (tmp_path / name / "session_2").mkdir()
        (tmp_path / name / "start.log").touch()
    left = [at]

    def killed(path: Path, ignore_errors: bool = False) -> None:
        """What is a file goes first."""
        for each in [*path.iterdir()]:
            if each.is_file():
                each.unlink()
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        rmtree(path)

    rmtree = shutil.rmtree
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            local_ray._temporary(tmp_path)
    temporary = local_ray._temporary(tmp_path)
    assert temporary.resolve() == tmp_path / "ray"
    if temporary.is_symlink():
        shutil.rmtree(temporary.parent)
    assert sorted(path.name for path in (tmp_path / "ray.before").iterdir()) == ["session_1", "session_2", "start.log"]


def test_verify_knows_on_how_many_replicas_a_partition_is(tmp_path: Path) -> None:
    assert _replicas_of(str(tmp_path), 2) == (2, 0), "a directory that is no cluster's: what is there"
    cluster_file.write(ClusterFile("c", str(tmp_path), 4, 5, 2, replication=3))
    assert _replicas_of(str(tmp_path), 2) == (5, 3)
