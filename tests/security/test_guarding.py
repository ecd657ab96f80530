"""Rights that ``waltz up`` sets before the first server starts, and what it finds of them later."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from waltz_ray.cli.access import show
from waltz_ray.config import ClusterConfig, KvConfig, ServerConfig, TopicConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.layer_store import LayerStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.coordination.topic_store import TopicStore
from waltz_ray.errors import InvalidInput
from waltz_ray.guarding import guards_of_file, guards_with_rights
from waltz_ray.protocol.access import SpaceRules
from waltz_ray.security.addresses import Guards

TLS: dict[str, Any] = {"tls_certificate": "/s.pem", "tls_key": "/s.key"}


@pytest.fixture
def zookeeper(monkeypatch: pytest.MonkeyPatch) -> MemoryZooKeeper:
    server = MemoryZooKeeperServer()
    monkeypatch.setattr("waltz_ray.guarding.KazooZooKeeper", lambda connect_string: MemoryZooKeeper(server))
    return MemoryZooKeeper(server)


@pytest.fixture
def config(tmp_path: Path) -> ClusterConfig:
    file = tmp_path / "rights.json"
    file.write_text('{"tls_only": true}')
    return ClusterConfig("c", "/c", server=ServerConfig(**TLS), rights_file=str(file))


def test_rights_are_set_where_there_are_none_and_left_where_there_are(
    zookeeper: MemoryZooKeeper, config: ClusterConfig
) -> None:
    access = ClusterStore(zookeeper, "c").access
    assert guards_with_rights("z", replace(config, rights_file="")) == Guards()
    assert access.document() == (b"", -1)
    expected = Guards(SpaceRules(tls_only=True))
    assert guards_of_file(config) == guards_with_rights("z", config) == expected
    assert access.rules() == SpaceRules(tls_only=True)
    assert access.replace(b'{"clients": {"ann": {}}}', access.document()[1])
    assert guards_with_rights("z", config) == Guards(SpaceRules(frozenset({"ann"})))
    assert access.rules() == SpaceRules(frozenset({"ann"}))


def test_rights_that_would_refuse_the_clusters_own_are_refused(
    zookeeper: MemoryZooKeeper, config: ClusterConfig
) -> None:
    with pytest.raises(InvalidInput, match="has no TLS"):
        guards_with_rights("z", replace(config, server=ServerConfig()))
    layers: dict[str, Any]
    for layers in ({"kv": KvConfig(actors=1)}, {"topics": TopicConfig(actors=1)}):
        with pytest.raises(InvalidInput, match="tls-authority"):
            guards_with_rights("z", replace(config, **layers))
        with pytest.raises(InvalidInput, match=r"kv.tls_certificate"):
            guards_with_rights("z", replace(config, server=ServerConfig(**TLS, tls_authority="/a.pem"), **layers))
    LayerStore(zookeeper, "c").raise_actors("kv", 1)
    with pytest.raises(InvalidInput, match="tls-authority"):
        guards_with_rights("z", config)
    assert ClusterStore(zookeeper, "c").access.document() == (b"", -1)


def test_a_file_that_cannot_be_used_is_named(config: ClusterConfig, tmp_path: Path) -> None:
    for path, why in ((tmp_path / "none", "cannot be read"), (tmp_path, "cannot be read")):
        with pytest.raises(InvalidInput, match=why):
            guards_of_file(replace(config, rights_file=str(path)))
    Path(config.rights_file).write_text("[]")
    with pytest.raises(InvalidInput, match="must be an object"):
        guards_of_file(config)


def test_rights_that_make_no_sense_let_nobody_in(zookeeper: MemoryZooKeeper, config: ClusterConfig) -> None:
    assert ClusterStore(zookeeper, "c").access.replace(b"no", -1)
    assert guards_with_rights("z", config) == Guards(SpaceRules(tls_only=True))


@pytest.mark.parametrize(
    ("document", "asks"), [(None, False), ({}, False), ({"authenticate": True}, True), ([], False), ("x", False)]
)
def test_whether_topics_ask_who_comes(zookeeper: MemoryZooKeeper, document: object, asks: bool) -> None:
    if document is not None:
        assert TopicStore(zookeeper, "c").set_document("access", json.dumps(document).encode(), -1)
    assert guards_with_rights("z", ClusterConfig("c", "/c")) == Guards(None, asks)


def test_a_document_that_is_nested_without_end_asks_nobody(zookeeper: MemoryZooKeeper) -> None:
    assert TopicStore(zookeeper, "c").set_document("access", b"[" * 200_000, -1)
    assert guards_with_rights("z", ClusterConfig("c", "/c")) == Guards()


@pytest.mark.parametrize("document", [b"no", b"[" * 200_000, b"\xff"])
def test_rights_that_are_no_json_are_shown_as_an_error(document: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(name="c", zookeeper="z")
    monkeypatch.setattr("waltz_ray.finding.find.find_cluster", lambda *_: found)
    server = MemoryZooKeeperServer()
    monkeypatch.setattr(
        "waltz_ray.coordination.zookeeper.KazooZooKeeper", lambda connect_string: MemoryZooKeeper(server)
    )
    assert ClusterStore(MemoryZooKeeper(server), "c").access.replace(document, -1)
    with pytest.raises(InvalidInput, match="what ZooKeeper has of rights"):
        show()
