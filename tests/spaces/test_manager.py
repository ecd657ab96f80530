"""What the manager decides about spaces, and its shell over the twin of ZooKeeper."""

from __future__ import annotations

import asyncio
import socket

from tests.actors.test_manager import Rig
from tests.protocol.test_manager import BOTH, table, writes
from waltz_ray import compat
from waltz_ray.actors.manager import Manager
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.manager import (
    AssignmentRead,
    AwaitSessions,
    Effect,
    Elected,
    FinishFailed,
    FinishSpaces,
    LeadershipLost,
    ManagerMachine,
    PartitionsMade,
    ServersSeen,
    SpacesSeen,
)
from waltz_ray.protocol.placement import Assignment, Owner
from waltz_ray.protocol.roster import UNRESOLVED, ReplicaEntry, Roster
from waltz_ray.protocol.spaces import Space, SpaceState

ORDERS = Space("orders", "log", 2, 3, SpaceState.MAKING)
READY, GONE = ORDERS.in_state(SpaceState.READY), ORDERS.in_state(SpaceState.GONE)


def leads(made_with: int = 2) -> ManagerMachine:
    """Everything is assigned."""
    m = ManagerMachine(table(made_with), frozenset((0, 1)))
    m.step(Elected())
    m.step(ServersSeen(BOTH))
    (write,) = writes(m.step(AssignmentRead(Assignment(), 0)))
    assert m.step(AssignmentRead(write.assignment, 1)) == []
    return m


def finishes(effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, FinishSpaces | AwaitSessions)]


def test_new_partitions_are_placed_when_they_have_their_nodes_and_not_before() -> None:
    m = leads()
    assert m.step(SpacesSeen(table(2, ORDERS))) == [FinishSpaces(5)]
    assert m.step(SpacesSeen(table(2, ORDERS))) == [], "it is under way"
    awaits, write = m.step(PartitionsMade(5))
    assert awaits == AwaitSessions(ORDERS)
    assert write.assignment.owners.keys() == set(range(5))  # type: ignore[union-attr]
    assert m.step(AssignmentRead(write.assignment, 2)) == []  # type: ignore[union-attr]
    assert m.step(SpacesSeen(table(2, READY))) == []


def test_what_could_not_be_finished_is_ordered_again() -> None:
    m = leads()
    m.step(SpacesSeen(table(2, ORDERS)))
    assert m.step(FinishFailed()) == [FinishSpaces(5)]


def test_who_does_not_lead_finishes_nothing_and_whoever_leads_next_does() -> None:
    m = leads()
    m.step(LeadershipLost())
    assert m.step(SpacesSeen(table(2, ORDERS))) == []
    assert finishes(m.step(Elected())) == [FinishSpaces(5)]
    assert finishes(m.step(PartitionsMade(5))) == [AwaitSessions(ORDERS)]
    m.step(LeadershipLost())
    assert finishes(m.step(Elected())) == [AwaitSessions(ORDERS)], "of this term there is nobody who waits"


def test_a_new_manager_makes_sure_of_the_nodes_of_a_cluster_that_has_grown() -> None:
    m = ManagerMachine(table(2, READY), frozenset((0, 1)))
    assert finishes(m.step(Elected())) == [FinishSpaces(5)]


def test_a_leader_that_has_not_heard_of_a_growth_drops_nothing_of_what_another_one_has_placed() -> None:
    m = leads()
    stored = Assignment({p: Owner(p % 2, 7) for p in range(5)})
    m.step(LeadershipLost())
    m.step(Elected())
    assert writes(m.step(AssignmentRead(stored, 9))) == []
    m.step(LeadershipLost())
    m.step(Elected())
    (write,) = writes(m.step(AssignmentRead(Assignment({0: Owner(0, 1), 1: Owner(1, 1)}, {4: 7}), 10)))
    assert write.assignment.generation(4) == 8


def test_a_deleted_space_is_taken_from_its_servers_and_keeps_its_generations() -> None:
    m = leads(5)
    before = m.assignment
    assert before is not None
    (write,) = writes(m.step(SpacesSeen(table(2, GONE))))
    assert write.assignment.owners.keys() == {0, 1}
    assert write.assignment.unassigned == {p: before.generation(p) for p in (2, 3, 4)}
    assert m.step(AssignmentRead(write.assignment, 2)) == [], "and that is all"


def test_a_space_that_is_deleted_while_it_is_made_is_placed_nowhere() -> None:
    m = leads()
    m.step(SpacesSeen(table(2, ORDERS)))
    m.step(SpacesSeen(table(2, GONE)))
    assert m.step(PartitionsMade(5)) == []


# ---- the shell ------------------------------------------------------------------------------------------


def with_session(roster: Roster) -> Roster:
    return Roster(1, 1, {replica_id: ReplicaEntry(1, UNRESOLVED) for replica_id in roster.replicas})


def a_server(rig: Rig) -> socket.socket:
    """Somebody who listens, and is registered."""
    listening = socket.create_server(("127.0.0.1", 0))
    rig.store.register_server(0, Endpoint(*listening.getsockname()))
    return listening


async def until(done: object) -> None:
    async with compat.timeout(20):
        while not done():  # type: ignore[operator]
            await asyncio.sleep(0.005)


def test_a_growth_is_finished_placed_and_ready_when_each_partition_has_a_session() -> None:
    async def run() -> None:
        rig = Rig()
        await rig.manager.start()
        listening = a_server(rig)
        await until(lambda: rig.store.assignment()[0].owners.keys() == {0, 1})
        rig.store.spaces.create("orders", 2)
        await until(lambda: rig.store.assignment()[0].owners.keys() == {0, 1, 2, 3})
        rig.store.set_roster(2, with_session(rig.store.roster(2)[0]), 0)
        await asyncio.sleep(0.3)
        assert rig.store.spaces.get("orders").state is SpaceState.MAKING, "one is not there yet"
        rig.store.set_roster(3, with_session(rig.store.roster(3)[0]), 0)
        await until(lambda: rig.store.spaces.get("orders").state is SpaceState.READY)
        rig.store.spaces.delete("orders", "orders")
        await until(lambda: rig.store.assignment()[0].owners.keys() == {0, 1})
        await rig.manager.close()
        listening.close()

    asyncio.run(run())


def test_two_managers_finish_one_growth() -> None:
    """The one that led is cut off in the midst of it; both have ordered the same."""

    async def run() -> None:
        rig = Rig()
        other = Manager(ClusterStore(rig.server.client(), "demo"), 1, lambda: None, "other", 20.0, 1.5)
        await rig.manager.start()
        await other.start()
        await until(lambda: rig.manager.machine.leading)
        listening = a_server(rig)
        await until(lambda: rig.store.assignment()[0].owners)
        rig.server.disconnect(rig.client)
        rig.store.spaces.create("orders", 2)
        rig.server.expire(rig.client.session_id)
        await until(lambda: other.machine.leading)
        rig.server.reconnect(rig.client)
        await until(lambda: rig.store.assignment()[0].owners.keys() == {0, 1, 2, 3})
        assert {owner.generation for owner in rig.store.assignment()[0].owners.values()} == {1}
        await rig.manager.close()
        await other.close()
        listening.close()

    asyncio.run(run())
