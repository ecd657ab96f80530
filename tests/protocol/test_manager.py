"""The manager's decisions, without Ray, sockets or ZooKeeper."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_ray.errors import ConfigError
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.manager import (
    AssignmentRead,
    Effect,
    Elected,
    EndpointAnswered,
    EndpointRefused,
    EndpointSilent,
    EndpointWell,
    Event,
    LeadershipLost,
    ManagerMachine,
    Probe,
    ReadAssignment,
    Registered,
    RemoveRegistration,
    ServersCutOff,
    ServersSeen,
    ServersWanted,
    SettleOver,
    StartSettling,
    StopProbe,
    WriteAssignment,
    WriteFailed,
)
from waltz_ray.protocol.placement import Assignment, NodeView, Owner, place_replicas
from waltz_ray.protocol.spaces import Space, SpaceState, SpaceTable

A, B, A2 = Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", 2), Endpoint("127.0.0.1", 3)
BOTH = {0: Registered(A), 1: Registered(B)}


def table(log: int, *further: Space) -> SpaceTable:
    spaces = (Space("log", "log", 0, log, SpaceState.READY), *further)
    return SpaceTable(max(space.partitions.stop for space in spaces), {space.name: space for space in spaces})


def machine() -> ManagerMachine:
    return ManagerMachine(table(4), frozenset((0, 1)))


def running() -> ManagerMachine:
    """Leads, two servers, everything assigned."""
    m = machine()
    m.step(Elected())
    m.step(ServersSeen(BOTH))
    (write,) = writes(m.step(AssignmentRead(Assignment(), 0)))
    assert m.step(AssignmentRead(write.assignment, 1)) == []
    return m


def writes(effects: list[Effect]) -> list[WriteAssignment]:
    return [effect for effect in effects if isinstance(effect, WriteAssignment)]


def servers_of(assignment: Assignment) -> set[int]:
    return {owner.server_id for owner in assignment.owners.values()}


def test_an_elected_manager_reads_before_it_writes() -> None:
    m = machine()
    assert m.step(Elected()) == [StartSettling(), ReadAssignment()]
    assert m.step(ServersSeen(BOTH)) == [Probe(0, A), Probe(1, B)]
    (write,) = writes(m.step(AssignmentRead(Assignment(), 7)))
    assert write.version == 7
    assert servers_of(write.assignment) == {0, 1}
    assert {owner.generation for owner in write.assignment.owners.values()} == {1}


def test_the_first_server_of_a_starting_cluster_does_not_get_everything() -> None:
    m = machine()
    m.step(Elected())
    m.step(AssignmentRead(Assignment(), 0))
    assert m.step(ServersSeen({0: Registered(A)})) == [Probe(0, A)]
    (write,) = writes(m.step(ServersSeen(BOTH)))
    assert servers_of(write.assignment) == {0, 1}


def test_after_the_settle_time_whoever_is_there_gets_everything() -> None:
    m = machine()
    m.step(Elected())
    m.step(AssignmentRead(Assignment(), 0))
    m.step(ServersSeen({0: Registered(A)}))
    (write,) = writes(m.step(SettleOver()))
    assert servers_of(write.assignment) == {0}


def test_a_refused_endpoint_moves_its_partitions_in_the_same_step() -> None:
    m = running()
    removal, write = m.step(EndpointRefused(0, A))
    assert removal == RemoveRegistration(0)
    assert isinstance(write, WriteAssignment)
    assert servers_of(write.assignment) == {1}
    # ZooKeeper still names the dead one for a moment: nothing comes back to it
    assert m.step(AssignmentRead(write.assignment, 2)) == []
    assert m.step(ServersSeen(BOTH)) == []
    assert m.step(ServersSeen({1: Registered(B)})) == [StopProbe(0)]


def test_a_restarted_server_is_probed_anew_and_gets_its_share() -> None:
    m = running()
    _, write = m.step(EndpointRefused(0, A))
    assert isinstance(write, WriteAssignment)
    m.step(AssignmentRead(write.assignment, 2))
    probe, again = m.step(ServersSeen({0: Registered(A2), 1: Registered(B)}))
    assert probe == Probe(0, A2)
    assert isinstance(again, WriteAssignment)
    assert servers_of(again.assignment) == {0, 1}


def test_news_of_a_predecessor_is_ignored() -> None:
    m = running()
    m.step(ServersSeen({0: Registered(A2), 1: Registered(B)}))
    assert m.step(EndpointRefused(0, A)) == []
    assert m.step(EndpointRefused(9, A)) == []


def test_a_wrong_suspicion_is_taken_back() -> None:
    m = running()
    _, write = m.step(EndpointRefused(0, A))
    assert isinstance(write, WriteAssignment)
    m.step(AssignmentRead(write.assignment, 2))
    assert m.step(EndpointAnswered(0, A2)) == []
    (back,) = writes(m.step(EndpointAnswered(0, A)))
    assert servers_of(back.assignment) == {0, 1}


def test_a_silent_server_keeps_its_registration_and_loses_its_partitions() -> None:
    m = running()
    (write,) = m.step(EndpointSilent(0, A))
    assert isinstance(write, WriteAssignment)
    assert servers_of(write.assignment) == {1}
    assert m.step(AssignmentRead(write.assignment, 2)) == []
    assert m.step(ServersSeen(BOTH)) == []
    assert m.step(EndpointWell(0, A2)) == [], "news of a predecessor"
    (back,) = writes(m.step(EndpointWell(0, A)))
    assert servers_of(back.assignment) == {0, 1}


def test_who_hears_nobody_is_deaf_himself() -> None:
    m = running()
    (write,) = writes(m.step(EndpointSilent(0, A)))
    m.step(AssignmentRead(write.assignment, 2))
    assert m.step(EndpointSilent(1, B)) == [], "nobody answers: nothing moves back to who was silent before"
    assert m.step(EndpointRefused(0, A)) == [RemoveRegistration(0)]
    assert m.step(EndpointWell(1, B)) == [], "it has everything already"


def test_a_server_that_reaches_too_few_replicas_gives_way_to_one_that_reaches_more() -> None:
    m = running()
    (write,) = m.step(ServersCutOff(frozenset((0,))))
    assert isinstance(write, WriteAssignment)
    assert servers_of(write.assignment) == {1}
    assert m.step(AssignmentRead(write.assignment, 2)) == []
    (back,) = writes(m.step(ServersCutOff(frozenset())))
    assert servers_of(back.assignment) == {0, 1}


def test_where_all_reach_too_few_replicas_nothing_moves() -> None:
    assert running().step(ServersCutOff(frozenset((0, 1)))) == []


def test_a_server_that_is_cut_off_serves_where_the_others_are_gone_or_silent() -> None:
    m = running()
    (write,) = writes(m.step(ServersCutOff(frozenset((0,)))))
    m.step(AssignmentRead(write.assignment, 2))
    (back,) = writes(m.step(EndpointSilent(1, B)))
    assert servers_of(back.assignment) == {0}


def test_a_silent_server_that_is_started_again_is_another_one() -> None:
    m = running()
    (write,) = writes(m.step(EndpointSilent(0, A)))
    m.step(AssignmentRead(write.assignment, 2))
    (again,) = writes(m.step(ServersSeen({0: Registered(A2), 1: Registered(B)})))
    assert servers_of(again.assignment) == {0, 1}
    m.step(AssignmentRead(again.assignment, 3))
    assert m.step(EndpointSilent(0, A)) == [], "news of a predecessor"


def test_a_new_leader_removes_what_it_saw_die_before() -> None:
    m = running()
    m.step(LeadershipLost())
    m.step(EndpointRefused(0, A))
    assert RemoveRegistration(0) in m.step(Elected())


def test_the_death_of_every_server_leaves_nobody_assigned_and_generations_remembered() -> None:
    m = running()
    _, write = m.step(EndpointRefused(0, A))
    assert isinstance(write, WriteAssignment)
    assert m.step(EndpointRefused(1, B)) == [RemoveRegistration(1)]  # one write at a time
    (nobody,) = writes(m.step(AssignmentRead(write.assignment, 2)))
    assert nobody.assignment.owners == {}
    assert nobody.assignment.unassigned == {p: write.assignment.generation(p) for p in range(4)}


def test_a_drained_server_gives_up_what_it_has_in_one_step_and_is_given_nothing() -> None:
    m = running()
    (write,) = writes(m.step(ServersWanted(frozenset((1,)), frozenset((0,)))))
    assert servers_of(write.assignment) == {1}
    m.step(AssignmentRead(write.assignment, 2))
    assert m.step(ServersSeen(BOTH)) == [], "it is there, and stays empty"
    (back,) = writes(m.step(ServersWanted(frozenset((0, 1)), frozenset())))
    assert servers_of(back.assignment) == {0, 1}


def test_where_only_drained_servers_are_left_they_serve() -> None:
    m = running()
    (write,) = writes(m.step(ServersWanted(frozenset((1,)), frozenset((0,)))))
    m.step(AssignmentRead(write.assignment, 2))
    (back,) = writes(m.step(EndpointRefused(1, B)))
    assert servers_of(back.assignment) == {0}


def test_nobody_waits_for_a_drained_server_to_come() -> None:
    m = machine()
    m.step(ServersWanted(frozenset((1,)), frozenset((0,))))
    m.step(Elected())
    m.step(AssignmentRead(Assignment(), 0))
    (write,) = writes(m.step(ServersSeen({1: Registered(B)})))
    assert servers_of(write.assignment) == {1}


def test_only_a_leader_orders() -> None:
    m = running()
    assert m.step(LeadershipLost()) == []
    assert m.step(EndpointRefused(0, A)) == []
    assert m.step(ServersSeen({1: Registered(B)})) == [StopProbe(0)]
    assert m.step(SettleOver()) == []
    assert m.step(WriteFailed()) == []


def test_a_lost_compare_and_set_is_followed_by_reading() -> None:
    m = running()
    m.step(EndpointRefused(0, A))
    assert m.step(WriteFailed()) == [ReadAssignment()]
    stored = Assignment({p: Owner(1, 9) for p in range(4)})
    assert writes(m.step(AssignmentRead(stored, 5))) == []  # somebody did it already


def test_reelection_reads_again() -> None:
    m = running()
    m.step(LeadershipLost())
    assert m.step(Elected()) == [StartSettling(), ReadAssignment()]
    stored = Assignment({p: Owner(p % 2, 4) for p in range(4)})
    assert m.step(AssignmentRead(stored, 5)) == []


EVENTS = st.one_of(
    st.just(Elected()),
    st.just(LeadershipLost()),
    st.just(SettleOver()),
    st.dictionaries(st.integers(0, 2), st.sampled_from([A, B, A2]).map(Registered)).map(ServersSeen),
    st.builds(EndpointAnswered, st.integers(0, 2), st.sampled_from([A, B, A2])),
    st.builds(EndpointRefused, st.integers(0, 2), st.sampled_from([A, B, A2])),
    st.builds(EndpointSilent, st.integers(0, 2), st.sampled_from([A, B, A2])),
    st.builds(EndpointWell, st.integers(0, 2), st.sampled_from([A, B, A2])),
    st.frozensets(st.integers(0, 2)).map(ServersCutOff),
    st.sampled_from(["write succeeds", "write conflicts", "read"]),
)


@settings(max_examples=300)
@given(st.lists(EVENTS, max_size=40))
def test_generations_only_rise_and_in_the_end_living_servers_have_everything(script: list[Event | str]) -> None:
    m = ManagerMachine(table(3), frozenset((0, 1)))
    stored, version = Assignment(), 0
    pending: list[Effect] = []
    highest = dict.fromkeys(range(3), 0)

    def settle_io(outcome: str) -> None:
        nonlocal stored, version, pending
        orders, pending = pending, []
        for order in orders:
            if isinstance(order, ReadAssignment):
                pending += m.step(AssignmentRead(stored, version))
            elif isinstance(order, WriteAssignment):
                if outcome == "write conflicts" or order.version != version:
                    pending += m.step(WriteFailed())
                    continue
                for p in range(3):
                    assert order.assignment.generation(p) >= highest[p]
                    highest[p] = order.assignment.generation(p)
                stored, version = order.assignment, version + 1
                pending += m.step(AssignmentRead(stored, version))

    for event in script:
        if isinstance(event, str):
            settle_io(event)
        else:
            pending += m.step(event)
    pending += m.step(ServersSeen(BOTH)) + m.step(Elected()) + m.step(SettleOver())
    for _ in range(6):
        settle_io("write succeeds")
    assert pending == []
    live = set(m.live())
    if not live and set(BOTH) - m.gone.keys():
        return  # nobody answers: everything is as it was
    assert {p: stored.owner(p) is not None for p in range(3)} == dict.fromkeys(range(3), bool(live))
    assert servers_of(stored) <= live


NODE_1 = NodeView("10.0.0.1", frozenset(("CPU", "waltz-replica-0", "waltz-replica-1")))
NODE_2 = NodeView("10.0.0.2", frozenset(("CPU", "waltz-replica-2")))
BARE = NodeView("127.0.0.1", frozenset(("CPU",)))


@pytest.mark.parametrize(
    ("nodes", "recorded", "placed"),
    [
        ([NODE_1, NODE_2], None, {n: f"waltz-replica-{n}" for n in range(3)}),
        ([BARE], None, dict.fromkeys(range(3), "node:127.0.0.1")),
        ([NODE_1], None, {0: "waltz-replica-0", 1: "waltz-replica-1", 2: "node:10.0.0.1"}),
        ([NODE_1, NODE_2], {0: "node:9.9.9.9"}, {0: "node:9.9.9.9"}),
    ],
)
def test_replicas_are_tied_to_their_nodes(
    nodes: list[NodeView], recorded: dict[int, str] | None, placed: dict[int, str]
) -> None:
    assert place_replicas((0, 1, 2), nodes, recorded) == placed


def test_a_replica_goes_where_its_disk_is_named() -> None:
    named = {0: "waltz-replica-1", 2: ""}
    wanted = {0: "waltz-replica-1", 1: "waltz-replica-1", 2: "waltz-replica-2"}
    assert place_replicas((0, 1, 2), [NODE_1, NODE_2], named=named) == wanted
    with pytest.raises(ConfigError, match=r"replica 1 is tied to no disk: none of the 1 nodes .* the resource disk-b"):
        place_replicas((0, 1), [NODE_1], named={1: "disk-b"})  # and never the only node instead


def test_a_replica_without_a_place_says_how_to_start_its_node() -> None:
    with pytest.raises(ConfigError, match=r'replica 2 .* --resources \'\{"waltz-replica-2": 1\}\''):
        place_replicas((0, 1, 2), [NODE_1, BARE])
