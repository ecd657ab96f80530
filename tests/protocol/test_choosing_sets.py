"""Which replicas a partition is made on: balance, spread over nodes and zones, and the same for whoever asks."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_ray.protocol.placement import NodeView
from waltz_ray.protocol.replica_sets import ReplicaPlace, choose_sets, locate, nowhere_in_particular

MANY = 120


def chosen(places: dict[int, ReplicaPlace], replication: int, partitions: int = MANY) -> list[tuple[int, ...]]:
    return list(islice(choose_sets(places, replication), partitions))


def loads(places: dict[int, ReplicaPlace], sets: list[tuple[int, ...]]) -> list[int]:
    counts = Counter(replica_id for one in sets for replica_id in one)
    return [counts[replica_id] for replica_id in places]


def zoned(*zones: str) -> dict[int, ReplicaPlace]:
    """A replica in each of these zones, each on a node of its own."""
    return {replica_id: ReplicaPlace(f"node-{replica_id}", zone) for replica_id, zone in enumerate(zones)}


clusters = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=5, max_size=12).map(
    lambda drawn: {number: ReplicaPlace(f"n{node}", f"z{zone}") for number, (node, zone) in enumerate(drawn)}
)


@given(clusters, st.sampled_from([1, 3, 5]), st.integers(0, MANY))
def test_a_set_has_so_many_different_replicas_and_depends_on_nothing_that_comes_later(
    places: dict[int, ReplicaPlace], replication: int, partitions: int
) -> None:
    sets = chosen(places, replication)
    assert all(list(one) == sorted(set(one)) and set(one) <= places.keys() for one in sets)
    assert {len(one) for one in sets} == {replication}
    assert chosen(dict(reversed(places.items())), replication, partitions) == sets[:partitions]


@given(clusters, st.sampled_from([3, 5]))
def test_no_zone_has_two_more_of_a_set_than_another_with_room(
    places: dict[int, ReplicaPlace], replication: int
) -> None:
    sizes = Counter(place.zone for place in places.values())
    for one in chosen(places, replication, 30):
        found = Counter(places[replica_id].zone for replica_id in one)
        for zone, size in sizes.items():
            assert found[zone] == size or found[zone] + 1 >= max(found.values()), (zone, one)


@given(st.integers(3, 12), st.sampled_from([3, 5]), st.integers(0, MANY))
def test_loads_differ_by_one_at_the_most_at_any_number_of_partitions(
    replicas: int, replication: int, partitions: int
) -> None:
    places = nowhere_in_particular(range(max(replicas, replication)))
    found = loads(places, chosen(places, replication, partitions))
    assert max(found) - min(found) <= 1


@given(st.integers(2, 5), st.integers(1, 3), st.sampled_from([3, 5]), st.integers(0, MANY))
def test_loads_of_equal_zones_differ_by_two_at_the_most(
    zones: int, each: int, replication: int, partitions: int
) -> None:
    places = zoned(*[f"z{zone}" for _ in range(each) for zone in range(zones)])
    if replication > len(places):
        replication = len(places)
    found = loads(places, chosen(places, replication, partitions))
    assert max(found) - min(found) <= 2


def test_a_lost_zone_leaves_a_quorum_where_there_are_three() -> None:
    places = zoned("a", "a", "a", "b", "b", "c", "c")
    for replication in (3, 5):
        for one in chosen(places, replication):
            in_zones = Counter(places[replica_id].zone for replica_id in one)
            assert max(in_zones.values()) <= replication // 2


def test_a_set_is_on_as_many_nodes_as_it_can_be() -> None:
    places = {replica_id: ReplicaPlace(f"node-{replica_id // 2}") for replica_id in range(8)}
    sets = chosen(places, 3)
    assert all(len({places[replica_id].node for replica_id in one}) == 3 for one in sets)
    assert max(loads(places, sets)) - min(loads(places, sets)) <= 1


def test_the_partitions_of_a_lost_replica_have_all_others_for_peers() -> None:
    places = nowhere_in_particular(range(7))
    shared = Counter(pair for one in chosen(places, 3) for pair in combinations(one, 2))
    assert len(shared) == 7 * 6 / 2
    assert max(shared.values()) <= 2 * min(shared.values())


def test_where_all_hold_everything_there_is_one_set() -> None:
    assert chosen(zoned("a", "a", "b"), 3, 2) == [(0, 1, 2), (0, 1, 2)]


@pytest.mark.parametrize("replication", [0, 4])
def test_as_many_as_there_are_not_are_refused(replication: int) -> None:
    with pytest.raises(ValueError, match="of 3 replicas cannot hold a partition"):
        next(choose_sets(nowhere_in_particular(range(3)), replication))


def test_a_replica_is_where_its_resource_is() -> None:
    nodes = [
        NodeView("10.0.0.1", frozenset({"CPU", "waltz-replica-0", "node:10.0.0.1"}), "east"),
        NodeView("10.0.0.2", frozenset({"CPU", "waltz-replica-1"})),
    ]
    found = locate({0: "waltz-replica-0", 1: "waltz-replica-1", 2: "waltz-replica-2", 3: "node:10.0.0.1"}, nodes)
    assert found == {
        0: ReplicaPlace("10.0.0.1", "east"),
        1: ReplicaPlace("10.0.0.2"),
        2: ReplicaPlace(),
        3: ReplicaPlace("10.0.0.1", "east"),
    }
