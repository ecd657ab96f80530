"""Trim marks and holds in ZooKeeper: they never pass each other unseen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tests.coordination.conftest import Harness
from tests.coordination.test_memory_faults import DyingZooKeeper, snapshot
from waltz_ray.coordination.api import Write
from waltz_ray.coordination.hold_store import Hold, HoldStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.coordination.trim_store import TrimStore
from waltz_ray.errors import CoordinationError, InvalidInput, NoNode, Trimmed, ZooKeeperUnreachable


def made(server: MemoryZooKeeperServer | None = None) -> MemoryZooKeeperServer:
    server = server or MemoryZooKeeperServer()
    for path in ("/c", "/c/store"):
        server.client().create(path, b"")
    return server


def trims_of(server: MemoryZooKeeperServer) -> TrimStore:
    return TrimStore(server.client(), "c")


def test_marks_only_rise_on_both_kinds_of_zookeeper(harness: Harness, root: str) -> None:
    zookeeper = harness.client()
    for path in (f"/{root}", f"/{root}/store"):
        zookeeper.create(path, b"")
    trims = TrimStore(zookeeper, root)
    seen: list[dict[int, int]] = []
    watch = trims.watch(seen.append)
    assert trims.marks() == {}
    assert trims.raise_marks({0: 5, 1: 0}) == {0: 5, 1: 0}
    assert trims.raise_marks({0: 3, 1: 7}) == {0: 5, 1: 7}
    assert trims.marks() == {0: 5, 1: 7}
    watch.cancel()
    trims.holds.hold("audit", {1: 9}, "a cursor")
    assert trims.raise_marks({0: 6, 1: 20}) == {0: 6, 1: 9}
    trims.holds.advance("audit", {1: 11, 5: 5})
    assert trims.holds.all() == {"audit": Hold("audit", {1: 11}, "a cursor")}
    trims.holds.advance("audit", {1: 10})
    assert trims.raise_marks({1: 20}) == {1: 11}
    assert [hold.name for hold in trims.keeping(1, 12)] == ["audit"]
    assert trims.keeping(1, 11) == trims.keeping(0, 99) == []
    trims.holds.release("audit")
    trims.holds.release("audit")
    assert trims.raise_marks({1: 20}) == {1: 20}


def test_watchers_are_told_of_every_mark() -> None:
    server = made()
    seen: list[dict[int, int]] = []
    trims_of(server).watch(seen.append)
    trims_of(server).raise_marks({3: 4})
    assert seen[0] == {}
    assert seen[-1] == {3: 4}


def test_a_hold_below_the_mark_is_refused_with_the_first_id_there_is_and_leaves_nothing() -> None:
    trims = trims_of(made())
    trims.raise_marks({0: 10})
    with pytest.raises(Trimmed, match="transaction 9 was trimmed away; the first that can be read is 10") as told:
        trims.holds.hold("late", {0: 9}, "too late")
    assert (told.value.partition_id, told.value.first_id) == (0, 10)
    assert trims.holds.all() == {}
    trims.holds.hold("late", {0: 10}, "in time")


class Between(MemoryZooKeeper):
    """Somebody does something just before a transaction of ours."""

    def __init__(self, server: MemoryZooKeeperServer, act: Callable[[], object]) -> None:
        super().__init__(server)
        self._acts = [act]

    def write_all(self, writes: Sequence[Write]) -> None:
        if self._acts:
            self._acts.pop()()
        super().write_all(writes)


def test_a_hold_that_is_made_while_a_mark_is_raised_is_seen_by_the_raise() -> None:
    server = made()
    holds = HoldStore(server.client(), "c")
    raising = TrimStore(Between(server, lambda: holds.hold("audit", {0: 3}, "why")), "c")
    assert raising.raise_marks({0: 10}) == {0: 3}


def test_a_mark_that_is_raised_while_a_hold_is_made_is_seen_by_the_hold() -> None:
    server = made()
    trims = trims_of(server)
    holding = HoldStore(Between(server, lambda: trims.raise_marks({0: 10})), "c")
    with pytest.raises(Trimmed):
        holding.hold("audit", {0: 3}, "why")
    assert trims.holds.all() == {}


def test_a_hold_that_moves_back_while_a_mark_is_raised_is_seen_by_the_raise() -> None:
    server = made()
    holds = HoldStore(server.client(), "c")
    holds.hold("audit", {0: 8}, "why")
    raising = TrimStore(Between(server, lambda: holds.hold("audit", {0: 2}, "again")), "c")
    assert raising.raise_marks({0: 10}) == {0: 2}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_whoever_dies_in_the_midst_leaves_what_the_next_goes_on_from(after: bool) -> None:
    for step in range(4):
        server = made()
        dying = TrimStore(DyingZooKeeper(server, step, after), "c")
        try:
            dying.raise_marks({0: 4})
            dying.holds.hold("audit", {0: 4}, "why")
        except ZooKeeperUnreachable:
            pass
        trims = trims_of(server)
        trims.holds.hold("audit", {0: max(4, trims.marks().get(0, 0))}, "why")
        assert trims.raise_marks({0: 9}) == {0: 4}


def test_what_cannot_be_is_told_in_a_line_and_changes_nothing() -> None:
    server = made()
    trims = trims_of(server)
    trims.holds.hold("audit", {0: 1}, "why")
    before = snapshot(server)
    for name in ("", "a/b", "..", "x" * 201, "a b"):
        with pytest.raises(InvalidInput, match="cannot name a hold"):
            trims.holds.hold(name, {0: 1}, "why")
    with pytest.raises(InvalidInput, match="100000 partitions are more than a ZooKeeper node holds"):
        trims.holds.hold("all", dict.fromkeys(range(100_000), 1), "why")
    with pytest.raises(NoNode):
        trims.holds.advance("none", {0: 1})
    assert snapshot(server) == before


def test_a_node_that_makes_no_sense_is_named() -> None:
    server = made()
    server.client().create("/c/store/trims", b"{}")
    with pytest.raises(CoordinationError, match="ZooKeeper node /c/store/trims"):
        trims_of(server).marks()
