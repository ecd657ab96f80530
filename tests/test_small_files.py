"""Files that people write, and names that survive a loss of power."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from waltz_spark.streams.configuration import read_config

from tests.backup.memory_source import MemorySource, Quiet
from waltz_ray.backup.pace import Pace
from waltz_ray.backup.restore import restore
from waltz_ray.backup.run import BackupChoices, back_up
from waltz_ray.backup.target import Target
from waltz_ray.cli import access
from waltz_ray.cluster_directory import one_at_a_time
from waltz_ray.deployment.file import read
from waltz_ray.errors import InvalidInput, VersionConflict, WaltzError
from waltz_ray.security.client_rights import read_rights
from waltz_ray.small_files import MOST_FILE_BYTES, alone_in, make_directories, others_read, read_small_file


def synced_names(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of the files and directories that are synced from now on."""
    names: list[str] = []
    fsync = os.fsync

    def noted(handle: int) -> None:
        fsync(handle)
        names.append(os.readlink(f"/proc/self/fd/{handle}"))

    monkeypatch.setattr(os, "fsync", noted)
    return names


def test_directories_that_had_to_be_made_survive_a_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = synced_names(monkeypatch)
    make_directories(tmp_path / "a" / "b" / "c", 0o750)
    assert synced == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o750
    make_directories(tmp_path / "a" / "b", 0o750)
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "d"):
        with pytest.raises(FileExistsError):
            make_directories(path, 0o750)
    assert synced[3:] == []


def test_so_do_those_of_a_cluster_a_restore_and_a_backup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in them is synced file by file, and gone with the name of any of them."""
    synced = synced_names(monkeypatch)
    with one_at_a_time(str(tmp_path / "up" / "here"), print):
        assert {str(tmp_path), str(tmp_path / "up")} <= {*synced}
    synced.clear()
    target = Target.at(str(tmp_path / "to" / "there" / "b"))
    back_up(MemorySource(), target, BackupChoices(), Pace(None), Quiet())
    made = [tmp_path, *(tmp_path / name for name in ("to", "to/there", "to/there/b", "to/there/b/manifests"))]
    assert {*map(str, made)} <= {*synced}
    synced.clear()
    restore(target, str(tmp_path / "from" / "r"), Quiet())
    assert {str(tmp_path), str(tmp_path / "from"), str(tmp_path / "from" / "r")} <= {*synced}


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for data in (b"", b"\xff\x00", bytes(MOST_FILE_BYTES)):
        path.write_bytes(data)
        assert read_small_file(path) == data
    path.write_bytes(bytes(MOST_FILE_BYTES + 1))
    with pytest.raises(InvalidInput, match=f"file has more than {MOST_FILE_BYTES} bytes; is this the right file?"):
        read_small_file(path)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for name, why in (("nobody", "No such file"), (".", "Is a directory"), ("loop", "Too many levels")):
        with pytest.raises(InvalidInput, match=f"cannot be read: {why}"):
            read_small_file(tmp_path / name)


@pytest.mark.parametrize("reader", [read, read_rights, read_config], ids=["deployment", "rights", "streams"])
def test_what_never_ends_is_not_read_to_its_end(reader: object) -> None:
    assert callable(reader)
    with pytest.raises(WaltzError, match="/dev/zero has more than"):
        reader(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("owner", "mode", "reader", "others"),
    [
        *[(1000, 0o600, 1000, False), (1000, 0o640, 1000, True), (1000, 0o602, 1000, True)],
        *[(1001, 0o644, 1000, True), (1001, 0o644, 0, True), (1001, 0o600, 0, False)],  # somebody else's
        *[(0, 0o644, 1000, False), (0, 0o644, 0, True)],  # as a secret of Kubernetes is mounted
    ],
)
def test_whether_others_read_what_is_secret(
    owner: int, mode: int, reader: int, others: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: reader)
    assert others_read(os.stat_result((mode, 0, 0, 1, owner, 0, 0, 0, 0, 0))) is others


def test_a_token_is_on_the_disk_before_the_cluster_knows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rights = MagicMock(before=b'{"clients": {}}')
    rights.__enter__.return_value = rights
    synced, known = synced_names(monkeypatch), list[list[str]]()
    rights.replace.side_effect = lambda data: known.append([*synced])
    monkeypatch.setattr(access, "_Rights", lambda *where: rights)
    access.token("ann", tmp_path / "ann.token")
    assert known == [[str(tmp_path / "ann.token"), str(tmp_path)]]
    rights.replace.side_effect = VersionConflict("somebody else")
    with pytest.raises(VersionConflict):
        access.token("ann", tmp_path / "again.token")
    assert [each.name for each in tmp_path.iterdir()] == ["ann.token"]


def test_where_directories_cannot_be_locked_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(handle: int, how: int) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "flock", refused)
    error = errno.EBADF  # as NFS has it of what is not open for writing
    with alone_in(tmp_path):
        pass
    error = errno.EIO
    with pytest.raises(OSError, match="Input/output error"), alone_in(tmp_path):
        pass
