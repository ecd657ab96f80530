"""What would have to change for a cluster to be as its file says, and what of it cannot be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from waltz_ray.actors.settings import Settings, from_json, to_json
from waltz_ray.config import ClusterConfig, DiskConfig, KvConfig, ServerConfig
from waltz_ray.deployment.difference import Change, SeenCluster, Verb, difference, with_settings
from waltz_ray.deployment.file import parse
from waltz_ray.errors import ConfigError
from waltz_ray.protocol.spaces import Space, SpaceState

CLUSTER = ClusterConfig("prod", "/x", disks=(DiskConfig("/d"), DiskConfig("/d", "b"), DiskConfig()))
READY = SpaceState.READY
SEEN = SeenCluster(
    CLUSTER,
    {"kv": 2, "topic": 0},
    [
        Space("log", "log", 0, 4, READY),
        Space("orders", "log", 4, 8, READY, {"retention_ms": 5}),
        Space("old", "log", 12, 1, SpaceState.GONE),
        Space("kv", "kv", 13, 16, READY, {"compact": 1}),
    ],
)


def changes(text: str, seen: SeenCluster = SEEN) -> list[Change]:
    return difference(parse("name: prod\ndirectory: /x\n" + text, "f"), seen)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "partitions: 4\nservers: 2\nreplicas: 3\nserver: {port: 0}\nkv: {actors: 2}",
        "disks: [{directory: /d}, {directory: /d, resource: b}, {}]",
        "spaces:\n  orders: {partitions: 8, retention_ms: 5}\n  kv: {kind: kv}",
        "spaces:\n  orders: {partitions: 8}",
        "spaces:\n  orders: {partitions: 8, retention_bytes: null}",
    ],
)
def test_nothing_changes_where_nothing_is_said_or_the_same(text: str) -> None:
    assert changes(text) == []


@pytest.mark.parametrize(
    ("text", "verb", "what", "before", "after", "line"),
    [
        ("partitions: 5", Verb.REFUSE, "partitions", 4, 5, 3),
        ("servers: 3", Verb.REFUSE, "servers", 2, 3, 3),
        ("replicas: 4", Verb.REFUSE, "replicas", 3, 4, 3),
        ("replication: 3", Verb.REFUSE, "replication", 0, 3, 3),
        ("disks: [{}, {}, {}]", Verb.REFUSE, "disks", CLUSTER.disks, (DiskConfig(),) * 3, 3),
        ("zookeeper: a:1", Verb.REFUSE, "zookeeper", "", "a:1", 3),
        ("server:\n  port: 7", Verb.CHANGE, "server.port", 0, 7, 4),
        ("storage:\n  connections: 7\n  repair: true", Verb.CHANGE, "storage.connections", 256, 7, 4),
        ("http: {host: 127.0.0.1, port: 9464}", Verb.CHANGE, "http.port", 0, 9464, 3),
        ("secret_file: /s", Verb.REFUSE, "secret_file", "", "/s", 3),
        ("kv: {actors: 3}", Verb.CHANGE, "kv.actors", 2, 3, 3),
        ("topics: {actors: 1}", Verb.CHANGE, "topics.actors", 0, 1, 3),
        ("kv: {actors: 1}", Verb.REFUSE, "kv.actors", 2, 1, 3),
        ("spaces:\n  orders: {partitions: 9}", Verb.REFUSE, "spaces.orders.partitions", 8, 9, 4),
        ("spaces:\n  orders: {kind: topic, partitions: 8}", Verb.REFUSE, "spaces.orders.kind", "log", "topic", 4),
        (
            "spaces:\n  orders: {partitions: 8, retention_ms: 6}",
            *(Verb.CHANGE, "spaces.orders.retention_ms", 5, 6, 4),
        ),
        (
            "spaces:\n  orders: {partitions: 8, retention_ms: null}",
            *(Verb.CHANGE, "spaces.orders.retention_ms", 5, None, 4),
        ),
        ("spaces:\n  orders: {partitions: 8}\n  old: {partitions: 1}", Verb.REFUSE, "spaces.old", "gone", "log", 5),
        (
            "spaces:\n  orders: {partitions: 8}\n  new: {partitions: 2, retention_bytes: 7}",
            *(Verb.ADD, "spaces.new", None, {"kind": "log", "partitions": 2, "retention_bytes": 7}, 5),
        ),
        ("spaces:\n  log: {retention_ms: 9}", Verb.CHANGE, "spaces.log.retention_ms", None, 9, 4),
    ],
)
def test_what_differs(text: str, verb: Verb, what: str, before: object, after: object, line: int) -> None:
    found = [each for each in changes(text) if each.verb is not Verb.NOTE]
    assert [replace(each, why="") for each in found] == [Change(verb, what, before, after, line)]
    setting = what.partition(".")[0] in ("server", "storage", "http")
    assert bool(found[0].why) == (verb is Verb.REFUSE or setting), "a refusal says why, and what takes its time"


def test_what_goes_wrong_while_processes_have_either_settings_is_refused_with_its_line() -> None:
    server = ServerConfig(tls_certificate="/c", tls_key="/k", tls_authority="/a")
    seen = SeenCluster(replace(CLUSTER, server=server), SEEN.layers, SEEN.spaces)
    found = changes("kv:\n  tls_certificate: /c\n  tls_key: /k", seen)
    assert [(each.verb, each.what, each.line) for each in found] == [
        (Verb.REFUSE, "kv.tls_certificate", 4),
        (Verb.CHANGE, "kv.tls_key", 5),
    ]
    assert "take that away first" in found[0].why


def test_settings_that_do_not_go_together_are_an_error() -> None:
    """Each in the file is well by itself, and with defaults."""
    seen = SeenCluster(replace(CLUSTER, kv=KvConfig(session_ms=1000)), SEEN.layers, SEEN.spaces)
    with pytest.raises(ConfigError, match="lease_margin_ms"):
        changes("kv: {lease_margin_ms: 1400}", seen)


def test_the_settings_as_they_would_be() -> None:
    found = changes("storage:\n  connections: 7\nserver: {port: 7}\nkv: {actors: 3, idle_ms: 5}")
    wanted = with_settings(SEEN.config, found)
    storage, server = replace(CLUSTER.storage, connections=7), replace(CLUSTER.server, port=7)
    assert wanted == replace(CLUSTER, storage=storage, server=server, kv=replace(CLUSTER.kv, idle_ms=5))


def test_nothing_is_taken_away() -> None:
    found = changes("spaces:\n  new: {partitions: 1}")
    assert [(each.verb, each.what) for each in found] == [(Verb.ADD, "spaces.new"), (Verb.NOTE, "spaces.orders")]


def test_addresses_of_the_same_ensemble_are_no_change_of_it() -> None:
    seen = SeenCluster(replace(CLUSTER, zookeeper="a:1,b:1"), SEEN.layers, SEEN.spaces)
    assert [each.verb for each in changes("zookeeper: a:1,c:1", seen)] == [Verb.NOTE]
    assert changes("zookeeper: a:1,b:1", seen) == []


def test_where_a_replicas_disk_is_stays_in_zookeeper() -> None:
    settings = from_json(to_json(Settings(CLUSTER, {0: "a"})))
    assert settings.config == CLUSTER
    assert [settings.directory_of(n) for n in range(3)] == ["/d", "/d", "/x"]
    assert Settings(ClusterConfig(directory="/y"), {}).directory_of(2) == "/y"
