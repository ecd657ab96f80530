"""What only the twin can stage exactly: a crash at every step, cut connections, successors, lagging servers."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import pytest

from waltz_ray.coordination.api import ConnectionState, Write
from waltz_ray.coordination.cluster_nodes import NEVER_JOINED
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.leadership import Leadership
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.errors import ClusterNotFound, CoordinationError, ZooKeeperUnreachable
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.roster import UNRESOLVED, ReplicaEntry, Roster
from waltz_ray.wire import znodes
from waltz_ray.wire.znodes import ServerDescriptor

HERE = Endpoint("127.0.0.1", 5000)
THERE = Endpoint("127.0.0.1", 6000)
T = TypeVar("T")


class DyingZooKeeper(MemoryZooKeeper):
    """Its ``last_write``-th write (from 0) is not answered any more: it happened (``after``) or it did not."""

    def __init__(self, server: MemoryZooKeeperServer, last_write: int, after: bool) -> None:
        super().__init__(server)
        self._left, self._after = last_write, after

    def _step(self, write: Callable[[], T]) -> T:
        if self._left == 0:
            if self._after:
                write()
            raise ZooKeeperUnreachable("this client dies here")
        self._left -= 1
        return write()

    def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False, make_parents: bool = False
    ) -> str:
        make = super().create
        return self._step(lambda: make(path, data, ephemeral=ephemeral, sequence=sequence, make_parents=make_parents))

    def set(self, path: str, data: bytes, version: int) -> int:
        put = super().set
        return self._step(lambda: put(path, data, version))

    def write_all(self, writes: Sequence[Write]) -> None:
        put = super().write_all
        self._step(lambda: put(writes))


def snapshot(server: MemoryZooKeeperServer) -> dict[str, bytes]:
    return {path: node.data for path, node in server._nodes.items()}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_initialisation_goes_on_from_a_crash_at_any_step(after: bool) -> None:
    steps = 0
    while True:
        server = MemoryZooKeeperServer()
        dying = DyingZooKeeper(server, steps, after)
        try:
            ClusterStore(dying, "c").initialize(3, [0, 1, 2], {"a": 1})
        except ZooKeeperUnreachable:
            dying.close()
        else:
            break
        store = ClusterStore(server.client(), "c")
        decided = snapshot(server).get("/c/store/cluster")
        finished = decided is not None and b'"complete": true' in decided
        if not finished:
            with pytest.raises(ClusterNotFound):
                store.info()
        info = store.initialize(3, [0, 1, 2], {"a": 2})
        assert info.settings == ({"a": 2} if decided is None else {"a": 1})
        if decided is not None:
            assert str(info.cluster_key).encode() in decided
        assert ClusterStore(server.client(), "c").info() == info
        assert [store.roster(p)[0] for p in range(3)] == [Roster.initial([0, 1, 2])] * 3
        assert (store.next_client_id(), store.next_server_id(), store.servers(), store.replicas()) == (1, 1, {}, {})
        steps += 1
    assert steps == 14  # one transaction, nine nodes, three partitions, "complete"


def test_two_initialisers_at_once_agree() -> None:
    server = MemoryZooKeeperServer()
    slow = server.client()
    infos = []
    plain_set = slow.set

    def overtaken(path: str, data: bytes, version: int) -> int:
        infos.append(ClusterStore(server.client(), "c").initialize(1, [0]))  # finishes just before we do
        return plain_set(path, data, version)

    slow.set = overtaken  # type: ignore[method-assign]
    infos.append(ClusterStore(slow, "c").initialize(1, [0]))
    assert infos[0] == infos[1]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_an_id_whose_reply_was_lost_is_never_given_again(after: bool) -> None:
    server = MemoryZooKeeperServer()
    ClusterStore(server.client(), "c").initialize(1, [0])
    with pytest.raises(ZooKeeperUnreachable):
        ClusterStore(DyingZooKeeper(server, 0, after), "c").next_client_id()
    assert ClusterStore(server.client(), "c").next_client_id() == (2 if after else 1)


@pytest.fixture
def server() -> MemoryZooKeeperServer:
    made = MemoryZooKeeperServer()
    ClusterStore(made.client(), "c").initialize(2, [0, 1, 2])
    return made


def test_a_server_that_hung_gives_way_to_its_successor(server: MemoryZooKeeperServer) -> None:
    hung, next_one = server.client(), server.client()
    registration = ClusterStore(hung, "c").register_server(7, HERE)
    server.disconnect(hung)
    server.expire(hung.session_id)
    successor = ClusterStore(next_one, "c").register_server(7, THERE)
    server.reconnect(hung)
    assert not registration.active
    assert successor.active
    assert ClusterStore(next_one, "c").servers() == {7: ServerDescriptor(7, THERE, ())}
    registration.cancel()
    assert ClusterStore(next_one, "c").servers() == {7: ServerDescriptor(7, THERE, ())}


def test_a_server_that_hung_comes_back_if_nobody_took_its_place(server: MemoryZooKeeperServer) -> None:
    hung = server.client()
    store = ClusterStore(server.client(), "c")
    registration = ClusterStore(hung, "c").register_server(7, HERE)
    server.disconnect(hung)
    assert list(store.servers()) == [7]
    server.expire(hung.session_id)
    assert store.servers() == {}
    server.reconnect(hung)
    assert registration.active
    assert list(store.servers()) == [7]


def test_its_own_old_node_on_a_lagging_server_is_no_successor(server: MemoryZooKeeperServer) -> None:
    hung = server.client()
    registration = ClusterStore(hung, "c").register_server(7, HERE)
    old_session, old_path = hung.session_id, registration.path
    server.disconnect(hung)
    server.expire(old_session)
    server._add("/c/serverDescriptors/s_lagging", znodes.encode_server(ServerDescriptor(7, HERE, ())), old_session)
    server.reconnect(hung)
    assert registration.active
    assert registration.path != old_path
    assert hung.children("/c/serverDescriptors") == [registration.path.rpartition("/")[2]]


def test_while_cut_off_calls_fail_and_watches_wait(server: MemoryZooKeeperServer) -> None:
    client, other = server.client(), server.client()
    states: list[ConnectionState] = []
    seen: list[bytes | None] = []
    client.create("/x", b"a")
    client.on_state(states.append)
    client.watch_data("/x", lambda data, version: seen.append(data))
    server.disconnect(client)
    with pytest.raises(ZooKeeperUnreachable, match="cut off"):
        client.get("/x")
    other.set("/x", b"b", -1)
    other.set("/x", b"c", -1)
    assert seen == [b"a"]
    server.reconnect(client)
    assert seen == [b"a", b"c"]
    server.disconnect(client)
    server.reconnect(client)
    assert seen == [b"a", b"c"]
    assert states == [ConnectionState.SUSPENDED, ConnectionState.CONNECTED] * 2


def test_a_leader_cut_off_past_its_session_is_followed_and_told(server: MemoryZooKeeperServer) -> None:
    events: list[str] = []
    clients = [server.client(), server.client()]
    for name, client in zip("ab", clients, strict=True):
        ClusterStore(client, "c").lead(
            name, partial(events.append, f"{name} elected"), partial(events.append, f"{name} lost")
        )
    server.disconnect(clients[0])
    assert events == ["a elected"]
    server.expire(clients[0].session_id)
    assert events == ["a elected", "b elected"]
    server.reconnect(clients[0])
    assert events == ["a elected", "b elected", "a lost"]


def test_a_leader_is_told_when_its_session_is_lost_not_only_when_it_is_back(server: MemoryZooKeeperServer) -> None:
    events: list[str] = []
    client = server.client()
    ClusterStore(client, "c").lead("a", partial(events.append, "elected"), partial(events.append, "lost"))
    server.disconnect(client)
    client._move_to(ConnectionState.LOST)
    server.pump()
    assert events == ["elected", "lost"]


def test_a_lost_race_for_an_id_or_a_preference_is_run_again(server: MemoryZooKeeperServer) -> None:
    client = server.client()
    store, rival = ClusterStore(client, "c"), ClusterStore(server.client(), "c")
    plain_set = client.set
    overtakers: list[Callable[[], object]] = [rival.next_client_id, partial(rival.set_preferred, 8, [0])]

    def overtaken(path: str, data: bytes, version: int) -> int:
        while overtakers:
            overtakers.pop()()
        return plain_set(path, data, version)

    client.set = overtaken  # type: ignore[method-assign]
    assert store.next_client_id() == 2
    overtakers.append(partial(rival.set_preferred, 8, [1]))
    store.set_preferred(7, [0])
    assert (store.preferred(7), store.preferred(8)) == ((0,), (1,))


def test_a_leader_whose_creation_was_not_answered_learns_of_it(server: MemoryZooKeeperServer) -> None:
    events: list[str] = []
    client = DyingZooKeeper(server, 0, after=True)
    leadership = ClusterStore(client, "c").lead("a", lambda: events.append("elected"), lambda: events.append("lost"))
    assert (events, leadership.leading) == (["elected"], True)


def test_a_callback_that_could_not_reach_zookeeper_is_called_again(server: MemoryZooKeeperServer) -> None:
    client, other = server.client(), server.client()
    found: list[list[int]] = []
    store = ClusterStore(client, "c")
    server.auto_pump = False
    store.watch_servers(lambda servers: found.append(list(servers)))
    server.pump()
    ClusterStore(other, "c").register_server(7, HERE)
    fail_once = [ZooKeeperUnreachable("cut off in the middle")]
    whole = client.children

    def children(path: str) -> list[str]:
        if fail_once:
            raise fail_once.pop()
        return whole(path)

    client.children = children  # type: ignore[method-assign]
    server.pump()
    assert found == [[], []]
    server.disconnect(client)
    server.reconnect(client)
    server.pump()
    assert found[-1] == [7]


def test_without_auto_pump_nothing_is_called_back_before_the_pump(server: MemoryZooKeeperServer) -> None:
    server.auto_pump = False
    client = server.client()
    seen: list[bytes | None] = []
    client.watch_data("/x", lambda data, version: seen.append(data))
    client.create("/x", b"a")
    assert seen == []
    server.pump()
    assert seen == [b"a"]


def test_a_replica_that_joins_during_its_replacement_is_not_replaced(server: MemoryZooKeeperServer) -> None:
    client = server.client()
    store, rival = ClusterStore(client, "c"), ClusterStore(server.client(), "c")
    out = Roster(5, 1, {0: ReplicaEntry(5, UNRESOLVED), 1: ReplicaEntry(5, UNRESOLVED), 2: ReplicaEntry(4, 9)})
    joined = Roster(6, 1, {n: ReplicaEntry(6, UNRESOLVED) for n in range(3)})
    for p in range(2):
        store.set_roster(p, out, 0)
    plain_write = client.write_all

    def overtaken(writes: Sequence[Write]) -> None:
        if rival.roster(1)[0] == out:
            rival.set_roster(1, joined, 1)
        plain_write(writes)

    client.write_all = overtaken  # type: ignore[method-assign]
    with pytest.raises(CoordinationError, match="member of partition 1's last session"):
        store.replace_replica(2)
    assert [rival.roster(p)[0] for p in range(2)] == [out, joined]
    assert NEVER_JOINED not in rival.roster(0)[0].replicas.values()


def test_news_of_a_loss_that_comes_late_does_not_end_a_leadership_for_ever() -> None:
    """The lock was taken anew before the loss of the session before was told: no change of the node follows."""
    server = MemoryZooKeeperServer()
    client = MemoryZooKeeper(server)
    told: list[str] = []
    leadership = Leadership(client, "/leader", b"", lambda: told.append("elected"), lambda: told.append("lost"))
    assert told == ["elected"]
    leadership._state_changed(ConnectionState.LOST)
    assert not leadership.leading
    leadership._state_changed(ConnectionState.CONNECTED)
    assert told == ["elected", "lost", "elected"]
    leadership.cancel()


def test_who_looks_from_one_thread_is_not_disturbed_by_who_writes_in_another(server: MemoryZooKeeperServer) -> None:
    """As the in-memory cluster's own thread, and that of whoever tests with it."""
    writer, reader = server.client(), server.client()
    writer.create("/a", b"")
    interval_s, done = sys.getswitchinterval(), threading.Event()

    def write() -> None:
        try:
            for number in range(500):
                writer.create(f"/a/{number}", b"")
        finally:
            done.set()

    sys.setswitchinterval(1e-6)
    try:
        thread = threading.Thread(target=write)
        thread.start()
        while not done.is_set():
            names = reader.children("/a")
            server.expire(server._start_session())
            assert len(set(names)) == len(names)
        thread.join()
    finally:
        sys.setswitchinterval(interval_s)
    assert len(reader.children("/a")) == 500


@pytest.mark.parametrize("lost", ["the answer to its making", "the order to end it"])
def test_an_admin_lock_that_was_left_keeps_nobody_of_its_own_session_out(lost: str) -> None:
    """As a fail-over of ZooKeeper leaves one: the session lives on, and so may the program, for months."""
    server = MemoryZooKeeperServer()
    zookeeper = server.client()
    store = ClusterStore(zookeeper, "c")
    store.initialize(1, [0])
    create, path, cut = zookeeper.create, "/c/store/admin", False

    def create_unheard(*arguments: Any, **options: Any) -> str:
        zookeeper.create = create  # type: ignore[method-assign]
        create(*arguments, **options)
        raise ZooKeeperUnreachable("ConnectionLoss")

    def work() -> None:
        with store.admin_lock("ann"):
            if cut:
                server.disconnect(zookeeper)

    if lost == "the answer to its making":
        zookeeper.create = create_unheard  # type: ignore[method-assign]
        with pytest.raises(ZooKeeperUnreachable):
            work()
    else:
        cut = True
        work()
        server.reconnect(zookeeper)
    assert zookeeper.owner(path) == zookeeper.session_id
    other = ClusterStore(server.client(), "c")
    with pytest.raises(CoordinationError, match="held by ann"), other.admin_lock("bob"):
        raise AssertionError("it is another session's")
    cut = False
    work()
    assert zookeeper.exists(path) is None
    with store.admin_lock("ann"), pytest.raises(CoordinationError, match="held by ann"), store.admin_lock("ann"):
        raise AssertionError("one that is held is nobody else's, in the same session either")
