"""Cursors in ZooKeeper: one owner at a time, who is fenced when he has been replaced; and crashes at every step."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence

import pytest

from tests.coordination.conftest import PATIENCE_S, Harness
from tests.coordination.test_memory_faults import DyingZooKeeper, snapshot
from waltz_ray.coordination import cursor_store
from waltz_ray.coordination.api import Write, ZooKeeper
from waltz_ray.coordination.cursor_lease import CursorLease
from waltz_ray.coordination.cursor_nodes import record_node
from waltz_ray.coordination.cursor_store import CursorLooks, CursorStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.coordination.trim_store import TrimStore
from waltz_ray.errors import (
    CoordinationError,
    CursorLost,
    CursorNotFound,
    CursorTaken,
    InvalidInput,
    Trimmed,
    ZooKeeperUnreachable,
)
from waltz_ray.protocol.cursors import CursorRecord, advanced, taken
from waltz_ray.protocol.spaces import Space, SpaceState
from waltz_ray.runtime.status import CursorStatus

ORDERS = Space("orders", "log", 10, 3, SpaceState.READY)


def made(zookeeper: ZooKeeper, root: str = "c") -> None:
    for path in (f"/{root}", f"/{root}/store"):
        zookeeper.create(path, b"")


def store_of(zookeeper: ZooKeeper, who: str = "me", root: str = "c") -> CursorStore:
    return CursorStore(zookeeper, root, ORDERS, who)


def deletes(writes: Sequence[Write]) -> bool:
    return any(write.path.endswith("orders/audit") and b'"positions": {}' in (write.data or b"") for write in writes)


class Rig:
    """Two processes with a session each."""

    def __init__(self) -> None:
        self.server = MemoryZooKeeperServer()
        self.first, self.second = self.server.client(), self.server.client()
        made(self.first)
        self.mine, self.other = store_of(self.first, "me"), store_of(self.second, "other")
        self.trims = TrimStore(self.server.client(), "c")

    def new(self, hold: bool = False) -> CursorLease:
        self.mine.create("audit", {0: 5, 1: 7}, hold)
        return self.mine.take("audit")

    def holds(self) -> dict[str, dict[int, int]]:
        return {name: dict(hold.positions) for name, hold in self.trims.holds.all().items()}


def test_one_owner_at_a_time_on_both_kinds_of_zookeeper(harness: Harness, root: str) -> None:
    first, second = harness.client(), harness.client()
    made(first, root)
    mine, other = store_of(first, "me", root), store_of(second, "other", root)
    with pytest.raises(CursorNotFound, match="space 'orders' has no cursor 'audit'; see waltz cursor list"):
        mine.take("audit")
    mine.create("audit", {0: 5, 1: 7}, hold=True)
    other.create("audit", {0: 99, 1: 99}, hold=False)
    held = mine.take("audit")
    assert (held.record.positions, held.record.epoch, held.record.owner) == ({0: 5, 1: 7}, 1, "me")
    for store in (mine, other):
        with pytest.raises(CursorTaken, match=r"cursor 'audit' of space 'orders' is taken by me since 20.* UTC"):
            store.take("audit")
    held.advance({0: 6})
    (status,) = other.all()
    assert (status.owner, status.positions, status.epoch, status.holds_retention) == ("me", {0: 6, 1: 7}, 1, True)
    assert status.behind({0: 7, 1: 6}).lag == 2
    assert status.behind({0: 7}).lag is None
    free = threading.Event()
    cancel = other.when_free("audit", free.set)
    held.release()
    assert free.wait(PATIENCE_S)
    cancel()
    theirs = other.take("audit")
    assert (theirs.record.positions, theirs.record.epoch) == ({0: 6, 1: 7}, 2)
    assert TrimStore(second, root).raise_marks({10: 100, 11: 100, 12: 100}) == {10: 6, 11: 7, 12: 100}
    theirs.release()
    other.delete("audit")
    assert other.all() == []
    assert TrimStore(second, root).raise_marks({10: 100}) == {10: 100}


def test_a_session_that_expires_loses_the_cursor_and_the_next_one_has_it(harness: Harness, root: str) -> None:
    first, second = harness.client(), harness.client()
    made(first, root)
    mine, other = store_of(first, "me", root), store_of(second, "other", root)
    mine.create("audit", {0: 0}, hold=False)
    held, lost = mine.take("audit"), threading.Event()
    held.when_lost(lost.set)
    free = threading.Event()
    cancel = other.when_free("audit", free.set)
    harness.expire(first)
    assert free.wait(PATIENCE_S)
    cancel()
    theirs = other.take("audit")
    theirs.advance({0: 3})
    assert lost.wait(PATIENCE_S)
    with pytest.raises(CursorLost, match="what was not committed comes again: open it anew"):
        held.advance({0: 2})
    held.release()
    assert other.all()[0].positions == {0: 3}
    assert other.all()[0].owner == "other", "who has lost it gives nothing back"


def test_an_owner_that_was_paused_moves_nothing_when_it_wakes() -> None:
    rig = Rig()
    held = rig.new()
    session = rig.first.session_id
    rig.server.disconnect(rig.first)  # it is paused: it hears of nothing
    rig.server.expire(session)
    theirs = rig.other.take("audit")
    theirs.advance({0: 9})
    held._watches[0].cancel()  # what tells of the session's end comes late
    held._watches[1].cancel()
    rig.server.reconnect(rig.first)
    assert held.lost is None
    with pytest.raises(CursorLost, match="other has it now"):
        held.advance({0: 6, 1: 50})
    assert rig.other.all()[0].positions == {0: 9, 1: 7}
    theirs.advance({1: 8})


@pytest.mark.parametrize("call", ["get", "write_all"])
def test_who_has_lost_the_lease_before_he_raised_the_epoch_has_not_got_it(
    call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig()
    rig.mine.create("audit", {0: 0}, hold=False)
    slow = rig.server.client()
    theirs: list[CursorLease] = []
    done = getattr(slow, call)

    def late(*arguments: object) -> object:
        """With the lease made, before the node is read or written, its session ends, and another takes the cursor."""
        if not theirs:
            rig.server.expire(slow.session_id)
            theirs.append(rig.other.take("audit"))
        return done(*arguments)

    monkeypatch.setattr(slow, call, late)
    with pytest.raises(CursorTaken, match="taken by other"):
        store_of(slow, "slow").take("audit")
    theirs[0].advance({0: 1})
    assert rig.mine.all()[0].epoch == 1


@pytest.mark.parametrize("news", ["of the session", "of the lease"])
def test_either_news_is_enough(news: str) -> None:
    rig = Rig()
    held = rig.new()
    told: list[bool] = []
    held.when_lost(lambda: told.append(True))
    held._watches[news == "of the session"].cancel()  # the other one comes late
    if news == "of the session":
        rig.server.expire(rig.first.session_id)
    else:
        rig.second.delete("/c/store/cursors/orders/audit/lease")
    assert told == [True]
    assert held.lost is not None
    rig.mine.take("audit").release()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_advance_that_was_not_answered(after: bool) -> None:
    rig = Rig()
    rig.mine.create("audit", {0: 0, 1: 0}, hold=False)
    dying = DyingZooKeeper(rig.server, 3, after)  # the lease, the epoch, one advance
    held = store_of(dying, "me").take("audit")
    held.advance({0: 1})
    with pytest.raises(ZooKeeperUnreachable):
        held.advance({0: 2})
    assert rig.other.all()[0].positions == {0: 2 if after else 1, 1: 0}
    dying._left = 99
    held.advance({0: 2, 1: 4})
    assert rig.other.all()[0].positions == {0: 2, 1: 4}
    assert held.lost is None


def test_a_lease_of_which_its_owner_was_not_told_is_his() -> None:
    rig = Rig()
    rig.mine.create("audit", {0: 0}, hold=False)
    dying = DyingZooKeeper(rig.server, 0, after=True)
    store = store_of(dying, "me")
    with pytest.raises(ZooKeeperUnreachable):
        store.take("audit")
    dying._left = 99
    assert store.take("audit").record.epoch == 1


def test_who_could_not_raise_the_epoch_leaves_no_lease() -> None:
    rig = Rig()
    rig.mine.create("audit", {0: 0}, hold=False)
    with pytest.raises(ZooKeeperUnreachable):
        store_of(DyingZooKeeper(rig.server, 1, after=False), "dying").take("audit")
    assert rig.other.take("audit").record.epoch == 1


def test_what_is_given_back_while_zookeeper_is_away_is_free_when_it_is_back() -> None:
    """Though the process that had it lives on, in the same session."""
    rig = Rig()
    held = rig.new()
    for epoch in (2, 4):
        rig.server.disconnect(rig.first)
        held.release()
        rig.server.reconnect(rig.first)
        theirs = rig.other.take("audit")
        assert theirs.record.epoch == epoch
        theirs.release()
        held = rig.mine.take("audit")
    rig.server.disconnect(rig.first)
    held.release()
    with pytest.raises(ZooKeeperUnreachable):
        rig.mine.take("audit")
    rig.server.reconnect(rig.first)
    rig.other.take("audit").release()
    held = rig.mine.take("audit")
    rig.server.reconnect(rig.first)
    assert held.lost is None, "what was late is over: this is another one"
    with pytest.raises(CursorTaken):
        rig.other.take("audit")


def test_what_is_given_back_a_moment_late_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZooKeeper answers again before it is even watched for."""
    rig = Rig()
    held = rig.new()

    def unreachable(*_: object) -> None:
        monkeypatch.undo()
        raise ZooKeeperUnreachable("zk", "a moment")

    monkeypatch.setattr(rig.first, "delete", unreachable)
    held.release()
    assert rig.mine._late == {}
    assert rig.other.take("audit").lost is None


def test_what_is_given_back_late_and_taken_again_meanwhile_stays() -> None:
    rig = Rig()
    held = rig.new()
    rig.server.auto_pump = False
    rig.server.disconnect(rig.first)
    held.release()
    rig.server.reconnect(rig.first)
    again = rig.mine.take("audit")  # before it has been looked at again
    rig.server.auto_pump = True
    rig.server.pump()
    assert again.lost is None
    with pytest.raises(CursorTaken):
        rig.other.take("audit")


def test_it_goes_forward_only_but_by_a_reset() -> None:
    rig = Rig()
    held = rig.new(hold=True)
    held.advance({0: 3, 1: 8, 2: 100})
    assert held.record.positions == {0: 5, 1: 8}
    held.reset({0: 1, 1: 2})
    assert held.record.positions == {0: 1, 1: 2}
    assert rig.holds() == {"cursor.orders.audit": {10: 1, 11: 2}}
    held.advance({0: 4})
    assert rig.holds() == {"cursor.orders.audit": {10: 4, 11: 2}}


def test_a_hold_is_begun_ended_and_made_again_by_whoever_opens_it() -> None:
    rig = Rig()
    rig.new(hold=False).release()
    assert rig.holds() == {}
    rig.mine.take("audit", hold=True).release()
    assert rig.holds() == {"cursor.orders.audit": {10: 5, 11: 7}}
    rig.trims.holds.release("cursor.orders.audit")
    held = rig.mine.take("audit")
    assert rig.holds() == {"cursor.orders.audit": {10: 5, 11: 7}}
    rig.trims.holds.release("cursor.orders.audit")
    held.advance({0: 6})
    assert rig.holds() == {"cursor.orders.audit": {10: 6, 11: 7}}
    held.release()
    rig.mine.take("audit", hold=False)
    assert (rig.holds(), rig.mine.all()[0].holds_retention) == ({}, False)


def test_what_was_trimmed_away_cannot_be_held() -> None:
    rig = Rig()
    rig.trims.raise_marks({10: 6})
    assert rig.mine.first_ids() == {0: 6, 1: 0, 2: 0}
    with pytest.raises(Trimmed) as told:
        rig.mine.create("audit", {0: 5, 1: 7}, hold=True)
    assert (told.value.partition_id, told.value.wanted_id, told.value.first_id) == (0, 5, 6)
    assert rig.mine.all() == []
    assert rig.holds() == {}
    rig.mine.create("audit", {0: 5, 1: 7}, hold=False)
    held = rig.mine.take("audit", hold=True)
    assert rig.trims.raise_marks({10: 50, 11: 50}) == {10: 6, 11: 7}, "what is left is held"
    with pytest.raises(Trimmed):
        held.reset({0: 4, 1: 7})
    held.reset({0: 6, 1: 7})
    held.release()


def test_a_cursor_that_somebody_has_is_not_deleted() -> None:
    rig = Rig()
    held = rig.new()
    with pytest.raises(CursorTaken):
        rig.other.delete("audit")
    held.release()
    rig.other.delete("audit")
    for ask in (rig.other.delete, rig.other.take):
        with pytest.raises(CursorNotFound):
            ask("audit")
    with pytest.raises(CursorLost, match="it was given back"):
        held.advance({0: 9})


@pytest.mark.parametrize("still", [True, False], ids=["and kept", "and given back"])
def test_a_cursor_that_is_taken_while_it_is_deleted_stays_with_its_hold(still: bool) -> None:
    rig = Rig()
    rig.mine.create("audit", {0: 5}, hold=True)

    class Late(MemoryZooKeeper):
        def write_all(self, writes: Sequence[Write]) -> None:
            if deletes(writes):
                rig.server.expire(self.session_id)
                theirs = rig.other.take("audit")
                if not still:
                    theirs.release()
            super().write_all(writes)

    with pytest.raises(CursorTaken, match="taken by other" if still else "somebody who has just finished"):
        store_of(Late(rig.server), "late").delete("audit")
    assert rig.holds() == {"cursor.orders.audit": {10: 5}}
    assert len(rig.mine.all()) == 1


def life(store: CursorStore) -> None:
    store.create("audit", {0: 1}, hold=True)
    held = store.take("audit")
    held.advance({0: 2})
    held.reset({0: 0})
    held.release()


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_whoever_dies_at_any_step_leaves_a_cursor_that_the_next_one_goes_on_with(after: bool) -> None:
    step = 0
    while True:
        rig = Rig()
        dying = DyingZooKeeper(rig.server, step, after)
        try:
            life(store_of(dying, "dying"))
        except ZooKeeperUnreachable:
            dying.close()
        else:
            break
        step += 1
        rig.mine.create("audit", {0: 1}, hold=True)
        held = rig.mine.take("audit")
        position = held.record.positions[0]
        assert position in (0, 1, 2)
        assert rig.holds() == {"cursor.orders.audit": {10: position}}, "what it will read is held"
        held.advance({0: 3})
        assert rig.holds() == {"cursor.orders.audit": {10: 3}}
    assert step == 8  # two parents, the holds' node, the cursor, the lease, the epoch, on, back


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda s: s.create("Audit", {0: 1}, False), "'Audit' cannot name a cursor: take 1 to 64 of a-z, 0-9, _ and -"),
        (lambda s: s.create("a.b", {0: 1}, False), "cannot name a cursor"),
        (lambda s: s.create("x" * 65, {0: 1}, False), "cannot name a cursor"),
        (lambda s: s.take("a/b"), "cannot name a cursor"),
        (lambda s: s.create("all", dict.fromkeys(range(30_000), 0), False), "30000 partitions are more than"),
    ],
)
def test_what_cannot_be_is_told_in_a_line_and_changes_nothing(
    ask: Callable[[CursorStore], object], message: str
) -> None:
    rig = Rig()
    before = snapshot(rig.server)
    with pytest.raises(InvalidInput, match=message):
        ask(rig.mine)
    assert snapshot(rig.server) == before


def test_the_bytes_of_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/formats.md has them: other programs read them, and so do later versions."""
    monkeypatch.setattr("waltz_ray.coordination.cursor_nodes.time.time_ns", lambda: 1_700_000_000_123_456_789)
    rig = Rig()
    rig.mine.create("audit", {1: 7, 0: 5}, hold=True)
    rig.mine.take("audit").advance({0: 6})
    nodes = snapshot(rig.server)
    assert nodes["/c/store/cursors"] == nodes["/c/store/cursors/orders"] == b""
    assert json.loads(nodes["/c/store/cursors/orders/audit"]) == {
        "version": 1,
        "positions": {"0": 6, "1": 7},
        "holds_retention": True,
        "epoch": 1,
        "owner": "me",
        "changed_ms": 1_700_000_000_123,
    }
    assert nodes["/c/store/cursors/orders/audit/lease"] == (
        b'{\n "version": 1,\n "identity": "me",\n "since_ms": 1700000000123\n}'
    )
    assert nodes["/c/store/holds/cursor.orders.audit"] == (
        b'{\n "version": 1,\n "why": "cursor \'audit\' of space \'orders\'",\n'
        b' "positions": {\n  "10": 6,\n  "11": 7\n }\n}'
    )
    assert record_node(CursorRecord({0: 5})) == (
        b'{\n "version": 1,\n "positions": {\n  "0": 5\n },\n "holds_retention": false,\n "epoch": 0,\n "owner": "",\n'
        b' "changed_ms": 0\n}'
    )


def test_a_node_that_makes_no_sense_is_named() -> None:
    rig = Rig()
    rig.mine.create("audit", {0: 5}, hold=False)
    rig.first.set("/c/store/cursors/orders/audit", b'{"version": 2}', -1)
    with pytest.raises(CoordinationError, match=r"node /c/store/cursors/orders/audit: .* not JSON of version 1"):
        rig.mine.all()


def test_the_rules() -> None:
    record = CursorRecord({0: 5, 1: 7}, holds_retention=True, epoch=3, owner="a", changed_ms=1)
    assert taken(record, "b", None, 2) == CursorRecord({0: 5, 1: 7}, True, 4, "b", 2)
    assert taken(record, "b", False, 2).holds_retention is False
    assert advanced(record, {0: 4, 1: 9, 2: 1}, 2) == CursorRecord({0: 5, 1: 9}, True, 3, "a", 2)


class Racing(MemoryZooKeeper):
    """Just before its transaction, once, somebody does something."""

    def __init__(self, server: MemoryZooKeeperServer, act: Callable[[], Mapping[int, int] | None]) -> None:
        super().__init__(server)
        self._acts = [act]

    def write_all(self, writes: Sequence[Write]) -> None:
        if self._acts:
            self._acts.pop()()
        super().write_all(writes)


def test_a_mark_that_is_raised_while_a_cursor_is_made_is_seen_by_its_maker() -> None:
    rig = Rig()
    store = store_of(Racing(rig.server, lambda: rig.trims.raise_marks({10: 9})), "me")
    with pytest.raises(Trimmed):
        store.create("audit", {0: 5}, hold=True)
    assert rig.mine.all() == []
    assert rig.holds() == {}


def test_a_cursor_that_was_made_too_late_and_is_another_s_by_now_is_left_to_him() -> None:
    rig = Rig()

    class Late(Racing):
        def write_all(self, writes: Sequence[Write]) -> None:
            if deletes(writes):
                rig.other.take("audit")
            super().write_all(writes)

    store = store_of(Late(rig.server, lambda: rig.trims.raise_marks({10: 9})), "late")
    store.create("audit", {0: 5}, hold=True)
    assert rig.mine.all()[0].owner == "other"
    assert rig.holds() == {"cursor.orders.audit": {10: 5}}


def test_a_cursor_that_is_made_again_has_epochs_of_its_own() -> None:
    """So that an owner from before, paused meanwhile, is not taken for the new one's."""
    rig = Rig()
    held = rig.new()
    session = rig.first.session_id
    rig.server.disconnect(rig.first)
    rig.server.expire(session)
    rig.other.delete("audit")
    for watch in held._watches:
        watch.cancel()
    rig.server.reconnect(rig.first)
    with pytest.raises(CursorLost, match="it was deleted"):
        held.advance({0: 50})
    rig.other.create("audit", {0: 1}, hold=False)
    theirs = rig.other.take("audit")
    for position in range(2, 9):
        held.lost, held._over = None, False  # as if it had not heard of it
        with pytest.raises(CursorLost, match="other has it now"):
            held.advance({0: 50})
        theirs.advance({0: position})
    assert rig.other.all()[0].positions == {0: 8}


def test_who_looks_again_and_again_does_not_read_all_that_were_ever_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of them at each look, so that one that was made anew is found; who looks once sees all."""
    rig = Rig()
    monkeypatch.setattr(cursor_store, "_DELETED_AT_ONCE", 3)
    for number in range(10):
        rig.mine.create(f"job-{number}", {0: 5}, False)
        rig.mine.delete(f"job-{number}")
    rig.mine.create("audit", {0: 5}, False)
    looked, status = list[str](), CursorStore.status

    def counted(store: CursorStore, name: str) -> CursorStatus | None:
        looked.append(name)
        return status(store, name)

    monkeypatch.setattr(CursorStore, "status", counted)
    looks = CursorLooks(rig.second, "c")

    def seen(sparing: bool) -> list[str]:
        looked.clear()
        return [each.name for each in looks.all([ORDERS], sparing)]

    assert seen(sparing=True) == ["audit"]
    assert len(looked) == 11, "of the first look nothing is known"
    turns = [(seen(sparing=True), tuple(looked)) for _ in range(4)]
    assert {names for _, names in turns} == {
        ("audit", "job-0", "job-1", "job-2"),
        ("audit", "job-3", "job-4", "job-5"),
        ("audit", "job-6", "job-7", "job-8"),
        ("audit", "job-0", "job-1", "job-9"),
    }
    rig.mine.create("job-8", {0: 5}, False)
    assert any(seen(sparing=True) == ["audit", "job-8"] for _ in range(4)), "made anew: it is found in its turn"
    rig.mine.create("job-2", {0: 5}, False)
    assert seen(sparing=False) == ["audit", "job-2", "job-8"]
    assert seen(sparing=True) == ["audit", "job-2", "job-8"]
    assert looks.all([], sparing=True) == []
