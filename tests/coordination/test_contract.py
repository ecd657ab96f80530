"""The contract of the znode API, on the twin and on a real ZooKeeper."""

from __future__ import annotations

import pytest

from tests.coordination.conftest import Harness, Seen
from waltz_ray.coordination.api import ConnectionState, Write
from waltz_ray.errors import CoordinationError, NodeExists, NoNode, VersionConflict, ZooKeeperUnreachable


def test_a_node_is_made_read_set_and_deleted(harness: Harness, root: str) -> None:
    zookeeper = harness.client()
    path = f"/{root}"
    assert zookeeper.exists(path) is None
    assert zookeeper.create(path, b"one") == path
    assert zookeeper.get(path) == (b"one", 0)
    assert zookeeper.set(path, b"two", 0) == 1
    assert zookeeper.set(path, b"three", -1) == 2
    assert zookeeper.exists(path) == 2
    assert zookeeper.owner(path) == 0
    zookeeper.delete(path, 2)
    assert zookeeper.exists(path) is None
    assert zookeeper.owner(path) is None


def test_a_compare_and_set_that_is_late_changes_nothing(harness: Harness, root: str) -> None:
    zookeeper = harness.client()
    path = zookeeper.create(f"/{root}", b"one")
    zookeeper.set(path, b"two", 0)
    with pytest.raises(VersionConflict, match=root):
        zookeeper.set(path, b"late", 0)
    with pytest.raises(VersionConflict):
        zookeeper.delete(path, 0)
    assert zookeeper.get(path) == (b"two", 1)


def test_missing_and_existing_nodes_are_named(harness: Harness, root: str) -> None:
    zookeeper = harness.client()
    path = f"/{root}"
    for call in (zookeeper.get, zookeeper.children, zookeeper.delete, zookeeper.children_version):
        with pytest.raises(NoNode, match=f"{path} does not exist"):
            call(path)
    with pytest.raises(NoNode):
        zookeeper.set(path, b"", -1)
    with pytest.raises(NoNode):
        zookeeper.create(path + "/a/b", b"")
    zookeeper.create(path + "/a/b", b"", make_parents=True)
    with pytest.raises(NodeExists, match=f"{path}/a/b exists"):
        zookeeper.create(path + "/a/b", b"")
    with pytest.raises(CoordinationError, match="NotEmptyError"):
        zookeeper.delete(path)


def test_children_are_sorted_and_counted(harness: Harness, root: str) -> None:
    zookeeper = harness.client()
    path = zookeeper.create(f"/{root}", b"")
    before = zookeeper.children_version(path)
    first = zookeeper.create(path + "/s_", b"", sequence=True)
    zookeeper.create(path + "/a", b"")
    second = zookeeper.create(path + "/s_", b"", sequence=True)
    names = [p.removeprefix(path + "/") for p in (first, second)]
    assert all(len(name) == 12 and name[2:].isdigit() for name in names)
    assert zookeeper.children(path) == ["a", *names]
    assert zookeeper.children_version(path) == before + 3
    assert zookeeper.exists(path) == 0


def test_several_writes_happen_together_or_not_at_all(harness: Harness, root: str) -> None:
    zookeeper = harness.client()
    path = f"/{root}"
    zookeeper.write_all([Write(path, b"a"), Write(path + "/b", b"b")])
    assert zookeeper.get(path + "/b") == (b"b", 0)
    for bad, error in [
        (Write(path + "/b", b"", 7), VersionConflict),
        (Write(path + "/b", b""), NodeExists),
        (Write(path + "/x", b"", 0), NoNode),
        (Write(path + "/x/y", b""), NoNode),
        (Write(path + "/b", None, 7), VersionConflict),
        (Write(path + "/x", None), NoNode),
    ]:
        for writes in ([Write(path, b"no", 0), bad], [bad, Write(path, b"no", 0)]):
            with pytest.raises(error, match=bad.path):
                zookeeper.write_all(writes)
    assert zookeeper.get(path) == (b"a", 0)
    zookeeper.write_all([Write(path, b"c", 0), Write(path + "/b", b"d", 0)])
    assert (zookeeper.get(path), zookeeper.get(path + "/b")) == ((b"c", 1), (b"d", 1))
    with pytest.raises(CoordinationError, match="NotEmptyError"):
        zookeeper.write_all([Write(path, None, 1), Write(path + "/b", None, 1)])
    zookeeper.write_all([Write(path + "/b", None, 1), Write(path, None)])
    assert zookeeper.exists(path) is None


def test_a_closed_clients_ephemerals_go_and_it_says_it_is_closed(harness: Harness, root: str) -> None:
    zookeeper, other = harness.client(), harness.client()
    zookeeper.create(f"/{root}", b"")
    path = zookeeper.create(f"/{root}/e", b"", ephemeral=True)
    assert other.owner(path) == zookeeper.session_id != other.session_id
    zookeeper.close()
    zookeeper.close()
    assert other.exists(path) is None
    with pytest.raises(ZooKeeperUnreachable, match="client is closed"):
        zookeeper.get(path)


def test_a_data_watch_tells_what_is_and_what_comes(harness: Harness, root: str) -> None:
    zookeeper, other = harness.client(), harness.client()
    path = f"/{root}"
    seen: Seen[tuple[bytes | None, int]] = Seen()
    watch = zookeeper.watch_data(path, lambda data, version: seen((data, version)))
    assert seen.until(lambda value: True) == (None, -1)
    other.create(path, b"a")
    seen.until((b"a", 0).__eq__)
    other.set(path, b"b", 0)
    seen.until((b"b", 1).__eq__)
    other.delete(path)
    seen.until((None, -1).__eq__)
    other.create(path, b"b")
    seen.until((b"b", 0).__eq__)
    watch.cancel()
    sentinel: Seen[bytes | None] = Seen()
    zookeeper.watch_data(path, lambda data, version: sentinel(data))
    other.set(path, b"c", 0)
    sentinel.until(b"c".__eq__)
    assert not seen.waiting()


def test_a_children_watch_tells_what_is_and_what_comes(harness: Harness, root: str) -> None:
    zookeeper, other = harness.client(), harness.client()
    path = f"/{root}"
    seen: Seen[list[str]] = Seen()
    zookeeper.watch_children(path, seen)
    assert seen.until(lambda value: True) == []
    other.create(path, b"")
    other.create(path + "/b", b"")
    seen.until(["b"].__eq__)
    other.create(path + "/a", b"")
    seen.until(["a", "b"].__eq__)
    other.delete(path + "/b")
    seen.until(["a"].__eq__)
    other.delete(path + "/a")
    other.delete(path)
    seen.until([].__eq__)


def test_a_node_made_anew_behind_the_watchs_back_is_another_state(harness: Harness, root: str) -> None:
    zookeeper = harness.client()
    path = zookeeper.create(f"/{root}", b"a")
    seen: Seen[tuple[bytes | None, int]] = Seen()

    def replace_once(data: bytes | None, version: int) -> None:
        seen((data, version))
        if data == b"a":  # while we are in here no other callback runs: the absence in between is not seen
            zookeeper.delete(path)
            zookeeper.create(path, b"b")

    zookeeper.watch_data(path, replace_once)
    seen.until((b"a", 0).__eq__)
    seen.until((b"b", 0).__eq__)


def test_a_callback_may_use_the_blocking_api(harness: Harness, root: str) -> None:
    zookeeper = harness.client()
    path = zookeeper.create(f"/{root}", b"a")
    seen: Seen[bytes] = Seen()
    zookeeper.watch_data(path, lambda data, version: seen(zookeeper.get(path)[0]))
    seen.until(b"a".__eq__)
    zookeeper.set(path, b"b", -1)
    seen.until(b"b".__eq__)


def test_an_expired_session_is_told_and_watches_live_on(harness: Harness, root: str) -> None:
    zookeeper, other = harness.client(), harness.client()
    path = other.create(f"/{root}", b"a")
    states: Seen[ConnectionState] = Seen()
    data: Seen[bytes | None] = Seen()
    children: Seen[list[str]] = Seen()
    zookeeper.on_state(states)
    zookeeper.watch_data(path, lambda value, version: data(value))
    zookeeper.watch_children(path, children)
    data.until(b"a".__eq__)
    children.until([].__eq__)
    before = zookeeper.session_id
    harness.expire(zookeeper)
    assert states.until(lambda state: state is not ConnectionState.SUSPENDED) is ConnectionState.LOST
    states.until(ConnectionState.CONNECTED.__eq__)
    assert zookeeper.session_id not in (before, -1)
    assert zookeeper.state is ConnectionState.CONNECTED
    other.set(path, b"b", 0)
    other.create(path + "/c", b"")
    data.until(b"b".__eq__)
    children.until(["c"].__eq__)


def test_a_registered_ephemeral_comes_back_until_cancelled(harness: Harness, root: str) -> None:
    zookeeper, other = harness.client(), harness.client()
    other.create(f"/{root}", b"")
    names: Seen[list[str]] = Seen()
    other.watch_children(f"/{root}", names)
    node = zookeeper.register_ephemeral(f"/{root}/s_", lambda: b"me", sequence=True)
    [first] = names.until(bool)
    assert node.path == f"/{root}/{first}"
    harness.expire(zookeeper)
    [second] = names.until(lambda value: bool(value) and value != [first])
    assert other.get(f"/{root}/{second}")[0] == b"me"
    assert other.owner(f"/{root}/{second}") == zookeeper.session_id
    other.delete(f"/{root}/{second}")
    [third] = names.until(lambda value: bool(value) and value != [second])
    assert third > second > first
    assert node.active
    node.cancel()
    node.cancel()
    names.until([].__eq__)
    assert not node.active


def test_a_node_whose_creation_was_not_heard_of_is_adopted(harness: Harness, root: str) -> None:
    zookeeper = harness.client()
    zookeeper.create(f"/{root}", b"")
    unheard = zookeeper.create(f"/{root}/s_", b"me", ephemeral=True, sequence=True)
    assert zookeeper.register_ephemeral(f"/{root}/s_", lambda: b"me", sequence=True).path == unheard
    other = zookeeper.register_ephemeral(f"/{root}/s_", lambda: b"another", sequence=True)
    assert other.path != unheard


def test_a_plain_registered_ephemeral_is_refused_where_another_has_it(harness: Harness, root: str) -> None:
    zookeeper, other = harness.client(), harness.client()
    zookeeper.create(f"/{root}", b"")
    zookeeper.register_ephemeral(f"/{root}/x", lambda: b"a")
    with pytest.raises(NodeExists):
        other.register_ephemeral(f"/{root}/x", lambda: b"a")
