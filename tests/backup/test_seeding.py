"""The nodes of a restored cluster: what they say, and that they are made once, whoever dies on the way."""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.coordination.test_memory_faults import DyingZooKeeper, snapshot
from waltz_ray.backup.restored import RESTORED, RestoredCluster, read_restored, write_restored
from waltz_ray.bring_up import bring_up
from waltz_ray.config import ClusterConfig
from waltz_ray.coordination.access_store import AccessStore
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.hold_store import Hold, HoldStore
from waltz_ray.coordination.memory import MemoryZooKeeperServer
from waltz_ray.coordination.seeding import SEED_SESSION, Seed, documents_of
from waltz_ray.coordination.topic_store import TopicStore
from waltz_ray.coordination.trim_store import TrimStore
from waltz_ray.errors import ClusterMismatch, ClusterNotFound, StorageError, ZooKeeperUnreachable
from waltz_ray.protocol.placement import Assignment
from waltz_ray.protocol.roster import Roster
from waltz_ray.protocol.spaces import Space, SpaceState, SpaceTable
from waltz_ray.topics.access_document import decode_access

SPACES = SpaceTable(
    4,
    {
        "log": Space("log", "log", 0, 2, SpaceState.READY),
        "old": Space("old", "kv", 2, 1, SpaceState.GONE),
        "new": Space("new", "topic", 3, 1, SpaceState.MAKING, {"retention_ms": 5}),
    },
)
SEED = Seed(uuid.uuid4(), SPACES, 17, 5, {0: 3, 1: 0, 3: 1}, {1: 12})
REPLICAS = (0, 1, 2)


def test_what_the_nodes_say() -> None:
    client = MemoryZooKeeperServer().client()
    store = ClusterStore(client, "c")
    info = store.plant(SEED, REPLICAS, {"a": 1})
    assert (info.cluster_key, info.partitions, info.replica_ids) == (SEED.cluster_key, 4, REPLICAS)
    assert store.info() == info
    assert store.spaces.table() == SPACES
    roster, _ = store.roster(0)
    assert (roster.last_published_session, roster.members, roster.generation) == (SEED_SESSION, frozenset(REPLICAS), 3)
    assert roster.published_quorum == 2
    assert store.roster(2)[0] == Roster.initial(REPLICAS), "of a deleted space nobody has anything"
    assert store.assignment()[0] == Assignment({}, {0: 3, 3: 1})
    assert store.last_ids() == (17, 5)
    assert store.next_client_id() == 18
    assert HoldStore(client, "c").all() == {}
    assert json.loads(client.get("/c/store/trims")[0])["marks"] == {"1": 12}


@pytest.mark.parametrize("after", [False, True])
def test_whoever_dies_meanwhile_the_next_one_finishes(after: bool) -> None:
    wanted = MemoryZooKeeperServer()
    ClusterStore(wanted.client(), "c").plant(SEED, REPLICAS, {"a": 1})
    for left in range(100):
        server = MemoryZooKeeperServer()
        try:
            ClusterStore(DyingZooKeeper(server, left, after), "c").plant(SEED, REPLICAS, {"a": 1})
        except ZooKeeperUnreachable:
            store = ClusterStore(server.client(), "c")
            with suppress(ClusterNotFound):  # it is not complete: for everybody else it is not there
                assert store.info().cluster_key == SEED.cluster_key
            store.plant(SEED, REPLICAS, {"a": 1})
            assert snapshot(server) == snapshot(wanted)
            continue
        assert left > 10
        return
    raise AssertionError("it has never come to its end")


def test_another_cluster_of_that_name_is_left_alone() -> None:
    server = MemoryZooKeeperServer()
    store = ClusterStore(server.client(), "c")
    store.initialize(4, REPLICAS, {})
    before = snapshot(server)
    with pytest.raises(ClusterMismatch):
        ClusterStore(server.client(), "c").plant(SEED, REPLICAS, {})
    assert snapshot(server) == before


def test_a_hold_is_there_from_the_beginning() -> None:
    client = MemoryZooKeeperServer().client()
    ClusterStore(client, "c").plant(replace(SEED, hold=Hold("backup.restored", {1: 12, 3: 0}, "why")), REPLICAS, {})
    assert TrimStore(client, "c").raise_marks({1: 20, 3: 5, 0: 2}) == {1: 12, 3: 0, 0: 2}


DOCUMENTS = {
    "/store/access": '{"tls_only": true}',
    "/store/topics/access": '{"guarded": ["orders"]}',
    "/store/topics/flow": '{"default": []}',
}


def test_rights_are_there_from_the_beginning() -> None:
    server = MemoryZooKeeperServer()
    client = server.client()
    others = {"/store/cluster": "{}", "/nobody/knows": "this"}
    ClusterStore(client, "c").plant(replace(SEED, documents={**DOCUMENTS, **others}), REPLICAS, {"a": 1})
    assert documents_of(client, "c") == DOCUMENTS
    rules = AccessStore(client, "c").rules()
    assert rules is not None
    assert rules.tls_only
    assert TopicStore(client, "c").document("flow")[0] == b'{"default": []}'
    assert "/c/nobody/knows" not in snapshot(server)


def test_passwords_are_not_backed_up_and_nobody_comes_in_without() -> None:
    client = MemoryZooKeeperServer().client()
    ClusterStore(client, "c").plant(SEED, REPLICAS, {"a": 1})
    assert documents_of(client, "c") == {}
    store = TopicStore(client, "c")
    for version, text in enumerate((b'{"users": {"alice": "her password"}}', b"her password", b'["her password"]')):
        assert store.set_document("access", text, version - 1)
        assert documents_of(client, "c") == {"/store/topics/access": '{"authenticate": true}'}
    assert decode_access(b'{"authenticate": true}').authenticate
    assert not decode_access(b'{"authenticate": true}').users


def restored(directory: Path) -> RestoredCluster:
    config = ClusterConfig(name="c", partitions=2, replicas=3)
    return RestoredCluster(config, SEED, {0: 5, 1: 12, 3: 0}, str(directory))


def test_a_restored_directory_is_brought_up_as_it_is_or_not_at_all(tmp_path: Path) -> None:
    write_restored(tmp_path, restored(tmp_path))
    with pytest.raises(StorageError, match="did not come to its end"):
        bring_up(ClusterConfig("c", str(tmp_path), 2, 3))
    write_restored(tmp_path, restored(tmp_path).finished)
    for shape, why in (((2, 5), "replicas 3, not 5"), ((4, 3), "partitions 2, not 4")):
        with pytest.raises(ClusterMismatch, match=f"has a restored cluster with {why}; leave the option out"):
            bring_up(ClusterConfig("c", str(tmp_path), *shape))
    with pytest.raises(ClusterMismatch, match="has a restored cluster with replication 0, not 3; leave the option out"):
        bring_up(ClusterConfig("c", str(tmp_path), 2, 3, replication=3))
    assert not (tmp_path / "cluster.json").exists()


def test_a_restored_partition_is_on_the_replicas_that_got_its_log() -> None:
    store = ClusterStore(MemoryZooKeeperServer().client(), "c")
    seed = replace(SEED, sets={0: (0, 2, 4), 1: (1, 2, 3), 3: (0, 1, 4)})
    info = store.plant(seed, range(5), {}, 3)
    assert (info.replication, info.replica_ids) == (3, (0, 1, 2, 3, 4))
    assert {p: tuple(store.roster(p)[0].members) for p in seed.sets} == seed.sets
    assert len(store.roster(2)[0].replicas) == 3, "of a deleted space"


def test_a_restored_cluster_remembers_who_has_what(tmp_path: Path) -> None:
    config = ClusterConfig(name="c", partitions=2, replicas=5, replication=3)
    sets = {0: (0, 1, 2), 1: (0, 3, 4), 3: (1, 2, 3)}
    seed = replace(SEED, sets=sets, documents=DOCUMENTS)
    written = RestoredCluster(config, seed, {0: 5, 1: 12, 3: 0}, "backup", complete=True)
    write_restored(tmp_path, written)
    assert read_restored(tmp_path) == written
    fields = json.loads((tmp_path / RESTORED).read_text())
    del fields["sets"], fields["replication"], fields["documents"]
    (tmp_path / RESTORED).write_text(json.dumps(fields))
    before = read_restored(tmp_path)
    assert before is not None
    assert (before.config.replication, before.seed.sets) == (0, {}), "written before there were sets: all on all"
    assert before.seed.documents == {}
