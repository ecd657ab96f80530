"""What listens beyond loopback is refused unless somebody has said that it may."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from waltz_ray.config import ClusterConfig, HttpConfig, KvConfig, ServerConfig, StorageConfig, TopicConfig
from waltz_ray.errors import ConfigError
from waltz_ray.protocol.access import SpaceRules
from waltz_ray.security.addresses import Guards, check_addresses, exposed, is_loopback_host, lacking

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
    (
        {"topics": TopicConfig(actors=1), "kv": KvConfig(host=EVERYBODY)},
        ["127.0.0.1"],
        {"key/value actors": EVERYBODY},  # topics have one
    ),
]


@pytest.mark.parametrize(("fields", "nodes", "found"), CASES)
def test_who_would_be_exposed(fields: dict[str, Any], nodes: list[str], found: dict[str, str]) -> None:
    config = ClusterConfig("c", "/c", **fields)
    assert exposed(config, nodes) == found
    check_addresses(config, nodes, True, Guards())
    if found:
        with pytest.raises(ConfigError, match="waltz up --insecure") as refused:
            check_addresses(config, nodes, False, Guards())
        assert "\n" not in str(refused.value)
        assert all(who in str(refused.value) for who in found)
    else:
        check_addresses(config, nodes, False, Guards())


def test_an_embedded_zookeeper_listens_on_its_node() -> None:
    assert "the embedded ZooKeeper" in exposed(ClusterConfig("c", "/c"), ["192.0.2.1"])


FILES: dict[str, Any] = {"tls_certificate": "/s.pem", "tls_key": "/s.key"}
PLAIN = ClusterConfig(
    "c", "/c", zookeeper="z:2181", kv=KvConfig(actors=1), topics=TopicConfig(actors=1), http=HttpConfig(host=EVERYBODY)
)
RIGHTS = SpaceRules(tls_only=True)
SECURE: dict[str, dict[str, Any]] = {
    "replicas": {"storage": StorageConfig(**FILES, tls_authority="/a.pem", tls_only=True)},
    "servers": {"server": ServerConfig(**FILES)},
    "key/value actors": {"kv": KvConfig(actors=1, **FILES)},
    "topic actors": {"topics": TopicConfig(actors=1, **FILES)},
    "the manager's HTTP port": {"http": HttpConfig(host=EVERYBODY, **FILES)},
}
"""Each endpoint, and what gives it TLS."""
BY_RIGHTS = ("servers", "key/value actors", "the manager's HTTP port")
GUARDS = [
    Guards(rights, topics) for rights, topics in product((None, replace(RIGHTS, tls_only=False), RIGHTS), (False, True))
]


def guarded(who: str, tls: bool, guards: Guards) -> bool:
    """What docs/security.md says."""
    if who in BY_RIGHTS:
        return tls and guards.rights == RIGHTS
    return tls and (who == "replicas" or guards.topics_authenticate)


@pytest.mark.parametrize("guards", GUARDS, ids=str)
@pytest.mark.parametrize("encrypted", list(product((False, True), repeat=len(SECURE))))
def test_only_what_has_no_tls_or_asks_nobody_is_refused(encrypted: tuple[bool, ...], guards: Guards) -> None:
    """Every combination of endpoints with TLS, rights, and topics that authenticate."""
    tls = dict(zip(SECURE, encrypted, strict=True))
    config = PLAIN
    for who in SECURE:
        config = replace(config, **SECURE[who]) if tls[who] else config
    open_ = {who for who in SECURE if not guarded(who, tls[who], guards)}
    assert set(lacking(config, guards)) == {*open_, "the embedded ZooKeeper"}
    check_addresses(config, ["192.0.2.1"], True, guards)
    if not open_:
        check_addresses(config, ["192.0.2.1"], False, guards)
        return
    with pytest.raises(ConfigError) as refused:
        check_addresses(config, ["192.0.2.1"], False, guards)
    named = str(refused.value).split("(", 1)[1].split(")", 1)[0].split(", ")
    assert set(named) == open_
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("who", SECURE)
def test_one_endpoint_beyond_loopback_is_looked_at_alone(who: str) -> None:
    section = next(iter(SECURE[who]))
    if section == "storage":
        return
    own = replace(SECURE[who][section], host=EVERYBODY)
    config = ClusterConfig("c", "/c", **{section: own})
    check_addresses(config, ["127.0.0.1"], False, Guards(RIGHTS, True))
    plain = replace(own, tls_certificate="", tls_key="")
    with pytest.raises(ConfigError, match="tls_certificate"):
        check_addresses(replace(config, **{section: plain}), ["127.0.0.1"], False, Guards(RIGHTS, True))
    with pytest.raises(ConfigError, match="waltz topic access" if section == "topics" else "waltz up --rights"):
        check_addresses(config, ["127.0.0.1"], False, Guards())


def test_replicas_with_a_certificate_still_take_plain_connections() -> None:
    config = ClusterConfig("c", "/c", zookeeper="z:1", storage=StorageConfig(**FILES, tls_authority="/a.pem"))
    assert "StorageConfig.tls_only" in lacking(config, Guards(RIGHTS))["replicas"]


def test_an_embedded_zookeeper_beyond_loopback_is_refused_whatever_else_is_secure() -> None:
    config = replace(PLAIN, zookeeper="", topics=TopicConfig())
    for each in SECURE.values():
        config = replace(config, **each)
    with pytest.raises(ConfigError, match="an ensemble in its place"):
        check_addresses(config, ["192.0.2.1"], False, Guards(RIGHTS, True))
