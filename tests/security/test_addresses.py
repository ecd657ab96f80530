"""What listens beyond loopback is refused unless somebody has said that it may."""

from __future__ import annotations

from typing import Any

import pytest

from waltz_ray.config import ClusterConfig, HttpConfig, KvConfig, ServerConfig, TopicConfig
from waltz_ray.errors import ConfigError
from waltz_ray.security.addresses import check_addresses, exposed, is_loopback_host

ENSEMBLE = {"zookeeper": "z:2181"}
EVERYBODY = "0.0.0.0"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "LOCALHOST", "::1", "[::1]"])
def test_loopback(host: str) -> None:
    assert is_loopback_host(host)


@pytest.mark.parametrize("host", [EVERYBODY, "::", "192.0.2.1", "", "localhost.example.org", "fe80::1", "127.0.0.1.x"])
def test_anything_else(host: str) -> None:
    assert not is_loopback_host(host)


CASES: list[tuple[dict[str, Any], list[str], dict[str, str]]] = [
    ({}, ["127.0.0.1"], {}),
    (ENSEMBLE, ["192.0.2.1"], {"replicas": "192.0.2.1", "servers": "192.0.2.1"}),
    (ENSEMBLE, ["192.0.2.2", "192.0.2.1"], dict.fromkeys(("replicas", "servers"), "192.0.2.1, 192.0.2.2")),
    (ENSEMBLE | {"server": ServerConfig(host="127.0.0.1")}, ["192.0.2.1"], {"replicas": "192.0.2.1"}),
    ({"server": ServerConfig(host=EVERYBODY)}, ["127.0.0.1"], {"servers": EVERYBODY}),
    ({"http": HttpConfig(host=EVERYBODY)}, ["127.0.0.1"], {"the manager's HTTP port": EVERYBODY}),
    ({"http": HttpConfig(enabled=False, host=EVERYBODY)}, ["127.0.0.1"], {}),
    ({"kv": KvConfig(actors=1, host=EVERYBODY)}, ["127.0.0.1"], {"key/value actors": EVERYBODY}),
    ({"kv": KvConfig(actors=0, host=EVERYBODY)}, ["127.0.0.1"], {}),
    ({"topics": TopicConfig(actors=1, host=EVERYBODY)}, ["127.0.0.1"], {"topic actors": EVERYBODY}),
]


@pytest.mark.parametrize(("fields", "nodes", "found"), CASES)
def test_who_would_be_exposed(fields: dict[str, Any], nodes: list[str], found: dict[str, str]) -> None:
    config = ClusterConfig("c", "/c", **fields)
    assert exposed(config, nodes) == found
    check_addresses(config, nodes, insecure=True)
    if found:
        with pytest.raises(ConfigError, match="waltz up --insecure") as refused:
            check_addresses(config, nodes, insecure=False)
        assert "\n" not in str(refused.value)
        assert all(who in str(refused.value) for who in found)
    else:
        check_addresses(config, nodes, insecure=False)


def test_an_embedded_zookeeper_listens_on_its_node() -> None:
    assert "the embedded ZooKeeper" in exposed(ClusterConfig("c", "/c"), ["192.0.2.1"])
