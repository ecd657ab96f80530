"""``waltz certs make``: what it makes is believed where it should be, and nowhere else."""

from __future__ import annotations

import errno
import json
import os
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509

from waltz_ray.cli import main
from waltz_ray.errors import InvalidInput
from waltz_ray.net.tls import client_context, server_context
from waltz_ray.security.certificates import Made, make_certificates


def peer_names(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> str:
    """The name of the client's certificate as the server sees it, "" = none. ssl.SSLError of either side."""
    here, there = socket.socketpair()
    names: list[str] = []

    def serve() -> None:
        try:
            with server.wrap_socket(there, server_side=True) as accepted:
                raw = accepted.getpeercert(binary_form=True)
                if raw is not None:
                    names.append(x509.load_der_x509_certificate(raw).subject.rfc4514_string().removeprefix("CN="))
                accepted.sendall(b"x")
        except OSError:
            there.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(here, server_hostname=host) as connected:
            if connected.recv(1) != b"x":
                raise ssl.SSLError("the server has closed")
    finally:
        here.close()
        thread.join(20)
    return "".join(names)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    make_certificates(tmp_path / "c", ["127.0.0.1", "db.example.org"], ["ann", "bob"], 2)
    return tmp_path / "c"


def server_of(directory: Path, mutual: bool) -> ssl.SSLContext:
    authority = str(directory / "authority.pem") if mutual else None
    return server_context(str(directory / "server.pem"), str(directory / "server.key"), authority)


def client_of(directory: Path, name: str = "", authority: Path | None = None) -> ssl.SSLContext:
    own = (str(directory / f"{name}.pem"), str(directory / f"{name}.key")) if name else (None, None)
    return client_context(str((authority or directory) / "authority.pem"), *own)


@pytest.mark.parametrize("host", ["127.0.0.1", "db.example.org"])
def test_who_is_vouched_for_is_believed_by_name(made: Path, host: str) -> None:
    assert peer_names(server_of(made, mutual=True), client_of(made, "ann"), host) == "ann"
    assert peer_names(server_of(made, mutual=True), client_of(made, "bob"), host) == "bob"
    assert peer_names(server_of(made, mutual=False), client_of(made), host) == ""


def test_everybody_else_is_not(made: Path, tmp_path: Path) -> None:
    make_certificates(tmp_path / "other", ["127.0.0.1"], ["ann"], 2)
    with pytest.raises(OSError, match="certificate is not valid for"):
        peer_names(server_of(made, mutual=False), client_of(made), "elsewhere.example.org")
    with pytest.raises(OSError, match="certificate verify failed"):
        peer_names(server_of(made, mutual=False), client_of(made, authority=tmp_path / "other"), "127.0.0.1")
    for wrong in (client_of(made), client_of(tmp_path / "other", "ann", authority=made), client_of(made, "server")):
        with pytest.raises(OSError):
            peer_names(server_of(made, mutual=True), wrong, "127.0.0.1")


def test_what_is_there_stays_and_only_its_owner_reads_a_key(made: Path) -> None:
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    again = make_certificates(made, ["127.0.0.1"], ["ann", "cid"], 2)
    assert [(each.name, each.new) for each in again] == [
        ("authority", False),
        ("server", False),
        ("ann", False),
        ("cid", True),
    ]
    assert {name: (made / name).read_bytes() for name in before} == before
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in made.glob("*.key"))
    assert peer_names(server_of(made, mutual=True), client_of(made, "cid"), "127.0.0.1") == "cid"


@pytest.mark.parametrize("name", ["", "../x", "a/b", "x" * 65, "a\nb"])
def test_odd_names_are_refused(tmp_path: Path, name: str) -> None:
    for hosts, clients in (([name], []), ([], [name])):
        with pytest.raises(InvalidInput, match="cannot be in a certificate"):
            make_certificates(tmp_path / "c", hosts, clients, 2)
    assert list(tmp_path.iterdir()) == []


def test_a_host_whose_name_is_not_ascii_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"'ü' cannot be a server's name: .*A-label"):
        make_certificates(tmp_path / "c", ["localhost", "ü"], ["ü"], 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["authority", "server"])
def test_names_of_other_files_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot be called"):
        make_certificates(tmp_path, [], [name], 2)


def test_files_that_are_no_authoritys_are_refused(made: Path, tmp_path: Path) -> None:
    make_certificates(tmp_path / "other", [], [], 2)
    (made / "authority.key").write_bytes((tmp_path / "other/authority.key").read_bytes())
    with pytest.raises(InvalidInput, match=r"authority\.key is not the key of"):
        make_certificates(made, [], ["new"], 2)
    (made / "authority.key").write_text("no key")
    with pytest.raises(InvalidInput, match="move both away"):
        make_certificates(made, [], ["new"], 2)
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="no certificates can be made"):
        make_certificates(tmp_path / "file", [], [], 2)


@pytest.mark.parametrize("name", ["authority.key", "authority.pem", "server.key", "server.pem", "ann.key"])
def test_half_of_what_is_to_be_made_stays(tmp_path: Path, name: str) -> None:
    """It may be the only one of its kind: a server.key whose certificate is called server.crt."""
    (tmp_path / name).write_text("of somebody")
    with pytest.raises(InvalidInput, match=f"{name} is there and .* is not: put that beside it, or move"):
        make_certificates(tmp_path, ["127.0.0.1"], ["ann"], 2)
    assert (tmp_path / name).read_text() == "of somebody"


def test_what_could_not_be_finished_is_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", full)
        with pytest.raises(InvalidInput, match="No space left"):
            make_certificates(tmp_path, ["127.0.0.1"], [], 2)
    assert not list(tmp_path.glob("*.key"))
    assert all(each.new for each in make_certificates(tmp_path, ["127.0.0.1"], [], 2))
    assert not list(tmp_path.glob("*.new"))


def test_several_who_make_them_at_once_have_the_same(tmp_path: Path) -> None:
    """The second one wrote its certificate where the first one's lay, which then had its name beside another key."""
    together, made = threading.Barrier(6), list[list[Made]]()

    def make() -> None:
        together.wait()
        made.append(make_certificates(tmp_path, ["127.0.0.1"], ["ann"], 2))

    threads = [threading.Thread(target=make) for _ in range(together.parties)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(sum(each.new for each in one) for one in made) == [0, 0, 0, 0, 0, 3]
    assert peer_names(server_of(tmp_path, mutual=True), client_of(tmp_path, "ann"), "127.0.0.1") == "ann"


@pytest.mark.parametrize("name", ["authority", "server", "ann"])
def test_a_kill_between_a_key_and_its_certificate_leaves_what_the_same_command_finishes(
    tmp_path: Path, name: str
) -> None:
    make_certificates(tmp_path, ["127.0.0.1"], ["ann"], 2)
    (tmp_path / f"{name}.pem").rename(tmp_path / f"{name}.pem.new")
    assert not any(each.new for each in make_certificates(tmp_path, ["127.0.0.1"], ["ann"], 2))
    assert peer_names(server_of(tmp_path, mutual=True), client_of(tmp_path, "ann"), "127.0.0.1") == "ann"
    (tmp_path / f"{name}.pem").rename(tmp_path / f"{name}.pem.new")
    (tmp_path / f"{name}.key").write_text("of somebody")
    with pytest.raises(InvalidInput, match=f"{name}.key is there and .* is not"):
        make_certificates(tmp_path, ["127.0.0.1"], ["ann"], 2)


def test_what_has_its_name_is_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is never made again: a loss of power must not leave it empty."""
    synced: set[str] = set()
    fsync, rename = os.fsync, Path.rename

    def noted(handle: int) -> None:
        fsync(handle)
        synced.add(os.readlink(f"/proc/self/fd/{handle}"))

    def renamed(old: Path, new: Path) -> Path:
        assert {str(old), str(new.with_suffix(".key"))} <= synced
        synced.clear()
        return rename(old, new)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(Path, "rename", renamed)
    make_certificates(tmp_path, ["127.0.0.1"], ["ann"], 2)
    assert synced == {str(tmp_path)}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for expected in (True, False):
        with pytest.raises(SystemExit) as left:
            main(["certs", "make", str(tmp_path / "c"), "--client", "ann", "--host", "db.example.org", "--json"])
        assert left.value.code == 0
        told = json.loads(capsys.readouterr().out)
        assert {name: each["new"] for name, each in told.items()} == dict.fromkeys(told, expected)
        assert list(told) == ["authority", "server", "ann"]
    for host in ("db.example.org", "127.0.0.1"):  # which is where a cluster of waltz up listens
        assert peer_names(server_of(tmp_path / "c", mutual=True), client_of(tmp_path / "c", "ann"), host) == "ann"
