"""Placement: examples that can be checked by eye, and the promises of the docstring as properties."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_ray.protocol.placement import Assignment, Owner, ServerInfo, assign
from waltz_ray.protocol.roster import UNRESOLVED, ReplicaEntry, Roster

PLAIN = ServerInfo()


def plain(*server_ids: int) -> dict[int, ServerInfo]:
    return dict.fromkeys(server_ids, PLAIN)


def loads(assignment: Assignment, servers: dict[int, ServerInfo]) -> list[int]:
    return [len(assignment.partitions_of(server_id)) for server_id in servers]


@st.composite
def situations(draw: st.DrawFn, preferences: bool = True) -> tuple[int, dict[int, ServerInfo], Assignment]:
    """(partitions, live servers, what was assigned before, perhaps to servers that are gone)."""
    partitions = draw(st.integers(0, 24))
    some = st.lists(st.integers(-1, partitions), max_size=4).map(tuple) if preferences else st.just(())
    servers = draw(st.dictionaries(st.integers(1, 9), some.map(ServerInfo), max_size=6))
    owners: dict[int, Owner] = {}
    unassigned: dict[int, int] = {}
    for p in range(partitions):
        server_id, generation = draw(st.integers(-1, 9)), draw(st.integers(1, 5))
        if server_id > 0:
            owners[p] = Owner(server_id, generation)
        elif server_id == 0:
            unassigned[p] = generation
    return partitions, servers, Assignment(owners, unassigned)


def test_first_assignment_is_even_and_of_generation_1() -> None:
    result = assign(5, plain(1, 2), Assignment())
    assert result.partitions_of(1) == {0: 1, 2: 1, 4: 1}
    assert result.partitions_of(2) == {1: 1, 3: 1}


def test_a_dead_servers_partitions_move_and_only_those() -> None:
    before = assign(6, plain(1, 2, 3), Assignment())
    after = assign(6, plain(1, 3), before)
    moved = [p for p in range(6) if after.owners[p] != before.owners[p]]
    assert moved == sorted(before.partitions_of(2))
    assert all(after.generation(p) == 2 for p in moved)
    assert loads(after, plain(1, 3)) == [3, 3]


def test_preferred_partitions_come_first_and_outweigh_balance() -> None:
    servers = {1: ServerInfo((0, 1, 2, 3)), 2: PLAIN}
    result = assign(5, servers, assign(5, plain(2), Assignment()))
    assert sorted(result.partitions_of(1)) == [0, 1, 2, 3]
    assert result.owners[4] == Owner(2, 1)


def test_the_owner_keeps_a_partition_that_two_prefer() -> None:
    servers = {1: ServerInfo((0,)), 2: ServerInfo((0,))}
    assert assign(1, servers, Assignment({0: Owner(2, 7)})).owners[0] == Owner(2, 7)
    assert assign(1, servers, Assignment({0: Owner(3, 7)})).owners[0] == Owner(1, 8)


def test_generations_are_remembered_while_nobody_owns() -> None:
    before = Assignment({0: Owner(1, 4)}, {1: 9})
    nobody = assign(3, {}, before)
    assert nobody == Assignment({}, {0: 4, 1: 9})
    back = assign(3, plain(1), nobody)
    assert back.owners == {0: Owner(1, 5), 1: Owner(1, 10), 2: Owner(1, 1)}


@given(situations())
def test_every_partition_has_a_live_owner_if_there_is_a_server(
    situation: tuple[int, dict[int, ServerInfo], Assignment],
) -> None:
    partitions, servers, current = situation
    result = assign(partitions, servers, current)
    assert sorted(result.owners) == (list(range(partitions)) if servers else [])
    assert {owner.server_id for owner in result.owners.values()} <= servers.keys()


@given(situations(preferences=False))
def test_loads_differ_by_one_at_the_most(situation: tuple[int, dict[int, ServerInfo], Assignment]) -> None:
    partitions, servers, current = situation
    counts = loads(assign(partitions, servers, current), servers)
    assert not counts or max(counts) - min(counts) <= 1


@given(situations())
def test_preferences_hold_and_the_rest_is_balanced_over_them(
    situation: tuple[int, dict[int, ServerInfo], Assignment],
) -> None:
    partitions, servers, current = situation
    result = assign(partitions, servers, current)
    wanted = {p: {s for s, info in servers.items() if p in info.preferred} for p in range(partitions)}
    for p, candidates in wanted.items():
        assert not candidates or result.owners[p].server_id in candidates
    lightest = min(loads(result, servers), default=0)
    for server_id in servers:
        mine = result.partitions_of(server_id)
        if len(mine) > lightest + 1:
            assert all(wanted[p] for p in mine), "above balance with a partition nobody prefers"


@given(situations())
def test_the_result_is_stable(situation: tuple[int, dict[int, ServerInfo], Assignment]) -> None:
    partitions, servers, current = situation
    result = assign(partitions, servers, current)
    assert assign(partitions, dict(reversed(servers.items())), current) == result
    assert assign(partitions, servers, result) == result


@given(st.integers(1, 6), st.integers(0, 24), st.randoms(use_true_random=False))
def test_what_is_balanced_does_not_move(servers: int, partitions: int, random: Random) -> None:
    order = [p % servers + 1 for p in range(partitions)]
    names = list(range(1, servers + 1))
    random.shuffle(names)  # which servers have one more is anybody's, not only the lowest IDs
    current = Assignment({p: Owner(names[place - 1], 3) for p, place in enumerate(order)})
    assert assign(partitions, plain(*names), current) == current


@given(situations(preferences=False), st.integers(10, 12))
def test_a_joining_server_moves_no_more_than_its_share(
    situation: tuple[int, dict[int, ServerInfo], Assignment], newcomer: int
) -> None:
    partitions, servers, current = situation
    before = assign(partitions, servers, current)
    after = assign(partitions, {**servers, newcomer: PLAIN}, before)
    moved = [p for p in range(partitions) if after.owners[p] != before.owner(p)]
    assert len(moved) <= math.ceil(partitions / (len(servers) + 1))
    assert all(after.owners[p].server_id == newcomer for p in moved)


@given(situations())
def test_a_generation_rises_by_one_iff_the_partition_gets_another_owner(
    situation: tuple[int, dict[int, ServerInfo], Assignment],
) -> None:
    partitions, servers, current = situation
    result = assign(partitions, servers, current)
    for p in range(partitions):
        old, new = current.owner(p), result.owner(p)
        moved = new is not None and (old is None or old.server_id != new.server_id)
        assert result.generation(p) == current.generation(p) + moved


def test_a_partition_record_round_trips_and_reads_well() -> None:
    record = Roster(7, 3, {0: ReplicaEntry(6, UNRESOLVED), 1: ReplicaEntry(5, 41), 2: ReplicaEntry(-1, -1)})
    assert Roster.from_json(record.to_json()) == record
    assert '"closing_mark": 41' in record.to_json()
    assert record.last_published_session == 6
    assert Roster.initial([1, 0]).last_published_session == -1
    assert Roster.from_json(Roster.initial([1, 0]).to_json()).replicas == {
        0: ReplicaEntry(-1, UNRESOLVED),
        1: ReplicaEntry(-1, UNRESOLVED),
    }


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"version": 1', '"version": 2', "version 1"),
        ('"session": 7', '"session": -3', "session of the roster"),
        ('"generation": 3', '"generation": true', "generation of the roster"),
        ('"closing_mark": 41', '"mark": 41', "replica 1 of the roster"),
        ('"closing_mark": 41', '"closing_mark": "41"', "closing_mark of the roster"),
        ('"replicas"', '"replica"', "no replicas"),
    ],
)
def test_a_damaged_partition_record_is_refused(old: str, new: str, problem: str) -> None:
    text = Roster(7, 3, {1: ReplicaEntry(5, 41)}).to_json()
    assert old in text
    with pytest.raises(ValueError, match=problem):
        Roster.from_json(text.replace(old, new))
