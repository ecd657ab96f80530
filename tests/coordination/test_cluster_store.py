"""The typed nodes of a cluster, on the twin and on a real ZooKeeper."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest

from tests.coordination.conftest import Harness, Seen
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.cluster_store import AnnouncedReplica, ClusterStore
from waltz_ray.errors import ClusterMismatch, ClusterNotFound, CoordinationError, InvalidInput, VersionConflict
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.placement import Assignment, Owner
from waltz_ray.protocol.replica_sets import ReplicaPlace, choose_sets
from waltz_ray.protocol.roster import UNRESOLVED, ReplicaEntry, Roster
from waltz_ray.wire import znodes
from waltz_ray.wire.znodes import ServerDescriptor

HERE = Endpoint("127.0.0.1", 5000)
THERE = Endpoint("127.0.0.1", 6000)


@pytest.fixture
def zookeeper(harness: Harness) -> ZooKeeper:
    return harness.client()


@pytest.fixture
def store(zookeeper: ZooKeeper, root: str) -> Iterator[ClusterStore]:
    made = ClusterStore(zookeeper, root)
    made.initialize(4, [0, 1, 2], {"segment_size_bytes": 1000})
    yield made
    # The layout promises that what only our servers read is JSON with a version field.
    paths = [f"/{root}/store/cluster", f"/{root}/store/preferred", f"/{root}/store/partitions/0"]
    assert all(json.loads(zookeeper.get(path)[0])["version"] == 1 for path in paths)


def test_initialising_twice_keeps_key_and_settings(store: ClusterStore, zookeeper: ZooKeeper, root: str) -> None:
    info = store.info()
    assert (info.name, info.partitions, info.replica_ids) == (root, 4, (0, 1, 2))
    assert info.settings == {"segment_size_bytes": 1000}
    assert isinstance(info.cluster_key, uuid.UUID)
    assert ClusterStore(zookeeper, root).initialize(4, [2, 1, 0], {"segment_size_bytes": 7}) == info
    assert ClusterStore(zookeeper, root).info() == info
    assert store.roster(3) == (Roster.initial([0, 1, 2]), 0)
    assert store.assignment() == (Assignment(), 0)


def test_initialising_does_not_touch_a_cluster_that_runs(store: ClusterStore) -> None:
    record = Roster(3, 1, {n: ReplicaEntry(3, UNRESOLVED) for n in range(3)})
    store.set_roster(0, record, 0)
    assert store.next_client_id() == 1
    store.initialize(4, [0, 1, 2])
    assert store.roster(0) == (record, 1)
    assert store.next_client_id() == 2


def test_another_shape_under_the_same_name_is_a_mismatch(store: ClusterStore) -> None:
    with pytest.raises(ClusterMismatch, match=r"with 4 partitions, not .* with 5"):
        store.initialize(5, [0, 1, 2])
    with pytest.raises(ClusterMismatch, match=r"replicas \[0, 1, 2\], not \[0, 1\]"):
        store.initialize(4, [0, 1])
    assert store.info().partitions == 4


def test_another_programs_root_is_a_mismatch(zookeeper: ZooKeeper, root: str) -> None:
    zookeeper.create(f"/{root}", b"something else")
    with pytest.raises(ClusterMismatch, match="another program"):
        ClusterStore(zookeeper, root).initialize(1, [0])
    waltz = f"{root}-java"
    zookeeper.create(f"/{waltz}", znodes.encode_root(znodes.RootNode(waltz, 1)))
    zookeeper.create(f"/{waltz}/store", bytes.fromhex("01ae7968"))
    with pytest.raises(ClusterMismatch, match="another program"):
        ClusterStore(zookeeper, waltz).initialize(1, [0])


def test_an_absent_cluster_is_not_found(zookeeper: ZooKeeper, root: str) -> None:
    with pytest.raises(ClusterNotFound, match=f"no cluster '{root}'"):
        ClusterStore(zookeeper, root).info()


@pytest.mark.parametrize("name", ["", "a/b", ".", "zookeeper", "a\0"])
def test_a_name_that_is_no_path_part_is_refused(zookeeper: ZooKeeper, name: str) -> None:
    with pytest.raises(InvalidInput, match="cannot name a cluster"):
        ClusterStore(zookeeper, name)


@pytest.mark.parametrize(("partitions", "replicas"), [(0, [0]), (1, []), (1, [0, 0]), (1, [-1])])
def test_an_impossible_shape_is_refused(zookeeper: ZooKeeper, root: str, partitions: int, replicas: list[int]) -> None:
    with pytest.raises(InvalidInput, match="a cluster needs"):
        ClusterStore(zookeeper, root).initialize(partitions, replicas)
    assert zookeeper.exists(f"/{root}") is None


def test_ids_begin_at_1_and_never_come_twice(harness: Harness, store: ClusterStore, root: str) -> None:
    other = ClusterStore(harness.client(), root)
    assert [store.next_client_id(), other.next_client_id(), store.next_client_id()] == [1, 2, 3]
    assert [store.next_server_id(), other.next_server_id()] == [1, 2]


@pytest.mark.parametrize("last", [-5, -2, (1 << 31) - 1])
def test_what_somebody_has_put_in_place_of_the_last_id_is_named(
    zookeeper: ZooKeeper, store: ClusterStore, root: str, last: int
) -> None:
    """The counter of clients is the one node that everybody may write."""
    path = f"/{root}/ids/client"
    zookeeper.set(path, znodes.encode_counter(last), zookeeper.get(path)[1])
    with pytest.raises(CoordinationError, match=rf"{path}: no ID can follow {last}, which nobody was given"):
        store.next_client_id()
    zookeeper.set(path, znodes.encode_counter((1 << 31) - 2), zookeeper.get(path)[1])
    assert store.next_client_id() == (1 << 31) - 1


def test_servers_come_and_go(harness: Harness, store: ClusterStore, root: str) -> None:
    seen: Seen[dict[int, ServerDescriptor]] = Seen()
    watches = store.watch_servers(seen)
    seen.until({}.__eq__)
    server = ClusterStore(harness.client(), root)
    registration = server.register_server(7, HERE, [2])
    both = {7: ServerDescriptor(7, HERE, (2,))}
    seen.until(both.__eq__)
    assert store.servers() == both
    registration.cancel()
    seen.until({}.__eq__)
    watches.cancel()


def test_a_registration_survives_an_expired_session(harness: Harness, store: ClusterStore, root: str) -> None:
    server_zookeeper = harness.client()
    registration = ClusterStore(server_zookeeper, root).register_server(7, HERE)
    paths: Seen[list[str]] = Seen()
    watch = harness.client().watch_children(f"/{root}/serverDescriptors", paths)
    before = paths.until(bool)
    harness.expire(server_zookeeper)
    paths.until(lambda names: bool(names) and names != before)
    assert store.servers() == {7: ServerDescriptor(7, HERE, ())}
    assert registration.active
    watch.cancel()


def test_a_predecessors_node_goes_when_its_server_starts_again(
    harness: Harness, store: ClusterStore, root: str
) -> None:
    gone = harness.client()  # still has its session, but no process behind it: a bare node
    stale = znodes.encode_server(ServerDescriptor(7, HERE, ()))
    path = gone.create(f"/{root}/serverDescriptors/s_", stale, ephemeral=True, sequence=True)
    other = ClusterStore(harness.client(), root).register_server(8, HERE)
    store.register_server(7, THERE)
    assert gone.exists(path) is None
    assert store.servers() == {7: ServerDescriptor(7, THERE, ()), 8: ServerDescriptor(8, HERE, ())}
    assert other.active


def test_the_manager_removes_a_dead_server(harness: Harness, store: ClusterStore, root: str) -> None:
    gone = harness.client()
    stale = znodes.encode_server(ServerDescriptor(7, HERE, ()))
    gone.create(f"/{root}/serverDescriptors/s_", stale, ephemeral=True, sequence=True)
    store.register_server(8, HERE)
    store.remove_server_registration(7)
    store.remove_server_registration(7)
    assert list(store.servers()) == [8]


def test_preferred_partitions_persist_and_are_watched(harness: Harness, store: ClusterStore, root: str) -> None:
    seen: Seen[dict[int, ServerDescriptor]] = Seen()
    store.watch_servers(seen)
    registration = store.register_server(7, HERE, [0])
    seen.until({7: ServerDescriptor(7, HERE, (0,))}.__eq__)
    other = ClusterStore(harness.client(), root)
    other.set_preferred(8, [1])
    other.set_preferred(7, [3, 1, 3])
    seen.until({7: ServerDescriptor(7, HERE, (3, 1))}.__eq__)
    assert znodes.decode_server("s", harness.client().get(registration.path)[0]).preferred == (3, 1)
    assert (other.preferred(7), other.preferred(8), other.preferred(9)) == ((3, 1), (1,), ())
    registration.cancel()
    store.register_server(7, HERE, [0])
    assert store.servers()[7].preferred == (3, 1)
    with pytest.raises(InvalidInput, match="no partition 4, only 0 to 3"):
        store.set_preferred(7, [4])


def test_the_assignment_is_compare_and_set_and_watched(harness: Harness, store: ClusterStore, root: str) -> None:
    seen: Seen[tuple[Assignment, int]] = Seen()
    store.watch_assignment(lambda assignment, version: seen((assignment, version)))
    seen.until((Assignment(), 0).__eq__)
    manager = ClusterStore(harness.client(), root)
    manager.register_server(1, HERE)
    first = Assignment({p: Owner(1, 1) for p in range(3)}, {3: 5})
    assert manager.set_assignment(first, 0) == 1
    seen.until((first, 1).__eq__)
    with pytest.raises(VersionConflict):
        store.set_assignment(Assignment(), 0)
    assert store.assignment() == (first, 1)
    path = f"/{root}/serverDescriptors"
    node = znodes.decode_assignment(path, harness.client().get(path)[0])
    assert (node.children_version, node.partitions) == (harness.client().children_version(path), 4)


def test_a_partition_record_is_compare_and_set(store: ClusterStore) -> None:
    record = Roster(1, 1, {0: ReplicaEntry(1, UNRESOLVED), 1: ReplicaEntry(1, 5), 2: ReplicaEntry(-1, 5)})
    assert store.set_roster(2, record, 0) == 1
    with pytest.raises(VersionConflict):
        store.set_roster(2, Roster.initial([0]), 0)
    assert store.roster(2) == (record, 1)
    assert store.roster(1)[1] == 0


def test_a_damaged_node_is_named(store: ClusterStore, zookeeper: ZooKeeper, root: str) -> None:
    path = f"/{root}/store/partitions/1"
    zookeeper.set(path, b"{}", -1)
    with pytest.raises(CoordinationError, match=f"{path}: ValueError not a roster"):
        store.roster(1)
    zookeeper.create(f"/{root}/store/replicas/0", b'{"version": 1}')
    with pytest.raises(CoordinationError, match="replicas/0: KeyError 'host'"):
        store.replicas()
    zookeeper.set(f"/{root}/store/replicas/0", b'{"version": 2}', -1)
    with pytest.raises(CoordinationError, match="not JSON of version 1"):
        store.replicas()


def test_replicas_announce_themselves_at_each_start(harness: Harness, store: ClusterStore, root: str) -> None:
    seen: Seen[dict[int, AnnouncedReplica]] = Seen()
    watches = store.watch_replicas(seen)
    seen.until({}.__eq__)
    replica_zookeeper = harness.client()
    replica = ClusterStore(replica_zookeeper, root)
    replica.announce_replica(1, HERE, "first")
    seen.until({1: AnnouncedReplica(HERE, "first")}.__eq__)
    replica.announce_replica(1, THERE, "second")
    replica_zookeeper.close()
    seen.until({1: AnnouncedReplica(THERE, "second")}.__eq__)
    assert store.replicas() == {1: AnnouncedReplica(THERE, "second")}
    watches.cancel()
    with pytest.raises(InvalidInput, match="no replica 3"):
        store.announce_replica(3, HERE, "x")


def entries(*pairs: tuple[int, int | None]) -> dict[int, ReplicaEntry]:
    return {n: ReplicaEntry(*pair) for n, pair in enumerate(pairs)}


def test_a_replica_outside_the_last_session_can_be_replaced(store: ClusterStore) -> None:
    record = Roster(5, 2, entries((4, UNRESOLVED), (4, UNRESOLVED), (3, 17)))
    for p in range(3):  # partition 3 was never opened
        store.set_roster(p, record, 0)
    store.replace_replica(2)
    for p in range(3):
        assert store.roster(p)[0] == Roster(5, 2, entries((4, UNRESOLVED), (4, UNRESOLVED), (-1, UNRESOLVED)))
    assert store.roster(3) == (Roster.initial([0, 1, 2]), 0)
    versions = [store.roster(p)[1] for p in range(4)]
    store.replace_replica(2)
    assert [store.roster(p)[1] for p in range(4)] == versions


def test_a_member_of_a_last_session_is_not_replaced_and_nothing_changes(store: ClusterStore) -> None:
    out = Roster(5, 2, entries((4, UNRESOLVED), (4, UNRESOLVED), (3, 17)))
    member = Roster(5, 2, entries((4, UNRESOLVED), (3, 9), (4, UNRESOLVED)))
    for p, record in enumerate([out, out, out, member]):
        store.set_roster(p, record, 0)
    with pytest.raises(CoordinationError, match="replica 2 is a member of partition 3's last session"):
        store.replace_replica(2)
    assert [store.roster(p) for p in range(4)] == [(out, 1), (out, 1), (out, 1), (member, 1)]
    with pytest.raises(CoordinationError, match="replica 9 is not assigned to partition 0"):
        store.replace_replica(9)


def test_the_admin_lock_is_held_by_one(harness: Harness, store: ClusterStore, zookeeper: ZooKeeper, root: str) -> None:
    other_zookeeper = harness.client()
    other = ClusterStore(other_zookeeper, root)
    with store.admin_lock("ann"), pytest.raises(CoordinationError, match="held by ann"), other.admin_lock("bob"):
        raise AssertionError("two hold the lock")
    with other.admin_lock("bob"):
        other_zookeeper.close()  # as a crash would, once the session has timed out
        with store.admin_lock("ann"):
            assert zookeeper.owner(f"/{root}/store/admin") == zookeeper.session_id
    assert zookeeper.exists(f"/{root}/store/admin") is None


def test_who_has_lost_the_admin_lock_with_the_session_is_told_and_leaves_it_to_others(
    harness: Harness, store: ClusterStore, root: str
) -> None:
    late = harness.client()
    with ClusterStore(late, root).admin_lock("ann") as check_held:
        check_held()
        harness.expire(late)
        with (
            store.admin_lock("bob"),
            pytest.raises(CoordinationError, match=r"was lost with the session|SessionExpired"),
        ):
            check_held()
    assert store.zookeeper.exists(f"/{root}/store/admin") is None


class Contender:
    """Records what its leadership goes through."""

    def __init__(self, store: ClusterStore, name: str) -> None:
        self.events: Seen[str] = Seen()
        self.leadership = store.lead(name, lambda: self.events("elected"), lambda: self.events("lost"))


def test_one_leads_and_the_next_takes_over(harness: Harness, store: ClusterStore, root: str) -> None:
    first = Contender(store, "first")
    first.events.until("elected".__eq__)
    other_zookeeper = harness.client()
    second = Contender(ClusterStore(other_zookeeper, root), "second")
    assert store.leader() == "first"
    assert not second.leadership.leading
    first.leadership.cancel()
    first.leadership.cancel()
    second.events.until("elected".__eq__)
    assert (store.leader(), first.leadership.leading, second.leadership.leading) == ("second", False, True)
    second.leadership.cancel()
    assert store.leader() is None
    assert first.events.waiting() == second.events.waiting() == []


def test_an_expired_leader_loses_and_contends_again(harness: Harness, store: ClusterStore, root: str) -> None:
    zookeeper = harness.client()
    contender = Contender(ClusterStore(zookeeper, root), "me")
    contender.events.until("elected".__eq__)
    for _ in range(3):
        harness.expire(zookeeper)
        assert contender.events.until(lambda event: True) == "lost"
        assert contender.events.until(lambda event: True) == "elected"
        assert zookeeper.owner(f"/{root}/store/leader") == zookeeper.session_id
    contender.leadership.cancel()


def test_a_leader_whose_node_is_deleted_at_once_is_told(store: ClusterStore, zookeeper: ZooKeeper, root: str) -> None:
    contender = Contender(store, "me")
    contender.events.until("elected".__eq__)
    zookeeper.delete(f"/{root}/store/leader")
    assert contender.events.until(lambda event: True) == "lost"
    assert contender.events.until(lambda event: True) == "elected"
    contender.leadership.cancel()


# ---- on which replicas partitions are ----------------------------------------------------------------------------


def test_each_partition_is_made_on_so_many_of_the_replicas(zookeeper: ZooKeeper, root: str) -> None:
    store = ClusterStore(zookeeper, root)
    places = {n: ReplicaPlace(f"10.0.0.{n}", "east" if n < 3 else "west") for n in range(5)}
    info = store.initialize(6, range(5), {}, 3, places)
    expected = list(islice(choose_sets(places, 3), 9))
    assert [tuple(store.roster(p)[0].replicas) for p in range(6)] == expected[:6]
    again = ClusterStore(zookeeper, root)
    assert again.info() == info
    assert (info.replication, info.members.places, info.replica_ids) == (3, places, (0, 1, 2, 3, 4))
    again.spaces.create("orders", 3)
    again.spaces.finish(9)
    assert [tuple(store.roster(p)[0].replicas) for p in range(9)] == expected, "a space goes on where the last ended"


def test_a_cluster_of_another_replication_is_refused(zookeeper: ZooKeeper, root: str) -> None:
    ClusterStore(zookeeper, root).initialize(2, range(5), {}, 3)
    for replication in (0, 5):
        with pytest.raises(ClusterMismatch, match="has each partition on 3 replicas, not on 5"):
            ClusterStore(zookeeper, root).initialize(2, range(5), {}, replication)


@pytest.mark.parametrize("replication", [-1, 4])
def test_a_partition_on_more_replicas_than_there_are_is_refused(
    zookeeper: ZooKeeper, root: str, replication: int
) -> None:
    with pytest.raises(InvalidInput, match="a partition cannot be on"):
        ClusterStore(zookeeper, root).initialize(1, range(3), {}, replication)
    assert zookeeper.exists(f"/{root}") is None


def test_a_cluster_from_before_there_were_sets_has_everything_everywhere(
    zookeeper: ZooKeeper, root: str, store: ClusterStore
) -> None:
    path = f"/{root}/store/cluster"
    fields = json.loads(zookeeper.get(path)[0])
    del fields["replication"], fields["places"]
    zookeeper.set(path, json.dumps(fields).encode(), -1)
    info = ClusterStore(zookeeper, root).info()
    assert (info.replication, info.replica_ids) == (3, (0, 1, 2))
    assert info.members.places == dict.fromkeys(range(3), ReplicaPlace())


def test_a_lost_replica_is_replaced_in_what_it_holds_and_nowhere_else(zookeeper: ZooKeeper, root: str) -> None:
    store = ClusterStore(zookeeper, root)
    store.initialize(5, range(5), {}, 3)
    held = [p for p in range(5) if 0 in store.roster(p)[0].replicas]
    assert 0 < len(held) < 5
    for p in held:
        roster, version = store.roster(p)
        entries = dict.fromkeys(roster.replicas, ReplicaEntry(4, None)) | {0: ReplicaEntry(3, 17)}
        store.set_roster(p, replace(roster, replicas=entries), version)
    before = [store.roster(p) for p in range(5) if p not in held]
    store.replace_replica(0)
    assert [store.roster(p)[0].replicas[0] for p in held] == [ReplicaEntry(-1, None)] * len(held)
    assert [store.roster(p) for p in range(5) if p not in held] == before
    other = next(p for p in range(5) if p not in held)
    with pytest.raises(CoordinationError, match=f"replica 0 is not assigned to partition {other}"):
        store.replace_replica(0, [other])


def test_a_replica_that_came_later_is_replaced_by_who_has_known_the_cluster_before(
    zookeeper: ZooKeeper, root: str
) -> None:
    store = ClusterStore(zookeeper, root)
    store.initialize(2, range(3), {}, 3)
    store.members.change(lambda members: members.with_replica("node:10.0.0.4", ReplicaPlace("10.0.0.4")))
    roster, version = store.roster(1)
    entries = {1: ReplicaEntry(4, None), 2: ReplicaEntry(4, None), 3: ReplicaEntry(3, 17)}
    store.set_roster(1, replace(roster, replicas=entries), version)
    store.replace_replica(3)
    assert store.roster(1)[0].replicas[3] == ReplicaEntry(-1, None)
