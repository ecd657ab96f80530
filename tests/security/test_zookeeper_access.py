"""ZooKeeper's nodes are the cluster's, by a name and a password: who has not got them reads, and changes nothing."""

from __future__ import annotations

import gc
import socket
import ssl
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.zookeeper_fixture import zookeeper_server
from waltz_ray.coordination.api import Write
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.coordination.zookeeper_access import (
    NodeAccess,
    ZooKeeperAccess,
    access_of_node,
    zookeeper_access,
)
from waltz_ray.errors import ConfigError, ZooKeeperRefused, ZooKeeperUnreachable
from waltz_ray.net.tls import server_context
from waltz_ray.protocol.placement import Assignment
from waltz_ray.security.certificates import make_certificates

__all__ = ["zookeeper_server"]

OWNER, OTHER = ZooKeeperAccess("waltz", "a password"), ZooKeeperAccess("waltz", "another")


# ---- what the environment says


def auth_file(directory: Path, text: str, mode: int = 0o600) -> dict[str, str]:
    path = directory / "zookeeper.auth"
    path.write_text(text)
    path.chmod(mode)
    return {"WALTZ_ZOOKEEPER_AUTH_FILE": str(path)}


def test_name_and_password_come_from_a_file(tmp_path: Path) -> None:
    found = zookeeper_access(auth_file(tmp_path, "waltz:a password\n"))
    assert found == OWNER
    assert "a password" not in repr(found)
    assert zookeeper_access({}) == ZooKeeperAccess()


@pytest.mark.parametrize("text", ["", "waltz", ":x", "waltz:", "a:b\nc:d", "a:" + "b" * 2000])
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="does not hold a name and a password for ZooKeeper"):
        zookeeper_access(auth_file(tmp_path, text))


def test_a_file_that_others_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="chmod 600"):
        zookeeper_access(auth_file(tmp_path, "waltz:x", 0o640))
    with pytest.raises(ConfigError, match="WALTZ_ZOOKEEPER_AUTH_FILE"):
        zookeeper_access({"WALTZ_ZOOKEEPER_AUTH_FILE": str(tmp_path / "none")})
    with pytest.raises(ConfigError, match="the first alone, or all three"):
        zookeeper_access({"WALTZ_ZOOKEEPER_TLS_KEY": "x"})


def test_what_holds_passwords_is_closed_and_the_counter_of_clients_open() -> None:
    assert access_of_node("/c/ids/client") is NodeAccess.OPEN
    assert access_of_node("/c/ids/server") is NodeAccess.READ
    assert access_of_node("/c/store/access") is NodeAccess.READ
    assert {access_of_node(f"/c/store/topics/{each}") for each in ("access", "secrets")} == {NodeAccess.CLOSED}
    assert access_of_node("/c/store/topics/flow") is NodeAccess.READ


# ---- on a real server


@pytest.fixture
def owner(zookeeper_server: str) -> Iterator[ClusterStore]:
    client = KazooZooKeeper(zookeeper_server, access=OWNER)
    store = ClusterStore(client, f"c{uuid.uuid4().hex[:12]}")
    store.initialize(2, [0, 1, 2], {})
    yield store
    client.close()


@pytest.mark.cluster
@pytest.mark.parametrize("who", [ZooKeeperAccess(), OTHER], ids=["nobody", "wrong password"])
def test_others_find_the_cluster_and_change_nothing(
    owner: ClusterStore, zookeeper_server: str, who: ZooKeeperAccess
) -> None:
    owner.set_assignment(Assignment(), owner.assignment()[1])
    topics, root = f"/{owner.cluster}/store/topics", f"/{owner.cluster}"
    owner.zookeeper.create(f"{topics}/secrets", b"{}", make_parents=True)
    owner.zookeeper.create(f"{topics}/flow", b"{}")
    assert owner.access.replace(b"{}", -1)
    client = KazooZooKeeper(zookeeper_server, access=who)
    try:
        other = ClusterStore(client, owner.cluster)
        assert other.info().cluster_key == owner.info().cluster_key
        assert other.assignment() == owner.assignment()
        assert other.access.rules() is not None
        assert client.get(f"{topics}/flow")[0] == b"{}"
        assert other.next_client_id() != owner.next_client_id()
        for change in (
            other.check_may_change,
            lambda: other.set_assignment(Assignment(), other.assignment()[1]),
            lambda: other.access.replace(b"{}", 0),
            lambda: other.access.remove(0),
            lambda: client.create(f"{root}/ids/server/x", b""),
            lambda: client.create(f"{root}/store/more", b""),
            lambda: client.delete(f"{topics}/flow"),
            lambda: client.get(f"{topics}/secrets"),
            lambda: client.write_all([Write(f"{root}/store/more", b"", None)]),
            lambda: client.delete(f"{root}/ids/client"),
        ):
            with pytest.raises(ZooKeeperRefused, match="WALTZ_ZOOKEEPER_AUTH_FILE names the file"):
                change()
    finally:
        client.close()


@pytest.mark.cluster
def test_no_log_has_what_nodes_hold_or_the_password(zookeeper_server: str, caplog: pytest.LogCaptureFixture) -> None:
    """Not even that of an application which wants to know everything."""
    caplog.set_level(1)
    path = f"/{uuid.uuid4().hex}"
    client = KazooZooKeeper(zookeeper_server, access=OWNER)
    try:
        client.create(path, b"her password")
        assert client.get(path) == (b"her password", 0)
        client.delete(path)
    finally:
        client.close()
    assert f"Create {path}" in caplog.text
    assert "password" not in caplog.text


@pytest.mark.cluster
def test_a_second_process_of_the_cluster_may_everything(owner: ClusterStore, zookeeper_server: str) -> None:
    client = KazooZooKeeper(zookeeper_server, access=OWNER)
    try:
        again = ClusterStore(client, owner.cluster)
        again.check_may_change()
        assert again.info() == owner.info(), "it is only looked at"
        again.set_assignment(Assignment(), again.assignment()[1])
        assert again.access.replace(b"{}", -1)
    finally:
        client.close()


class _InFront:
    """Ends TLS in front of a ZooKeeper, one connection after the other."""

    def __init__(self, behind: str, context: ssl.SSLContext) -> None:
        host, _, port = behind.partition(":")
        self._behind, self._context = (host, int(port)), context
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.hosts = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                plain = self._listening.accept()[0]
            except OSError:
                return  # closed
            try:
                encrypted = self._context.wrap_socket(plain, server_side=True)
            except OSError:
                continue
            behind = socket.create_connection(self._behind)
            self._start(self._copy, encrypted, behind)
            self._start(self._copy, behind, encrypted)

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
        except OSError:
            return  # one of the two has gone
        finally:
            for each in (source, target):
                each.close()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


# kazoo leaves sockets to the collector whose handshake has failed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.cluster
def test_zookeeper_is_spoken_to_over_tls_and_has_to_be_who_it_should(zookeeper_server: str, tmp_path: Path) -> None:
    make_certificates(tmp_path / "right", ["127.0.0.1"], ["waltz"], 2)
    make_certificates(tmp_path / "wrong", ["127.0.0.1"], ["waltz"], 2)
    files = {name: str(tmp_path / "right" / name) for name in ("server.pem", "server.key", "authority.pem")}
    front = _InFront(zookeeper_server, server_context(files["server.pem"], files["server.key"], files["authority.pem"]))
    own = str(tmp_path / "right" / "waltz.pem"), str(tmp_path / "right" / "waltz.key")
    try:
        client = KazooZooKeeper(front.hosts, access=ZooKeeperAccess("", "", files["authority.pem"], *own))
        assert client.exists("/zookeeper") is not None
        client.close()
        for wrong in (
            ZooKeeperAccess("", "", str(tmp_path / "wrong" / "authority.pem"), *own),
            ZooKeeperAccess("", "", files["authority.pem"]),
        ):
            with pytest.raises(ZooKeeperUnreachable):
                KazooZooKeeper(front.hosts, connect_timeout_s=1.0, access=wrong)
        gc.collect()
    finally:
        front.close()
