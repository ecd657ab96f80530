"""Rights of clients of a key/value space on a running cluster: files, TLS only, links of actors, the command line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kv.real_cluster import SPACE, RealCluster, real_cluster, until
from tests.security.tls_files import takes_tokens, tls_files
from waltz_ray import kv
from waltz_ray.cli import main
from waltz_ray.config import KvConfig
from waltz_ray.errors import AccessRefused, KvNotReady
from waltz_ray.kv.client.client import KvClient
from waltz_ray.kv.client.settings import KvClientConfig
from waltz_ray.security.certificates import make_certificates

NAMES = [f"item-{number}" for number in range(64)]  # buckets of both actors have some
RIGHTS = {
    "clients": {"reader": {}, "appender": {}},
    "rights": [
        {"client": "reader", "space": SPACE, "may": ["read"]},
        {"client": "appender", "space": SPACE, "may": ["append"]},
    ],
}

Waltz = Callable[..., int]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    make_certificates(directory, ["127.0.0.1"], ["reader", "appender"], 2)
    return directory


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, ray_head: str, files: Path) -> Iterator[RealCluster]:
    own, key, authority = of_cluster = tls_files(files)
    port = KvConfig(actors=2, tls_certificate=own, tls_key=key, tls_clients=authority)
    server = takes_tokens(of_cluster)
    directory = tmp_path_factory.mktemp("kvrights")
    with real_cluster("kvrights", directory, ray_head, port, 1, server) as running:
        running.wait_served(2)
        yield running


@pytest.fixture
def waltz(cluster: RealCluster) -> Waltz:
    def run(*arguments: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--cluster", cluster.name, "--zookeeper", cluster.zookeeper])
        return int(ended.value.code or 0)

    return run


def comes(cluster: RealCluster, files: Path, name: str = "") -> KvClient:
    config = KvClientConfig()
    if name:
        own = f"{files}/{name}"
        authority = f"{files}/authority.pem"
        config = KvClientConfig(tls=True, tls_authority=authority, tls_certificate=f"{own}.pem", tls_key=f"{own}.key")
    return kv.connect(cluster.name, SPACE, config, zookeeper=cluster.zookeeper)


def test_rights_hold_for_clients_and_actors_go_on(
    cluster: RealCluster,
    files: Path,
    waltz: Waltz,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    document = tmp_path / "rights.json"

    def set_rights(**changes: object) -> None:
        document.write_text(json.dumps(RIGHTS | changes))
        assert waltz("access", "set", str(document)) == 0

    with comes(cluster, files) as nobody:
        nobody.set("before", "anybody", fullwait=True)
        set_rights()
        with pytest.raises(AccessRefused, match="show a certificate or a token"):
            until(lambda: nobody.set("before", "nobody") < 0, "both actors have heard of the rights")
    with comes(cluster, files, "appender") as appender:
        set_rights(tls_only=True)
        for name in NAMES:
            appender.set(name, "red", fullwait=True)  # an actor asks the other one for its second copy
        with pytest.raises(AccessRefused, match="client 'appender' may not read in space 'kv'"):
            appender.get(NAMES[0])
    with comes(cluster, files, "reader") as reader:
        assert [each.name for each in reader.scan("item-")] == sorted(NAMES)
        with pytest.raises(AccessRefused, match="client 'reader' may not append in space 'kv'"):
            reader.set(NAMES[0], "blue")
        with reader.watch("item-", "earliest") as events:  # of the log's servers, with the same files
            assert {next(events).name for _ in NAMES} == {*NAMES}
    with comes(cluster, files) as plain, pytest.raises(KvNotReady, match="certificate verify failed"):
        plain.get(NAMES[0], timeout=3)
    statuses = [cluster.status(actor) for actor in range(2)]
    refused = {reason for each in statuses if each is not None for reason in each.access_refused}
    assert {"nobody", "no_right"} <= refused
    assert not refused & {"not_member", "wrong_token", "plain_token"}, "an actor was not believed"
    for field in ("authority", "certificate", "key"):
        path = files / {"authority": "authority.pem", "certificate": "reader.pem", "key": "reader.key"}[field]
        monkeypatch.setenv(f"WALTZ_TLS_{field.upper()}", str(path))
    capsys.readouterr()
    assert waltz("kv", "get", NAMES[0]) == 0
    assert capsys.readouterr().out == "red\n"
    assert waltz("kv", "set", NAMES[0], "blue") == 1
    assert "client 'reader' may not append in space 'kv': ask the operator for the right" in capsys.readouterr().err
    for field in ("authority", "certificate", "key"):
        monkeypatch.delenv(f"WALTZ_TLS_{field.upper()}")
    assert waltz("access", "remove", "--yes") == 0
    with comes(cluster, files) as nobody:
        assert nobody.get(NAMES[0]) == "red"
