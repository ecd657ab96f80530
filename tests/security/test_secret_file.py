"""The file with the cluster's secret."""

from __future__ import annotations

import os
import pickle
import stat
import threading
from pathlib import Path

import pytest

from waltz_ray.errors import SecretUnusable
from waltz_ray.protocol.authentication import Role
from waltz_ray.security.handshakes import Keyring
from waltz_ray.security.secret_file import SecretFile, make_secret


def key(file: SecretFile) -> bytes:
    return file.secret().credential(Role.SERVER)._key


def test_it_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "cluster.secret"
    assert make_secret(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before, first = path.read_text(), key(SecretFile(str(path)))
    assert not make_secret(str(path))
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["cluster.secret"]
    other = tmp_path / "other"
    make_secret(str(other))
    assert key(SecretFile(str(other))) != first


def test_what_an_attempt_that_was_killed_has_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "cluster.secret.new").write_text("waltz-se")
    make_secret(str(tmp_path / "cluster.secret"))
    assert os.listdir(tmp_path) == ["cluster.secret"]
    key(SecretFile(str(tmp_path / "cluster.secret")))


def test_several_clusters_that_begin_with_one_file_at_once_have_the_same(tmp_path: Path) -> None:
    """One of them was refused: what it had just written was taken away, or given the name by another, half."""
    path, together, made = str(tmp_path / "secret"), threading.Barrier(8), list[bool]()

    def begin() -> None:
        together.wait()
        made.append(make_secret(path))

    threads = [threading.Thread(target=begin) for _ in range(together.parties)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(made) == [False] * 7 + [True]
    assert os.listdir(tmp_path) == ["secret"]


def test_it_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    path, other = tmp_path / "cluster.secret", tmp_path / "other"
    make_secret(str(path))
    file = SecretFile(str(path))
    before = key(file)
    assert file.secret() is file.secret()
    make_secret(str(other))
    other.rename(path)
    assert key(file) != before


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_one_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "cluster.secret"
    make_secret(str(path))
    path.chmod(mode)
    with pytest.raises(SecretUnusable, match=f"can be read by others .* chmod 600 {path}"):
        SecretFile(str(path)).secret()


@pytest.mark.parametrize(
    "content",
    ["", "waltz-secret-1 ", f"waltz-secret-1 {'a' * 63}", f"waltz-secret-2 {'a' * 64}", "\xff" * 100, "g" * 64],
)
def test_one_that_is_none_is_refused_and_not_shown(tmp_path: Path, content: str) -> None:
    path = tmp_path / "cluster.secret"
    path.write_text(content, encoding="latin-1")
    path.chmod(0o600)
    with pytest.raises(SecretUnusable, match="does not hold a cluster's secret") as refused:
        SecretFile(str(path)).secret()
    assert "aaaa" not in str(refused.value)
    with pytest.raises(SecretUnusable):
        make_secret(str(path))  # nor is it replaced
    assert path.read_text(encoding="latin-1") == content


def test_one_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(SecretUnusable, match=r"No such file .* every other node needs a copy"):
        SecretFile(str(tmp_path / "none")).secret()
    with pytest.raises(SecretUnusable, match="cannot be written"):
        make_secret(str(tmp_path / "no" / "where"))


def test_what_travels_is_a_ticket(tmp_path: Path) -> None:
    path = str(tmp_path / "cluster.secret")
    make_secret(path)
    file = SecretFile(path)
    pickled = pickle.dumps(Keyring.of_reader(file))
    value = Path(path).read_text().split()[1]
    assert bytes.fromhex(value) not in pickled
    assert value.encode() not in pickled
    Path(path).unlink()
    assert pickle.loads(pickled).open(3).begin()[1] == Role.READER
    make_secret(path)
    with pytest.raises(TypeError, match="leave its process"):
        pickle.dumps(Keyring.of_server(file))


def test_of_a_file_of_roots_a_group_may_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kubernetes mounts it for a process that is not root."""
    path = tmp_path / "cluster.secret"
    make_secret(str(path))
    if path.stat().st_uid != 0:
        pytest.skip("only root can make a file of root's")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    path.chmod(0o440)
    assert SecretFile(str(path)).secret()
    for mode in (0o460, 0o444):
        path.chmod(mode)
        with pytest.raises(SecretUnusable, match="can be read by others"):
            SecretFile(str(path)).secret()
