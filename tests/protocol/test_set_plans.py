"""Where partitions shall be when replicas come and go: nobody moves without need, and the whole gets better."""

from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.replica_sets import ReplicaPlace, choose_sets, nowhere_in_particular
from waltz_ray.protocol.set_plans import balanced, checked_set, crowding, kept_on, loads_of, moved_off


def made(places: dict[int, ReplicaPlace], replication: int, partitions: int) -> dict[int, frozenset[int]]:
    """As a cluster is made with these replicas."""
    return {p: frozenset(one) for p, one in enumerate(islice(choose_sets(places, replication), partitions))}


places_of = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), min_size=5, max_size=9).map(
    lambda drawn: {number: ReplicaPlace(f"n{node}", f"z{zone}") for number, (node, zone) in enumerate(drawn)}
)


@settings(max_examples=60, deadline=None)
@given(places_of, st.sampled_from([3, 5]), st.integers(1, 40), st.data())
def test_who_leaves_has_nothing_and_nothing_else_moves(
    places: dict[int, ReplicaPlace], replication: int, partitions: int, data: st.DataObject
) -> None:
    sets = made(places, replication, partitions)
    leaving = data.draw(st.sets(st.sampled_from(sorted(places)), max_size=len(places) - replication))
    staying = {r: place for r, place in places.items() if r not in leaving}
    plan = moved_off(sets, staying)
    assert plan.keys() == {p for p, one in sets.items() if one & leaving}
    for p, one in plan.items():
        assert len(one) == len(sets[p])
        assert one <= staying.keys()
        assert one >= sets[p] - leaving


@settings(max_examples=60, deadline=None)
@given(places_of, st.sampled_from([3, 5]), st.integers(1, 40), st.randoms())
def test_a_balanced_cluster_is_better_and_stays_as_it_is(
    places: dict[int, ReplicaPlace], replication: int, partitions: int, random: object
) -> None:
    few = sorted(places)[:replication]
    sets = {p: frozenset(few) for p in range(partitions)}  # all on the first ones, as before the others were added
    plan = balanced(sets, places)
    after = {**sets, **plan}
    assert all(len(one) == replication and one <= places.keys() for one in after.values())
    assert all(crowding(after[p], places) <= crowding(sets[p], places) for p in sets)
    assert balanced(after, places) == {}, "asked again nothing moves"


@given(st.integers(3, 8), st.integers(1, 3), st.sampled_from([3, 5]), st.integers(1, 60))
def test_replicas_that_are_added_get_their_share_and_no_more_moves_than_that(
    replicas: int, more: int, replication: int, partitions: int
) -> None:
    before = nowhere_in_particular(range(max(replicas, replication)))
    after = nowhere_in_particular(range(len(before) + more))
    sets = made(before, replication, partitions)
    plan = balanced(sets, after)
    loads = loads_of({**sets, **plan}, after)
    assert max(loads.values()) - min(loads.values()) <= 1
    exchanged = sum(len(one - sets[p]) for p, one in plan.items())
    share = partitions * replication // len(after) + 1
    assert exchanged <= more * share


def test_zones_come_before_loads() -> None:
    places = {
        0: ReplicaPlace("a", "x"),
        1: ReplicaPlace("b", "x"),
        2: ReplicaPlace("c", "y"),
        3: ReplicaPlace("d", "z"),
    }
    assert balanced({0: frozenset((0, 1, 2))}, places) == {0: frozenset((1, 2, 3))}
    assert crowding((0, 1, 2), places) == (1, 0)


def test_of_two_that_leave_at_once_both_are_replaced() -> None:
    staying = nowhere_in_particular((2, 3, 4, 5))
    assert moved_off({0: frozenset((0, 1, 2))}, staying) == {0: frozenset((2, 3, 4))}
    with pytest.raises(InvalidInput, match="partition 0 is on 3 replicas, and only 2 are left"):
        moved_off({0: frozenset((0, 1, 2))}, nowhere_in_particular((2, 3)))


@pytest.mark.parametrize(
    ("replicas", "why"),
    [
        ((1, 4), "on 3 replicas at least, not on 2"),
        ((1, 4, 4), "different replicas"),
        ((1, 4, 9), "replica 9 can be given no partition.*there are 0, 1, 2, 3, 4, 5, 6"),
        ((1, 2, 3, 4), "not on 4"),
        ((0, 1, 2, 3, 4, 5, 6), "not on 7"),
    ],
)
def test_what_a_person_asks_for_is_checked(replicas: tuple[int, ...], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        checked_set(replicas, range(7), 3)


def test_three_and_five_can_be_asked_for() -> None:
    assert checked_set((5, 1, 4), range(6), 3) == {1, 4, 5}
    assert checked_set((0, 1, 2, 3, 4), range(6), 3) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    ("now", "wanted", "staying", "expected"),
    [
        ((1, 2, 3), (1, 2, 4), (1, 2, 3, 4), {1, 2, 3}),  # nothing was done yet
        ((1, 2, 3, 4), (1, 2, 4), (1, 2, 3, 4), {1, 2, 3}),  # on its way: no set of four
        ((3, 4, 5), (1, 2, 6), (1, 2, 3, 6, 7), {1, 2, 3}),  # 4 and 5 are drained, too
        ((3, 4, 5), (1, 2, 6), (1, 2, 3, 5, 6), {1, 3, 5}),  # 4 is
        ((0, 1, 3, 4, 8), (0, 1, 5, 6, 7), (0, 1, 3, 5, 6, 7), {0, 1, 3, 5, 6}),
    ],
)
def test_a_replica_that_is_not_to_be_drained_after_all(
    now: tuple[int, ...], wanted: tuple[int, ...], staying: tuple[int, ...], expected: set[int]
) -> None:
    assert kept_on(3, frozenset(now), frozenset(wanted), staying) == expected
