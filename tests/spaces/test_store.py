"""Spaces in ZooKeeper: what may be asked for, and a client that dies at every step."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.coordination.test_memory_faults import DyingZooKeeper, snapshot
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeperServer
from waltz_ray.errors import InvalidInput, SpaceGone, SpaceNotFound, WaltzError, ZooKeeperUnreachable
from waltz_ray.protocol.placement import Assignment, Owner
from waltz_ray.protocol.roster import Roster
from waltz_ray.protocol.spaces import Space, SpaceState, SpaceTable, most_partitions, removable
from waltz_ray.wire import znodes
from waltz_ray.wire.znodes import AssignmentNode

LOG = Space("log", "log", 0, 2, SpaceState.READY)


class Rig:
    def __init__(self, partitions: int = 2) -> None:
        self.server = MemoryZooKeeperServer()
        self.store = ClusterStore(self.server.client(), "c")
        self.store.initialize(partitions, [0, 1, 2], {"a": 1})
        self.spaces = self.store.spaces


def test_a_new_cluster_has_one_space_over_all_partitions() -> None:
    assert Rig().spaces.table() == SpaceTable(2, {"log": LOG})


def test_a_space_is_the_next_partitions() -> None:
    rig = Rig()
    orders = rig.spaces.create("orders", 8, settings={"retention_ms": 1000})
    assert orders == Space("orders", "log", 2, 8, SpaceState.MAKING, {"retention_ms": 1000})
    assert rig.spaces.create("users", 1, "kv").first == 10
    table = rig.spaces.table()
    assert table.partitions == 11 == rig.store.partitions()
    assert [space.name for space in table.present()] == ["log", "orders", "users"]
    assert rig.spaces.get("orders") == orders


def test_a_space_of_kind_kv_has_sixteen_partitions_and_is_compacted() -> None:
    rig = Rig()
    found = rig.spaces.create("stock", None, "kv")
    assert (found.count, found.settings) == (16, {"compact": 1})
    assert rig.spaces.create("own", 4, "kv", {"compact": 0}).settings == {"compact": 0}
    for change in ({"retention_ms": 5}, {"retention_bytes": 5}):
        with pytest.raises(InvalidInput, match="retention would give up items that are alive"):
            rig.spaces.set("own", change)
    assert rig.spaces.create("bare", 1, "kv", {"compact": None}).settings == {}


def test_a_cluster_from_before_there_were_spaces_has_one_and_gets_another() -> None:
    rig = Rig()
    client = rig.server.client()
    client.delete("/c/store/spaces/log")
    client.delete("/c/store/spaces")
    assert rig.spaces.table() == SpaceTable(2, {"log": LOG})
    assert rig.spaces.create("orders", 1).first == 2
    assert rig.spaces.get("log") == LOG


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda s: s.create("Orders", 1), InvalidInput, "'Orders' cannot name a space: take 1 to 64 of a-z"),
        (lambda s: s.create("", 1), InvalidInput, "cannot name a space"),
        (lambda s: s.create("a/b", 1), InvalidInput, "cannot name a space"),
        (lambda s: s.create("x" * 65, 1), InvalidInput, "cannot name a space"),
        (lambda s: s.create("log", 1), InvalidInput, "'c' is there already .log, 2 partitions, ready.; take another"),
        (lambda s: s.create("old", 1), InvalidInput, "was deleted, and its name is not used again"),
        (lambda s: s.create("a", 0), InvalidInput, "a space needs at least one partition, not 0"),
        (lambda s: s.create("a", True), InvalidInput, "a space needs at least one partition, not True"),
        (lambda s: s.create("a", 1, "queue"), InvalidInput, "spaces of the kinds log, kv, topic, not 'queue'"),
        (lambda s: s.create("a", None), InvalidInput, "of kind log has as many partitions as you say: say how many"),
        (lambda s: s.create("a", 12, "kv"), InvalidInput, "kv has 1, 2, 4, 8 ... or 4096 partitions, not 12; take 16"),
        (lambda s: s.create("a", 8192, "kv"), InvalidInput, "or 4096 partitions, not 8192"),
        (lambda s: s.create("a", 4, "kv", {"retention_ms": 5}), InvalidInput, "retention would give up items"),
        (
            lambda s: s.create("a", 65_536),
            InvalidInput,
            "has 4 partitions, deleted ones counted, and cannot have 65536",
        ),
        (lambda s: s.create("a", 1, settings={"x": 1}), InvalidInput, "has no setting 'x'; it has: compact"),
        (lambda s: s.set("log", {"retention_ms": -1}), InvalidInput, "must be a whole number >= 0, or none, not -1"),
        (
            lambda s: s.set("log", {"max_message_bytes": 9}),
            InvalidInput,
            "of kind topic, at least 1: not 9",
        ),
        (
            lambda s: s.create("a", 1, "topic", {"max_message_bytes": 0}),
            InvalidInput,
            "at least 1: not 0",
        ),
        (lambda s: s.set("log", {"retention_ms": "1"}), InvalidInput, "must be a whole number"),
        (lambda s: s.set("none", {}), SpaceNotFound, "cluster 'c' has no space 'none'; it has: log, topic-offsets"),
        (lambda s: s.set("old", {}), SpaceGone, "space 'old' of cluster 'c' was deleted, with all its records"),
        (lambda s: s.get("old"), SpaceGone, "was deleted"),
        (lambda s: s.delete("log", "log"), InvalidInput, "the one every cluster has; it cannot be deleted"),
        (
            lambda s: s.delete("topic-offsets", "topic-offsets"),
            InvalidInput,
            "all groups of topics; it cannot be deleted",
        ),
        (lambda s: s.delete("none", "none"), SpaceNotFound, "has no space"),
        (lambda s: s.delete("old", "old"), SpaceGone, "was deleted"),
    ],
)
def test_what_cannot_be_is_told_in_a_line_and_changes_nothing(
    ask: Callable[[object], object], error: type[WaltzError], message: str
) -> None:
    rig = Rig()
    rig.spaces.create("old", 1)
    rig.spaces.delete("old", "old")
    rig.spaces.create("topic-offsets", 1, "kv")
    before = snapshot(rig.server)
    with pytest.raises(error, match=message) as told:
        ask(rig.spaces)
    assert "\n" not in str(told.value)
    assert snapshot(rig.server) == before


def test_a_deletion_is_confirmed_by_name() -> None:
    rig = Rig()
    rig.spaces.create("orders", 1)
    with pytest.raises(InvalidInput, match="removes all its records; confirm it with its name: orders"):
        rig.spaces.delete("orders", "yes")
    assert rig.spaces.delete("orders", "orders").state is SpaceState.GONE
    table = rig.spaces.table()
    assert table.gone == {2}
    assert table.kept == [0, 1]
    assert rig.spaces.create("next", 1).first == 3, "numbers are never used again"


def test_settings_change_one_by_one() -> None:
    rig = Rig()
    assert rig.spaces.set("log", {"retention_ms": 5, "retention_bytes": 0}).settings == {
        "retention_ms": 5,
        "retention_bytes": 0,
    }
    assert rig.spaces.set("log", {"retention_ms": None}).settings == {"retention_bytes": 0}
    assert rig.spaces.get("log").settings == {"retention_bytes": 0}
    rig.spaces.create("orders", 1, "topic", {"compact": 1, "max_message_bytes": 9})
    assert rig.spaces.set("orders", {"max_message_bytes": None}).settings == {"compact": 1}


def test_a_node_holds_as_many_partitions_as_are_allowed() -> None:
    most = most_partitions(5)
    owners = {p: Owner(p % 3 + 1, 1 << 30) for p in range(most)}
    longest = [
        znodes.encode_assignment(AssignmentNode(0, most, Assignment(owners))),
        znodes.encode_replica_assignments(
            {f"some-long-host-name-{r}.example.com:65535": range(most) for r in range(5)}
        ),
    ]
    assert max(map(len, longest)) < 1_000_000


def test_only_what_nobody_has_any_more_may_be_removed() -> None:
    table = SpaceTable(4, {"log": LOG, "old": Space("old", "log", 2, 2, SpaceState.GONE)})
    assert removable(table, Assignment({3: Owner(1, 1)})) == {2}
    assert removable(table, Assignment({}, {3: 1})) == {2, 3}


# ---- who dies, and two at once --------------------------------------------------------------------------


def grow_and_finish(spaces_of: ClusterStore) -> None:
    spaces_of.spaces.create("orders", 3)
    spaces_of.spaces.finish(5)
    spaces_of.spaces.mark_ready("orders")
    spaces_of.spaces.delete("orders", "orders")


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_whoever_comes_next_finishes_what_was_begun(after: bool) -> None:
    steps = 0
    while True:
        rig = Rig()
        dying = DyingZooKeeper(rig.server, steps, after)
        try:
            grow_and_finish(ClusterStore(dying, "c"))
        except ZooKeeperUnreachable:
            dying.close()
        else:
            break
        steps += 1
        table = rig.spaces.table()
        assert table.partitions == (5 if "orders" in table.spaces else 2), "both, or none"
        if "orders" not in table.spaces:
            rig.spaces.create("orders", 3)
        rig.spaces.finish(5)
        assert [rig.store.roster(p)[0] for p in range(5)] == [Roster.initial([0, 1, 2])] * 5
        nodes = snapshot(rig.server)
        assert znodes.decode_root("", nodes["/c"]).partitions == 5
        assert znodes.decode_store_params("", nodes["/c/store"]).partitions == 5
        assert znodes.decode_assignment("", nodes["/c/serverDescriptors"]).partitions == 5
        rig.spaces.finish(5)
        assert snapshot(rig.server) == nodes, "done again it changes nothing"
        rig.spaces.mark_ready("orders")
        state = rig.spaces.table().spaces["orders"].state
        assert state is (SpaceState.GONE if table.gone else SpaceState.READY)
    assert steps == 7  # the transaction, the records, three nodes, ready, gone


def test_a_manager_that_was_late_lowers_no_number() -> None:
    rig = Rig()
    rig.spaces.create("orders", 3)
    rig.spaces.finish(5)
    rig.spaces.create("users", 2)
    rig.spaces.finish(7)
    nodes = snapshot(rig.server)
    rig.spaces.finish(5)
    assert snapshot(rig.server) == nodes


def test_two_who_create_at_once_get_partitions_of_their_own() -> None:
    rig = Rig()
    slow = rig.server.client()
    write = slow.write_all
    made: list[Space] = []

    def overtaken(writes: object) -> None:
        if not made:
            made.append(rig.spaces.create("first", 4))
        write(writes)  # type: ignore[arg-type]

    slow.write_all = overtaken  # type: ignore[method-assign]
    made.append(ClusterStore(slow, "c").spaces.create("second", 2))
    assert [(space.first, space.count) for space in made] == [(2, 4), (6, 2)]
    assert rig.spaces.table().partitions == 8


def test_of_two_who_take_the_same_name_one_is_told() -> None:
    rig = Rig()
    slow = rig.server.client()
    write = slow.write_all

    def overtaken(writes: object) -> None:
        slow.write_all = write  # type: ignore[method-assign]
        rig.spaces.create("orders", 4)
        write(writes)  # type: ignore[arg-type]

    slow.write_all = overtaken  # type: ignore[method-assign]
    with pytest.raises(InvalidInput, match="is there already"):
        ClusterStore(slow, "c").spaces.create("orders", 2)
    assert rig.spaces.table().partitions == 6


def test_everybody_who_watches_hears_of_each_change() -> None:
    rig = Rig()
    seen: list[SpaceTable] = []
    rig.spaces.watch(seen.append)
    rig.spaces.create("orders", 1)
    rig.spaces.set("orders", {"retention_ms": 7})
    rig.spaces.mark_ready("orders")
    rig.spaces.delete("orders", "orders")
    states = [table.spaces["orders"].state.value for table in seen if "orders" in table.spaces]
    assert states == ["making", "making", "ready", "gone"]


def test_a_cluster_that_has_grown_is_initialised_again_as_it_was() -> None:
    rig = Rig()
    rig.spaces.create("orders", 3)
    rig.spaces.finish(5)
    assert rig.store.initialize(2, [0, 1, 2]).partitions == 5


def test_a_space_that_is_gone_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is so for ever, and whoever makes and deletes spaces must not have everybody read more and more."""
    rig = Rig()
    for number in range(5):
        rig.spaces.create(f"s{number}", 1)
        rig.spaces.delete(f"s{number}", f"s{number}")
    rig.spaces.create("orders", 1)
    client, read = rig.server.client(), list[str]()
    original = client.get

    def get(path: str) -> tuple[bytes, int]:
        read.append(path)
        return original(path)

    monkeypatch.setattr(client, "get", get)
    spaces = ClusterStore(client, "c").spaces
    first = spaces.table()
    assert len([path for path in read if path.startswith("/c/store/spaces/")]) == 7
    read.clear()
    rig.spaces.delete("orders", "orders")
    second = spaces.table()
    assert [path for path in read if path.startswith("/c/store/spaces/")] == [
        "/c/store/spaces/log",
        "/c/store/spaces/orders",
    ]
    assert first.gone | {7} == second.gone == frozenset(range(2, 8))
    with pytest.raises(SpaceGone):
        spaces.get("s3")
