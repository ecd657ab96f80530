"""The mover's own end: what it does step by step is in ``tests/protocol/test_set_moves.py`` and in the simulation."""

from __future__ import annotations

import asyncio

import pytest

from waltz_ray.actors.mover import Mover
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.protocol import set_moves
from waltz_ray.protocol.roster import UNRESOLVED, ReplicaEntry, Roster


def store_with_a_move() -> ClusterStore:
    store = ClusterStore(MemoryZooKeeper(MemoryZooKeeperServer()), "demo")
    store.initialize(1, range(4), {}, 3)
    store.moves.want({0: (1, 2, 3)})
    return store


def test_a_partition_without_records_is_moved_at_once() -> None:
    store = store_with_a_move()

    async def move() -> None:
        mover = Mover(store, lambda: True)
        await mover.start()
        while store.moves.read().wanted:
            await asyncio.sleep(0.01)
        await mover.close()

    asyncio.run(asyncio.wait_for(move(), 10))
    assert sorted(store.roster(0)[0].replicas) == [1, 2, 3]


def test_a_step_that_fails_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else nothing would be moved any more, and nobody would know."""

    def broken(*arguments: object) -> None:
        raise ValueError("replicas [2] may be the only ones")

    monkeypatch.setattr(set_moves, "next_step", broken)
    told: list[str] = []

    async def move() -> None:
        mover = Mover(store_with_a_move(), lambda: True, told.append)
        await mover.start()
        while not told:
            await asyncio.sleep(0.01)
        await mover.close()

    asyncio.run(asyncio.wait_for(move(), 10))
    assert told == ["manager: a step of moving partitions failed: ValueError('replicas [2] may be the only ones')"]


def published(store: ClusterStore, p: int) -> None:
    """A session of the partition on all of its set."""
    roster, version = store.roster(p)
    member = ReplicaEntry(roster.session_id + 1, UNRESOLVED)
    store.set_roster(p, Roster(roster.session_id + 1, 1, dict.fromkeys(roster.replicas, member)), version)


def test_partitions_of_a_space_that_is_deleted_on_their_way_keep_nobody_waiting() -> None:
    """No server ever opens a session of theirs, and only some partitions are on the way at a time."""
    store = ClusterStore(MemoryZooKeeper(MemoryZooKeeperServer()), "demo")
    store.initialize(1, range(4), {}, 3)
    store.spaces.create("orders", set_moves.MOST_AT_ONCE)
    store.spaces.finish(1 + set_moves.MOST_AT_ONCE)
    orders = range(1, 1 + set_moves.MOST_AT_ONCE)
    for p in orders:
        published(store, p)
        on = sorted(store.roster(p)[0].replicas)
        store.moves.want({p: {*range(4)} - {on[0]}})

    async def move() -> None:
        mover = Mover(store, lambda: True, gone=lambda: store.spaces.table().gone)
        mover.look()
        assert sorted(store.moves.read().changed) == list(orders)
        store.moves.want({0: (1, 2, 3)})
        store.spaces.delete("orders", "orders")
        mover.look()
        mover.look()

    asyncio.run(move())
    assert sorted(store.roster(0)[0].replicas) == [1, 2, 3]
    assert not store.moves.read().wanted


def test_a_leader_that_comes_late_changes_no_set_of_which_nothing_is_wanted_any_more() -> None:
    """It has read what was wanted; then its successor leads, and the operator wants the partition where it is."""
    store = ClusterStore(MemoryZooKeeper(MemoryZooKeeperServer()), "demo")
    store.initialize(1, range(4), {}, 3)
    published(store, 0)
    on = frozenset(store.roster(0)[0].replicas)
    store.moves.want({0: {*range(4)} - {min(on)}})
    roster, version = store.roster(0)
    store.moves.want({0: on})

    async def arrived() -> None:
        Mover(store, lambda: True).look()

    asyncio.run(arrived())
    assert not store.moves.read().wanted
    assert not store.moves.change_set(0, roster, version, roster.with_replicas(range(4)))
    assert frozenset(store.roster(0)[0].replicas) == on
    assert not store.moves.read().changed, "it would count as one that is on the way for ever"
