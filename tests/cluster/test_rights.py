"""Rights of clients on a cluster with TLS: over real ports, changed while it runs."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.harness import FAST, Cluster, wait_until
from tests.cluster.test_original_protocol import OriginalClient, mounted
from waltz_ray.cli import main
from waltz_ray.client.client import WaltzClient
from waltz_ray.client.readers.ranges import Range
from waltz_ray.client.readers.reading import Reading
from waltz_ray.config import ClientConfig
from waltz_ray.connecting import connect
from waltz_ray.errors import AccessRefused, ConfigError, PartitionNotReady
from waltz_ray.net.tls import client_context
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.original import MountRequest, MountResponse, MountState
from waltz_ray.security.certificates import make_certificates
from waltz_ray.wire.access_document import decode_access_rules

pytestmark = pytest.mark.cluster

CLIENTS = ("reader", "appender", "eve")
RIGHTS = {
    "clients": {"reader": {}, "appender": {}},
    "rights": [
        {"client": "reader", "space": "*", "may": ["read"]},
        {"client": "appender", "space": "log", "may": ["append"]},
    ],
}

Access = Callable[..., int]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    make_certificates(directory, ["127.0.0.1"], CLIENTS, 2)
    make_certificates(directory / "strange", ["127.0.0.1"], ["reader"], 2)
    return directory


@pytest.fixture
def cluster(tmp_path: Path, zookeeper_server: str, files: Path) -> Iterator[Cluster]:
    config = replace(
        FAST,
        tls_certificate=str(files / "server.pem"),
        tls_key=str(files / "server.key"),
        tls_clients=str(files / "authority.pem"),
        tls_certificates_optional=True,
    )
    with Cluster(tmp_path, zookeeper_server, config=config) as running:
        running.wait_members(0, {0, 1, 2})
        try:
            yield running
        finally:
            for client in OriginalClient.made:
                client.socket.close()
            OriginalClient.made.clear()


@pytest.fixture
def access(cluster: Cluster, tmp_path: Path) -> Access:
    """``waltz access``, on this cluster, until its servers have heard of it; ``rights``: the file's content."""

    def have_heard() -> bool:
        for server in cluster.servers.values():
            assert server.guard is not None
            data, version = server.store.access.document()
            if server.guard.rules != (None if version < 0 else decode_access_rules(data)):
                return False
        return True

    def run(command: str, *arguments: str, rights: object = None) -> int:
        if rights is not None:
            (tmp_path / "rights.json").write_text(json.dumps(rights))
            arguments = (str(tmp_path / "rights.json"), *arguments)
        place = ("--zookeeper", cluster.zookeeper, "--cluster", cluster.name)
        with pytest.raises(SystemExit) as ended:
            main(["access", command, *arguments, *place])
        wait_until(have_heard, "the servers hear of it")
        return int(ended.value.code or 0)

    return run


def shown(files: Path, name: str = "", token_file: str = "") -> ClientConfig:
    certificate, key = (f"{files}/{name}.pem", f"{files}/{name}.key") if name else ("", "")
    return ClientConfig(
        tls_authority=str(files / "authority.pem"),
        tls_certificate=certificate,
        tls_key=key,
        token_file=token_file,
        mount_timeout_ms=2_000,
    )


def comes(cluster: Cluster, config: ClientConfig | None = None) -> WaltzClient:
    return connect(cluster.name, zookeeper=cluster.zookeeper, config=config)


def read(client: WaltzClient) -> list[bytes]:
    return [each.data for each in client.feed(0)]


def test_each_may_what_it_has_the_right_to_and_nothing_else(cluster: Cluster, access: Access, files: Path) -> None:
    with comes(cluster, shown(files, "eve")) as anybody:
        assert anybody.append(0, b"before").result(20) == 0
    assert access("set", rights=RIGHTS) == 0
    with comes(cluster, shown(files, "appender")) as appender:
        assert appender.append(0, b"after").result(20) == 1
        with pytest.raises(AccessRefused, match="client 'appender' may not read in space 'log': ask the operator"):
            read(appender)
    with comes(cluster, shown(files, "reader")) as reader:
        assert read(reader) == [b"before", b"after"]
        with pytest.raises(AccessRefused, match="client 'reader' may not append in space 'log'"):
            reader.append(0, b"never").result(20)
    with comes(cluster, shown(files, "eve")) as eve, pytest.raises(AccessRefused, match="client 'eve' is not known"):
        eve.append(0, b"never").result(20)
    with comes(cluster) as nobody, pytest.raises(AccessRefused, match="show a certificate or a token"):
        nobody.append(0, b"never").result(20)
    assert cluster.call(cluster.servers[1].status).measures is not None
    refused = cluster.call(cluster.servers[1].status).measures.access_refused  # type: ignore[union-attr]
    assert {"no_right", "unknown_client", "nobody"} <= {*refused}


def test_a_certificate_of_another_authority_is_refused_by_the_handshake(
    cluster: Cluster, access: Access, files: Path
) -> None:
    strange = files / "strange"
    wrong = ClientConfig(
        tls_authority=str(files / "authority.pem"),
        tls_certificate=str(strange / "reader.pem"),
        tls_key=str(strange / "reader.key"),
        mount_timeout_ms=500,
        request_timeout_ms=500,
    )
    with comes(cluster, wrong) as client, pytest.raises(PartitionNotReady, match="was not ready"):
        client.append(0, b"never").result(20)
    distrusting = replace(shown(files, "reader"), tls_authority=str(strange / "authority.pem"), mount_timeout_ms=1500)
    with comes(cluster, distrusting) as client, pytest.raises(PartitionNotReady, match="certificate verify failed"):
        client.append(0, b"never").result(20)


def test_a_right_that_is_taken_away_ends_what_runs(cluster: Cluster, access: Access, files: Path) -> None:
    assert access("set", rights=RIGHTS) == 0
    with comes(cluster, shown(files, "appender")) as appender:
        assert appender.append(0, b"one").result(20) == 0
        assert access("set", rights=RIGHTS | {"rights": []}) == 0

        def refused() -> bool:
            try:
                appender.append(0, b"more").result(20)
            except AccessRefused:
                return True
            return False

        wait_until(refused, "the refusal")
    assert access("remove") == 1
    assert access("remove", "--yes") == 0
    with comes(cluster) as nobody:
        nobody.append(0, b"again").result(20)


def test_a_token_from_a_file(
    cluster: Cluster, access: Access, files: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, loader = tmp_path / "loader.token", {"client": "loader", "space": "log", "may": ["read", "append"]}
    assert access("set", rights=RIGHTS) == 0
    assert access("token", "loader", str(file)) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    said = capsys.readouterr().err
    assert "note: loader is a new client, and may only what everybody may until access set gives it rights" in said
    assert said.endswith("there were: appender, reader\n")
    assert access("token", "loader", str(tmp_path / "next.token")) == 0
    assert "note" not in capsys.readouterr().err
    assert access("show") == 0
    said = capsys.readouterr().out
    assert file.read_text().strip() not in said
    rights = json.loads(said)
    assert access("set", rights=rights | {"rights": [*rights["rights"], loader]}) == 0
    with comes(cluster, shown(files, token_file=str(file))) as client:
        assert client.append(0, b"by token").result(20) == 0
        assert read(client) == [b"by token"]
    file.chmod(0o644)
    with pytest.raises(ConfigError, match=f"chmod 600 {file}"):
        comes(cluster, shown(files, token_file=str(file)))


def test_where_only_tls_is_taken_clients_find_it_out(
    cluster: Cluster, access: Access, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert access("set", rights=RIGHTS | {"tls_only": True}) == 0
    plain = OriginalClient(cluster, 4)
    plain.send(MountRequest(ReqId(900, 1, 0, 0), -1, 1))
    with pytest.raises(ConnectionError):
        plain.receive()
    for variable, name in (("AUTHORITY", "authority.pem"), ("CERTIFICATE", "appender.pem"), ("KEY", "appender.key")):
        monkeypatch.setenv(f"WALTZ_TLS_{variable}", str(files / name))
    with comes(cluster) as client:
        assert client.append(0, b"over TLS").result(20) == 0
    monkeypatch.setenv("WALTZ_TLS_CERTIFICATE", str(files / "reader.pem"))
    monkeypatch.setenv("WALTZ_TLS_KEY", str(files / "reader.key"))
    for columns in (("transaction_id", "data"), ("transaction_id",)):
        [rows] = Reading.of(cluster.zookeeper, cluster.name, columns=columns).batches([Range(0, 0, 1)])
        assert rows.num_rows == 1
    for variable in ("AUTHORITY", "CERTIFICATE", "KEY"):
        monkeypatch.delenv(f"WALTZ_TLS_{variable}")
    with (
        comes(cluster, ClientConfig(mount_timeout_ms=1500)) as client,
        pytest.raises(PartitionNotReady, match="certificate verify failed"),
    ):
        client.append(0, b"never").result(20)


def told_to_the_end(client: OriginalClient) -> None:
    while True:
        client.receive()


@pytest.mark.parametrize("version", [0, 4])
def test_the_original_s_clients_are_who_their_certificates_say(
    cluster: Cluster, access: Access, files: Path, version: int
) -> None:
    assert access("set", rights=RIGHTS) == 0

    def tls(name: str) -> ssl.SSLContext:
        return client_context(str(files / "authority.pem"), str(files / f"{name}.pem"), str(files / f"{name}.key"))

    known, generation = mounted(cluster, version, tls=tls("reader"))
    assert known.receive() == MountResponse(ReqId(900, generation, 0, 0), MountState.READY)
    known.append(ReqId(900, generation, 0, 1), b"never")
    with pytest.raises(ConnectionError):
        told_to_the_end(known)
    unknown, _ = mounted(cluster, version, client_id=901, tls=tls("eve"))
    with pytest.raises(ConnectionError):
        unknown.receive()
