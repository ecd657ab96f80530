"""What is looked at before a cluster starts: its files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from waltz_ray import deployment, guarding
from waltz_ray.actors.settings import Settings, to_json
from waltz_ray.bring_up import bring_up
from waltz_ray.config import ClusterConfig, HttpConfig, KvConfig, ServerConfig, StorageConfig, TopicConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeperServer
from waltz_ray.deployment import applying
from waltz_ray.deployment.file import parse
from waltz_ray.errors import ConfigError, InvalidInput, SecretUnusable
from waltz_ray.finding import cluster_file
from waltz_ray.finding.cluster_file import ClusterFile, LocalRay
from waltz_ray.security.certificates import make_certificates
from waltz_ray.startup_checks import check_files, check_ports, check_settings


@pytest.fixture
def config(tmp_path: Path) -> ClusterConfig:
    """With files of its own for all that speaks TLS."""
    make_certificates(tmp_path, ["127.0.0.1"], ["ann"], 2)
    files: dict[str, Any] = {"tls_certificate": f"{tmp_path}/server.pem", "tls_key": f"{tmp_path}/server.key"}
    authority = f"{tmp_path}/authority.pem"
    (tmp_path / "rights.json").write_text("{}")
    return ClusterConfig(
        "demo",
        str(tmp_path / "cluster"),
        server=ServerConfig(**files, tls_clients=authority, tls_authority=authority, tls_certificates_optional=True),
        storage=StorageConfig(**files, tls_authority=authority),
        kv=KvConfig(**files),
        http=HttpConfig(**files),
        rights_file=f"{tmp_path}/rights.json",
    )


def test_files_that_can_be_used(config: ClusterConfig) -> None:
    check_files(config, here=True)
    check_files(ClusterConfig("demo", "/data"), here=True)


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ("server", "tls_certificate"),
        ("server", "tls_key"),
        ("server", "tls_clients"),
        ("server", "tls_authority"),
        ("storage", "tls_authority"),
        ("kv", "tls_key"),
        ("http", "tls_certificate"),
    ],
)
def test_files_that_cannot(config: ClusterConfig, section: str, field: str, tmp_path: Path) -> None:
    def having(path: str) -> ClusterConfig:
        return replace(config, **{section: replace(getattr(config, section), **{field: path})})

    (tmp_path / "empty").touch()
    for bad, why in (("nobody", "No such file"), (".", "Is a directory|PEM|unknown error"), ("empty", "")):
        with pytest.raises(ConfigError, match=f"the files of {section} for TLS .*cannot be used: .*({why})"):
            check_files(having(str(tmp_path / bad)), here=True)
    check_files(having("/elsewhere"), here=False)  # on nodes that are not this one
    for here in (True, False):
        with pytest.raises(ConfigError, match=rf"{section}\.{field} must be an absolute path"):
            check_files(having("server.pem"), here=here)


def test_certificates_that_the_cluster_itself_would_not_believe(tmp_path: Path) -> None:
    """Its processes would refuse each other, and it would not be up before somebody looks why."""

    def files(name: str, host: str, days: int = 2) -> dict[str, Any]:
        make_certificates(tmp_path / name, [host], [], days)
        return {"tls_certificate": f"{tmp_path}/{name}/server.pem", "tls_key": f"{tmp_path}/{name}/server.key"}

    named, old, good = files("named", "db.example.org"), files("old", "127.0.0.1", 0), files("good", "127.0.0.1")
    of_named, of_old, of_good = (
        dict[str, Any](tls_authority=f"{tmp_path}/{name}/authority.pem") for name in ("named", "old", "good")
    )
    parts: dict[str, Any]
    no_name, verify = "not valid for '127.0.0.1'", "signature failure|unable to get local issuer certificate"
    for section, why, parts in (
        ("storage", no_name, {"storage": StorageConfig(**named, **of_named)}),
        ("server", no_name, {"server": ServerConfig(**named, **of_named)}),
        ("server", "has expired", {"server": ServerConfig(**old, **of_old)}),
        ("server", verify, {"server": ServerConfig(**good, **of_named)}),
        ("kv", verify, {"server": ServerConfig(**good, **of_good), "kv": KvConfig(actors=1, **named)}),
    ):
        config = ClusterConfig("demo", str(tmp_path), **parts)
        with pytest.raises(ConfigError, match=rf"certificate of {section} .* believed at 127\.0\.0\.1: .*({why})"):
            check_files(config, here=True)
        check_files(config, here=False)  # where the nodes are elsewhere
    announced = ServerConfig(host="db.example.org", **named, **of_named)
    check_files(ClusterConfig("demo", str(tmp_path), server=announced), here=True)


def test_ports_that_there_are_not() -> None:
    whole = ClusterConfig(
        kv=KvConfig(actors=2, port=65_534), topics=TopicConfig(actors=3, master_port=65_533, broker_port=65_236)
    )
    check_ports(whole)
    check_ports(replace(whole, kv=KvConfig(actors=999), topics=TopicConfig(actors=999)))
    check_ports(replace(whole, kv=KvConfig(port=65_535), topics=TopicConfig(master_port=65_535, broker_port=65_535)))
    for section, field in (("kv", "port"), ("topics", "master_port"), ("topics", "broker_port")):
        part = getattr(whole, section)
        with pytest.raises(ConfigError, match=f"Config.{field} .* actors have ports up to 65536"):
            check_ports(replace(whole, **{section: replace(part, **{field: getattr(part, field) + 1})}))
    with pytest.raises(ConfigError, match="3 actors have ports up to 65536"):
        check_settings(replace(whole, kv=replace(whole.kv, actors=3)), "", [], False)


def test_nothing_is_started_with_ports_that_there_are_not(tmp_path: Path) -> None:
    ports = KvConfig(actors=2, port=65_535)
    with pytest.raises(ConfigError, match="actors have ports up to 65536"):
        bring_up(ClusterConfig("demo", str(tmp_path / "cluster"), kv=ports))
    assert cluster_file.read(tmp_path / "cluster") is None


def test_nothing_is_started_with_a_file_that_cannot_be_used(config: ClusterConfig, tmp_path: Path) -> None:
    said: list[str] = []
    with pytest.raises(ConfigError, match="secret_file must be an absolute path"):
        bring_up(replace(config, secret_file="secret"), progress=said.append)
    with pytest.raises(ConfigError, match="cannot be used"):
        bring_up(replace(config, kv=KvConfig(tls_certificate="/nobody", tls_key="/nobody")), progress=said.append)
    (tmp_path / "pass").write_text("waltz-secret-1 and then something else")
    (tmp_path / "pass").chmod(0o600)
    for secret, why in (("pass", "does not hold a cluster's secret"), ("nowhere/pass", "No such file or directory")):
        with pytest.raises(SecretUnusable, match=why):
            bring_up(replace(config, secret_file=str(tmp_path / secret)), progress=said.append)
    assert cluster_file.read(config.directory) is None
    (tmp_path / "rights.json").write_text("[")
    with pytest.raises(InvalidInput, match="no JSON"):
        bring_up(config, progress=said.append)
    assert said == []


def test_certificates_that_come_later_are_looked_at_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By ``waltz apply``, where all processes are on this machine: the first restart would stand still for minutes."""
    make_certificates(tmp_path, ["db.example.org"], [], 2)
    make_certificates(tmp_path / "good", ["127.0.0.1"], [], 2)
    config = ClusterConfig("c", str(tmp_path), zookeeper="z:1")
    server = MemoryZooKeeperServer()
    settings = to_json(Settings(config, dict.fromkeys(range(config.replicas), "CPU")))
    ClusterStore(server.client(), "c").initialize(config.partitions, range(config.replicas), settings)
    for module in (applying, guarding):
        monkeypatch.setattr(module, "KazooZooKeeper", lambda hosts: server.client())

    def compared(directory: str, more: str = "") -> list[str]:
        files = {"tls_certificate": "server.pem", "tls_key": "server.key", "tls_authority": "authority.pem"}
        tls = ", ".join(f"{name}: {directory}/{file}" for name, file in files.items())
        text = f"name: c\ndirectory: {tmp_path}\nzookeeper: z:1\nstorage: {{{tls}}}\n{more}"
        return [each.what for each in deployment.compare(parse(text, "f"))]

    of_ours = LocalRay("h:1", "", os.getpid(), 1.0, str(tmp_path))
    for ray in (None, of_ours):
        cluster_file.write(ClusterFile("c", str(tmp_path), 4, 3, 2, address="h:1", zookeeper="z:1", ray=ray))
        assert compared(f"{tmp_path}/good") == ["storage.tls_certificate", "storage.tls_key", "storage.tls_authority"]
        if ray is None:
            compared(str(tmp_path))  # on other machines
    with pytest.raises(ConfigError, match=r"the certificate of storage .* would not be believed at 127\.0\.0\.1"):
        compared(str(tmp_path))
    with pytest.raises(ConfigError, match=r"the files of storage for TLS .* cannot be used: No such file"):
        compared("/nobody")
