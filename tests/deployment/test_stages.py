"""Settings become others by stages: processes of two neighbouring ones understand each other, whoever is first."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest

from waltz_ray.config import ClusterConfig, HttpConfig, KvConfig, ServerConfig, StorageConfig, TopicConfig
from waltz_ray.deployment.stages import SettingsStage, can_change, impossible, stages

PLAIN = ClusterConfig("c", "/c")
STORAGE = [
    StorageConfig(),
    StorageConfig(tls_certificate="c", tls_key="k"),
    StorageConfig(tls_certificate="c", tls_key="k", tls_authority="a"),
    StorageConfig(tls_certificate="c", tls_key="k", tls_authority="a", tls_only=True),
]
SERVER = [
    ServerConfig(),
    ServerConfig(tls_certificate="c", tls_key="k"),
    ServerConfig(tls_certificate="c", tls_key="k", tls_authority="a"),
]
KV = [KvConfig(), KvConfig(tls_certificate="c", tls_key="k")]
ALL = [replace(PLAIN, storage=a, server=b, kv=c) for a, b, c in product(STORAGE, SERVER, KV)]

POSSIBLE = [(before, after) for before, after in product(ALL, ALL) if not list(impossible(before, after))]


def understood(one: ClusterConfig, other: ClusterConfig) -> bool:
    """Whether processes started with ``one`` can talk to those started with ``other``, each as the one who comes."""
    speak_to_replicas, to_servers = bool(one.storage.tls_authority), bool(one.server.tls_authority)
    replicas = bool(other.storage.tls_certificate) if speak_to_replicas else not other.storage.tls_only
    servers = bool(other.server.tls_certificate) if to_servers else True
    # a kv actor speaks TLS to the others where its own settings have both
    kv = bool(other.kv.tls_certificate) if to_servers and one.kv.tls_certificate else True
    return replicas and servers and kv


def test_who_was_started_before_a_stage_understands_who_was_after_it() -> None:
    for before, after in POSSIBLE:
        plan = [stage.config for stage in stages(before, after)]
        assert ([before, *plan])[-1] == after
        assert len(set(map(repr, plan))) == len(plan), "none changes nothing"
        for one, other in pairwise([before, *plan]):
            assert all((understood(one, other), understood(other, one))), (before, after)


def test_what_no_stages_lead_to_is_refused() -> None:
    """Else kv actors would be spoken to in a way that they do not know yet, and certificates not be believed."""
    tls, kv = replace(PLAIN, server=SERVER[2]), replace(PLAIN, server=SERVER[2], kv=KV[1])
    assert [what for what, _ in impossible(tls, kv)] == ["kv.tls_certificate"]
    assert [what for what, _ in impossible(kv, tls)] == ["kv.tls_certificate"]
    assert list(impossible(PLAIN, kv)) == list(impossible(kv, PLAIN)) == []
    other = replace(SERVER[2], tls_authority="b", tls_certificate="d")
    assert [what for what, _ in impossible(tls, replace(tls, server=other))] == ["server.tls_authority"]
    same_certificate = replace(SERVER[2], tls_authority="b")
    assert list(impossible(tls, replace(tls, server=same_certificate))) == []


def test_only_who_reads_it_is_started_again() -> None:
    def kinds(**sections: Any) -> list[frozenset[str]]:
        return [stage.kinds for stage in stages(PLAIN, replace(PLAIN, **sections))]

    manager = "cluster-manager"
    assert kinds(http=HttpConfig(port=9464)) == [{manager}]
    assert kinds(topics=TopicConfig(hold_ms=1)) == [{manager, "topic"}]
    assert kinds(kv=KvConfig(idle_ms=1)) == [{manager, "kv", "topic"}]
    assert kinds(storage=StorageConfig(repair=False)) == [{manager, "replica", "server"}]
    assert kinds(server=ServerConfig(port=7), http=HttpConfig(port=8)) == [{manager, "server", "kv", "topic"}]
    assert kinds() == []


def test_further_settings_come_with_the_certificates() -> None:
    after = replace(PLAIN, storage=replace(STORAGE[3], connections=7), http=HttpConfig(port=9464))
    found = list(stages(PLAIN, after))
    assert [(stage.config.storage.connections, stage.config.http.port) for stage in found] == [(7, 9464)] * 3
    told = [(bool(s.tls_certificate), bool(s.tls_authority), s.tls_only) for s in (x.config.storage for x in found)]
    assert told == [(True, False, False), (True, True, False), (True, True, True)]


@pytest.mark.parametrize("seed", range(20))
def test_an_interruption_between_two_stages_loses_nothing(seed: int) -> None:
    """What is left is planned anew from what is kept; that leads to the same end, and never back."""
    before, after = random.Random(seed).choice(POSSIBLE)
    plan = list(stages(before, after))
    for done in range(len(plan)):
        left: list[SettingsStage] = list(stages(plan[done].config, after))
        assert left == plan[done + 1 :]


def test_what_can_change() -> None:
    assert all(map(can_change, ("server.port", "storage.tls_only", "http.enabled", "kv.dialect")))
    assert not any(map(can_change, ("kv.actors", "topics.actors", "partitions", "name", "disks", "secret_file")))
