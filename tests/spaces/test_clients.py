"""Clients of a space: they number its partitions from 0, whatever the cluster calls them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest

from waltz_ray.client import Callbacks, Transaction, TransactionBuilder, TransactionContext
from waltz_ray.client.engine import FeedKind
from waltz_ray.connecting import StoreDirectory
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.errors import InvalidInput, SpaceGone, SpaceNotFound
from waltz_ray.protocol.ids import Endpoint, Location, LockId
from waltz_ray.protocol.placement import Assignment, Owner
from waltz_ray.testing import InMemoryCluster


class Marks(Callbacks):
    """Keeps what is applied."""

    def __init__(self) -> None:
        self.applied: list[tuple[int, int, bytes]] = []
        self.asked: list[int] = []
        self.failed: list[BaseException] = []
        self.told = threading.Event()

    def client_high_water_mark(self, partition_id: int) -> int:
        self.asked.append(partition_id)
        return -1

    def apply_transaction(self, one: Transaction) -> None:
        assert one.partition_id == one.req_id.partition_id
        self.applied.append((one.partition_id, one.transaction_id, one.data))

    def uncaught_exception(self, partition_id: int, transaction_id: int, error: BaseException) -> None:
        self.failed.append(error)
        self.told.set()


class Put(TransactionContext):
    def partition_id(self, partitions: int) -> int:
        return partitions - 1

    def execute(self, builder: TransactionBuilder) -> bool:
        builder.data = b"by a context"
        builder.write_locks = [LockId("x", 1)]
        return True


@pytest.fixture
def cluster() -> Iterator[InMemoryCluster]:
    with InMemoryCluster(partitions=3, servers=2) as cluster:
        cluster.create_space("orders", 2)
        yield cluster


@pytest.mark.parametrize("feed", ["records", "headers"])
def test_everything_of_a_client_counts_from_the_first_partition_of_its_space(
    cluster: InMemoryCluster, feed: FeedKind
) -> None:
    with cluster.connect() as log:
        log.append(0, b"of the log").result(10)
    callbacks = Marks()
    with cluster.connect(callbacks, space="orders", feed=feed) as client:
        assert client.partitions == 2
        assert client.append(0, b"a", write_locks=[("k", 1)]).result(10) == 0
        assert client.append_many(1, [b"b", b"c"]).result(10).tolist() == [0, 1]
        submitted = client.submit(Put()).result(10)
        assert (submitted.partition_id, submitted.transaction_id) == (1, 2)
        client.wait_applied(1, 2, 10)
        client.wait_applied(0, 0, 10)
        assert sorted(callbacks.applied) == [(0, 0, b"a"), (1, 0, b"b"), (1, 1, b"c"), (1, 2, b"by a context")]
        assert callbacks.asked == [0, 1]
        assert [(one.partition_id, one.data) for one in client.read(1, 0, 2)] == [(1, b"b"), (1, b"c")]
        assert [(one.partition_id, one.transaction_id) for one in client.feed(None)] == [(0, 0), (1, 0), (1, 1), (1, 2)]
        assert client.server_high_water_mark(1) == 2
        assert client.first_id_at(1, datetime(2100, 1, 1, tzinfo=timezone.utc)) == 3
        assert all(one.appended_at is not None for one in client.read(1, 0, 3))
        with client.feed(1, start=2, follow=True) as following:
            assert next(following).data == b"by a context"
        assert client.supersede(10_000, 10) == [0, 2]
        with pytest.raises(InvalidInput, match="there is no partition 2; this space has 2: 0 to 1"):
            client.append(2, b"")
    with cluster.connect() as log:
        assert [one.data for one in log.feed(None)] == [b"of the log"], "the spaces do not see each other"


def test_the_asyncio_client_counts_the_same(cluster: InMemoryCluster) -> None:
    async def run() -> None:
        async with await cluster.connect_async(space="orders") as client:
            assert client.partitions == 2
            assert await client.append(1, b"a") == 0
            assert [(one.partition_id, one.data) async for one in client.feed(None)] == [(1, b"a")]
            assert await client.server_high_water_mark(1) == 0

    asyncio.run(run())


def test_a_space_that_is_not_there_is_told_with_those_that_are(cluster: InMemoryCluster) -> None:
    with pytest.raises(SpaceNotFound, match="has no space 'users'; it has: log, orders"):
        cluster.connect(space="users")


def test_a_cluster_grows_under_load_and_nothing_pauses() -> None:
    with InMemoryCluster(partitions=2) as cluster, cluster.connect() as client:
        stop, ids = threading.Event(), list[int]()

        def load() -> None:
            while not stop.is_set():
                ids.append(client.append(0, b"x").result(10))

        loading = threading.Thread(target=load)
        loading.start()
        for number in range(8):
            cluster.create_space(f"s{number}", 3)
            with cluster.connect(space=f"s{number}") as other:
                assert other.append(2, b"y").result(10) == 0
        stop.set()
        loading.join(10)
        assert ids == list(range(len(ids)))
        assert client.statistics()["reconnects"] == 0


def test_clients_of_a_deleted_space_are_told_so_once_and_for_all(cluster: InMemoryCluster) -> None:
    callbacks = Marks()
    with cluster.connect(callbacks, space="orders") as client, cluster.connect(space="orders") as plain:
        client.append(0, b"a").result(10)
        plain.append(0, b"b").result(10)
        with cluster.suspended(4):  # whatever is under way
            waiting = client.submit(Put())
            cluster.delete_space("orders")
            with pytest.raises(SpaceGone, match="space 'orders' of cluster 'memory' was deleted"):
                waiting.result(10)
        for ask in (
            lambda: client.append(0, b"c").result(10),
            lambda: plain.append(1, b"never mounted").result(10),
            lambda: plain.append_many(0, [b"c"]).result(10),
            lambda: client.wait_ready(10),
            lambda: client.server_high_water_mark(0),
            lambda: list(client.read(0, 0, 1)),
            lambda: next(plain.feed(0, start=0, follow=True)),
            lambda: client.submit(Put()).result(10),
        ):
            with pytest.raises(SpaceGone, match="with all its records; names are not used again") as told:
                ask()
            assert not told.value.retriable
        assert callbacks.told.wait(10)
        assert isinstance(callbacks.failed[0], SpaceGone)
    with pytest.raises(SpaceGone):
        cluster.connect(space="orders")
    with pytest.raises(InvalidInput, match="its name is not used again"):
        cluster.create_space("orders", 1)
    cluster.create_space("next", 1)
    with cluster.connect(space="next") as client:
        assert client.append(0, b"a").result(10) == 0
    with cluster.connect() as client:
        assert client.append(0, b"a").result(10) == 0


def test_moves_and_restarts_keep_the_numbers(cluster: InMemoryCluster) -> None:
    with cluster.connect(space="orders") as client:
        assert client.append(1, b"a").result(10) == 0
        cluster.move(4)
        assert client.append(1, b"b").result(10) == 1
        cluster.kill_server(1)
        cluster.kill_server(2)
        assert client.append(1, b"c").result(10) == 2
        assert [one.data for one in client.read(1, 0, 3)] == [b"a", b"b", b"c"]


def test_the_directory_of_a_space_has_its_numbers_and_those_of_the_cluster() -> None:
    server = MemoryZooKeeperServer()
    store = ClusterStore(MemoryZooKeeper(server), "demo")
    store.initialize(3, [0])
    store.spaces.create("orders", 2)
    directory = StoreDirectory(MemoryZooKeeper(server), "demo", "orders")
    seen: list[object] = []
    directory.watch(seen.append)
    assert directory.partitions == 2
    store.set_assignment(Assignment({0: Owner(7, 1), 4: Owner(8, 2)}), 0)
    assert seen[-1] == {1: Location(8, 2, None, 4)}
    store.register_server(8, Endpoint("127.0.0.1", 1))
    assert directory.locations() == {1: Location(8, 2, Endpoint("127.0.0.1", 1), 4)}
    store.spaces.delete("orders", "orders")
    assert isinstance(seen[-1], SpaceGone)
    count = len(seen)
    store.set_assignment(Assignment({0: Owner(7, 1)}), 1)
    assert len(seen) == count, "that was the last word"
    with pytest.raises(SpaceGone):
        StoreDirectory(MemoryZooKeeper(server), "demo", "orders")
