"""The log end to end without Ray: the real client, servers, replicas, files, sockets and ZooKeeper."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import TimeoutError
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

import waltz_ray
from tests.cluster.harness import FAST, Cluster, wait_until, waltz
from waltz_ray.client import Callbacks, Transaction, TransactionBuilder, TransactionContext, WaltzClient
from waltz_ray.client.times import in_milliseconds
from waltz_ray.config import ServerConfig
from waltz_ray.connecting import connect as waltz_connect
from waltz_ray.coordination.trim_store import TrimStore
from waltz_ray.errors import CursorTaken, LockConflict
from waltz_ray.protocol.partition.events import Unassigned
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.verify import verify_directory

pytestmark = pytest.mark.cluster


@pytest.fixture
def cluster(tmp_path: Path, zookeeper_server: str) -> Iterator[Cluster]:
    with Cluster(tmp_path, zookeeper_server) as running:
        running.wait_members(0, {0, 1, 2})
        running.wait_members(1, {0, 1, 2})
        yield running


def connect(cluster: Cluster, callbacks: Callbacks | None = None) -> WaltzClient:
    return waltz_connect(cluster.name, zookeeper=cluster.zookeeper, callbacks=callbacks)


def records_on_disk(cluster: Cluster, replica_id: int, partition_id: int) -> bytes:
    """All record bytes of a partition of one replica, read through a session of nobody."""
    log = cluster.stores[replica_id].partition(partition_id)
    parts, next_id = [], 0
    while next_id <= log.last_id:
        batch = log.read(next_id, log.last_id + 1, 1 << 24)
        parts.append(bytes(batch.records))
        next_id = batch.end_id
    return b"".join(parts)


def wait_converged(cluster: Cluster, partition_id: int, last_id: int) -> None:
    wait_until(
        lambda: all(store.partition(partition_id).last_id == last_id for store in cluster.stores.values()),
        f"all replicas at {last_id}",
    )


class Applied(Callbacks):
    """Remembers what was applied, per partition."""

    def __init__(self) -> None:
        self.transactions: dict[int, list[bytes]] = {}
        self.lock = threading.Lock()

    def client_high_water_mark(self, partition_id: int) -> int:
        return len(self.transactions.get(partition_id, [])) - 1

    def apply_transaction(self, transaction: Transaction) -> None:
        with self.lock:
            applied = self.transactions.setdefault(transaction.partition_id, [])
            assert transaction.transaction_id == len(applied)
            applied.append(bytes(transaction.data))

    def uncaught_exception(self, partition_id: int, transaction_id: int, error: BaseException) -> None:
        raise error


def test_appends_get_dense_ids_and_are_the_same_bytes_on_every_replica(cluster: Cluster) -> None:
    with connect(cluster) as client:
        singles = [client.append(0, b"%d" % i, header=i) for i in range(500)]
        many = client.append_many(0, [b"m%d" % i for i in range(1000)])
        assert [f.result(20) for f in singles] == list(range(500))
        assert many.result(20).tolist() == list(range(500, 1500))
        assert [t.header for t in client.read(0, 10, 13)] == [10, 11, 12]
        assert client.server_high_water_mark(0) == 1499
        assert client.server_high_water_mark(1) == -1
    wait_converged(cluster, 0, 1499)
    copies = {records_on_disk(cluster, r, 0) for r in (0, 1, 2)}
    assert len(copies) == 1
    for replica_id in (0, 1, 2):
        cluster.stop_replica(replica_id)
    for replica_id in (0, 1, 2):
        report = verify_directory(OsDisk(), str(cluster.replica_directory(replica_id)))
        assert report.damage is None


def test_a_stale_mark_on_a_locked_id_is_refused_with_the_conflicting_id(cluster: Cluster) -> None:
    lock = ("aircraft", 7)
    with connect(cluster) as client:
        first = client.append(0, b"a", write_locks=[lock], client_mark=-1).result(20)
        with pytest.raises(LockConflict) as refused:
            client.append(0, b"b", write_locks=[lock], client_mark=first - 1).result(20)
        assert refused.value.transaction_id == first
        assert client.append(0, b"c", write_locks=[lock], client_mark=first).result(20) == first + 1
        assert [bytes(t.data) for t in client.read(0, 0, 10)] == [b"a", b"c"]


class AddOne(TransactionContext):
    """Reads the counter of what has been applied, and appends its successor under a lock."""

    def __init__(self, applied: Applied) -> None:
        self.applied = applied
        self.completions: list[bool] = []

    def partition_id(self, partitions: int) -> int:
        return 0

    def execute(self, builder: TransactionBuilder) -> bool:
        with self.applied.lock:
            counter = len(self.applied.transactions.get(0, []))
        builder.data = b"%d" % counter
        builder.write_lock("counter", 1)
        return True

    def on_completion(self, committed: bool) -> None:
        self.completions.append(committed)


def test_contexts_of_two_clients_count_without_a_gap(cluster: Cluster) -> None:
    one, two = Applied(), Applied()
    with connect(cluster, one) as first, connect(cluster, two) as second:
        first.wait_ready(20)
        second.wait_ready(20)
        contexts = [AddOne(applied) for applied in (one, two) for _ in range(40)]
        futures = [(first if c.applied is one else second).submit(c) for c in contexts]
        assert all(f.result(60) for f in futures)
        assert all(c.completions == [True] for c in contexts)
        wait_until(lambda: one.client_high_water_mark(0) == two.client_high_water_mark(0) == 79, "both applied all")
    assert one.transactions[0] == two.transactions[0] == [b"%d" % i for i in range(80)]


def append_until(stop: threading.Event, client: WaltzClient, partition_id: int, ids: list[int]) -> None:
    number = 0
    while not stop.is_set():
        futures = [client.append(partition_id, b"x%d" % (number + i)) for i in range(20)]
        ids.extend(f.result(60) for f in futures)
        number += 20


class Load:
    """Appends in a thread until the block ends; ``ids`` are the transaction IDs in the order of the appends."""

    def __init__(self, client: WaltzClient, partition_id: int = 0) -> None:
        self.ids: list[int] = []
        self.client = client
        self._failure: list[BaseException] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(partition_id,))

    def _run(self, partition_id: int) -> None:
        try:
            append_until(self._stop, self.client, partition_id, self.ids)
        except BaseException as error:
            self._failure.append(error)
            raise

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        assert not self._failure

    def goes_on(self, records: int = 200) -> None:
        target = len(self.ids) + records
        wait_until(lambda: len(self.ids) >= target or self._failure, "appends going on")


def final_numbers(client: WaltzClient, partition_id: int) -> Sequence[bytes]:
    return [bytes(t.data) for t in client.feed(partition_id)]


def test_a_replica_dies_and_comes_back_while_appends_go_on(cluster: Cluster) -> None:
    with connect(cluster) as client:
        with Load(client) as load:
            load.goes_on()
            cluster.stop_replica(1)
            cluster.wait_members(0, {0, 2})
            load.goes_on()
            cluster.start_replica(1)
            cluster.wait_members(0, {0, 1, 2})
            load.goes_on()
        numbers = final_numbers(client, 0)
        assert [numbers[i] for i in load.ids] == [b"x%d" % i for i in range(len(load.ids))]
        assert len(numbers) == len(load.ids), "a record is in the log that nobody was told of, or twice"
        wait_converged(cluster, 0, len(numbers) - 1)
    assert len({records_on_disk(cluster, r, 0) for r in (0, 1, 2)}) == 1


def test_partitions_move_to_another_server_while_appends_go_on(cluster: Cluster) -> None:
    cluster.start_server(2)
    with connect(cluster) as client:
        with Load(client) as load:
            for owner in (2, 1, 2):
                load.goes_on()
                cluster.place([owner])
                wait_until(lambda: 0 in cluster.servers[owner].assigned, "the move")  # noqa: B023
            load.goes_on()
        numbers = final_numbers(client, 0)
        assert [numbers[i] for i in load.ids] == [b"x%d" % i for i in range(len(load.ids))]
        assert len(numbers) == len(load.ids)
        assert client.statistics()["reconnects"] >= 1


def test_two_servers_that_believe_they_own_a_partition(tmp_path: Path, zookeeper_server: str) -> None:
    """The older session's appends are refused by the replicas, even after every replica was restarted."""
    with Cluster(tmp_path, zookeeper_server, partitions=1) as cluster:
        cluster.wait_members(0, {0, 1, 2})
        zombie = cluster.servers[1]
        with connect(cluster) as client:
            assert client.append(0, b"before").result(20) == 0
        # The zombie stops hearing from ZooKeeper: it goes on believing that it owns the partition.
        for watch in zombie.watches:
            watch.cancel()
        cluster.start_server(2)
        cluster.place([2])
        wait_until(lambda: cluster.call(lambda: cluster.servers[2].drivers[0].machine.ready), "the new owner")
        for replica_id in (0, 1, 2):
            cluster.stop_replica(replica_id)
            cluster.start_replica(replica_id)
        for replica_id, listening in cluster.endpoints.items():
            cluster.call(partial(zombie.links[replica_id].move_to, listening.endpoint))
        cluster.wait_members(0, {0, 1, 2})
        current = cluster.servers[2].drivers[0].machine.session
        assert current is not None
        assert zombie.drivers[0].machine.generation < cluster.servers[2].drivers[0].machine.generation
        with connect(cluster) as client:
            ids = [client.append(0, b"after%d" % i).result(20) for i in range(20)]
            assert ids == list(range(1, 21))
            wait_until(lambda: zombie.drivers[0].machine.session is None, "the zombie gives up its session")
            assert [bytes(t.data) for t in client.feed(0)] == [b"before"] + [b"after%d" % i for i in range(20)]


def test_everything_stops_and_starts_again_with_the_same_marks(tmp_path: Path, zookeeper_server: str) -> None:
    with Cluster(tmp_path, zookeeper_server, name="again") as cluster:
        cluster.wait_members(0, {0, 1, 2})
        with connect(cluster) as client:
            client.append_many(0, [b"a"] * 700).result(20)
            client.append_many(1, [b"b"] * 3).result(20)
    with Cluster(tmp_path, zookeeper_server, name="again") as cluster:
        cluster.wait_members(0, {0, 1, 2})
        cluster.wait_members(1, {0, 1, 2})
        with connect(cluster) as client:
            assert (client.server_high_water_mark(0), client.server_high_water_mark(1)) == (699, 2)
            assert client.append(0, b"next").result(20) == 700
            assert client.append(1, b"next").result(20) == 3


def test_checkpoints_raise_the_low_water_marks_under_load(tmp_path: Path, zookeeper_server: str) -> None:
    config = ServerConfig(join_grace_ms=20, checkpoint_interval=500)
    with Cluster(tmp_path, zookeeper_server, partitions=1, config=config) as cluster:
        cluster.wait_members(0, {0, 1, 2})
        first_session = cluster.served(0).session
        with connect(cluster) as client:
            for _ in range(20):
                client.append_many(0, [b"z" * 50] * 200).result(20)
            assert client.server_high_water_mark(0) == 3999
            assert len(final_numbers(client, 0)) == 4000
        # How many sessions there were depends on how long one takes to open, not that the last begins near the end.
        wait_until(
            lambda: all(s.partition(0).local_low_water_mark >= 3499 for s in cluster.stores.values()), "low-water marks"
        )
        wait_until(lambda: (cluster.served(0).session or -1) > (first_session or 0), "a further session")


def test_a_late_replica_far_behind_is_copied_in_bulk(tmp_path: Path, zookeeper_server: str) -> None:
    config = ServerConfig(join_grace_ms=20, retained_bytes=0)  # nothing in memory: all of it comes from peers' disks
    with Cluster(tmp_path, zookeeper_server, partitions=1, config=config) as cluster:
        cluster.wait_members(0, {0, 1, 2})
        cluster.stop_replica(2)
        begin = (datetime.now(timezone.utc) - timedelta(hours=1)).replace(microsecond=0)
        with connect(cluster) as client:
            for number in range(30):
                for server in cluster.servers.values():
                    server.now_ms = partial(in_milliseconds, "clock", begin + timedelta(seconds=10 * number))
                client.append_many(0, [b"y" * 1000] * 500).result(20)
            cluster.start_replica(2)
            cluster.wait_members(0, {0, 1, 2})
            last = client.append(0, b"end").result(20)
            assert client.first_id_at(0, begin + timedelta(seconds=101)) == 5500
            assert next(iter(client.read(0, 5499, 5500))).appended_at == begin + timedelta(seconds=100)
        wait_converged(cluster, 0, last)
        assert len({records_on_disk(cluster, r, 0) for r in (0, 1, 2)}) == 1
        # The copy is as old as what it is a copy of.
        moments = [in_milliseconds("moment", begin + timedelta(seconds=10 * number + 1)) for number in range(29)]
        for store in cluster.stores.values():
            lookup = store.partition(0).times()
            assert [lookup.first_id_at(ms) for ms in moments] == [500 * (number + 1) for number in range(29)]


def test_a_subscriber_that_is_far_behind_catches_up_from_disk(tmp_path: Path, zookeeper_server: str) -> None:
    config = ServerConfig(join_grace_ms=20, retained_bytes=10_000)
    with Cluster(tmp_path, zookeeper_server, partitions=1, config=config) as cluster:
        cluster.wait_members(0, {0, 1, 2})
        with connect(cluster) as writer:
            for i in range(20):
                writer.append_many(0, [b"%d" % (i * 500 + j) for j in range(500)]).result(20)
        applied = Applied()
        with connect(cluster, applied) as reader:
            reader.wait_ready(30)
            wait_until(lambda: applied.client_high_water_mark(0) == 9999, "all applied")
        assert applied.transactions[0] == [b"%d" % i for i in range(10_000)]


def test_no_quorum_no_ack_and_everything_goes_on_when_it_is_back(cluster: Cluster) -> None:
    with connect(cluster) as client:
        assert client.append(0, b"0").result(20) == 0
        cluster.stop_replica(0)
        cluster.stop_replica(1)
        pending = [client.append(0, b"%d" % i) for i in range(1, 50)]
        with pytest.raises(TimeoutError):
            pending[-1].result(1)
        cluster.start_replica(0)
        assert [f.result(30) for f in pending] == list(range(1, 50))
        cluster.start_replica(1)
        cluster.wait_members(0, {0, 1, 2})
        assert [bytes(t.data) for t in client.feed(0)] == [b"%d" % i for i in range(50)]


def test_a_replica_whose_files_are_gone_is_refused_until_replaced(cluster: Cluster) -> None:
    with connect(cluster) as client:
        client.append_many(0, [b"k"] * 300).result(20)
        cluster.stop_replica(2)
        cluster.wait_members(0, {0, 1})
        cluster.wait_members(1, {0, 1})
        cluster.replica_directory(2).rename(cluster.directory / "lost")
        cluster.start_replica(2)  # an empty directory under the same name
        client.append_many(0, [b"k"] * 10).result(20)
        wait_until(lambda: cluster.servers[1].links[2].up, "the impostor is connected")
        assert set(cluster.served(0).members) == {0, 1}
        assert cluster.stores[2].partition(0).session_id == -1, "the impostor must not have accepted a session"
        cluster.store.replace_replica(2)
        cluster.wait_members(0, {0, 1, 2})
        wait_converged(cluster, 0, 309)
    assert len({records_on_disk(cluster, r, 0) for r in (0, 1, 2)}) == 1


def test_join_grace_does_not_exclude_a_healthy_replica(cluster: Cluster) -> None:
    assert FAST.join_grace_ms > 0
    assert cluster.served(0).session == 1, "the first session had all three members"


def test_a_step_that_fails_ends_the_server_process(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory cannot be trusted any more; nothing is answered from it."""
    driver = cluster.servers[1].drivers[0]

    def broken(event: object) -> list[object]:
        raise AssertionError("an invariant does not hold")

    def step() -> None:
        """In the loop, so that no event of another test's clients comes in between."""
        with monkeypatch.context() as patch:
            patch.setattr(driver.machine, "step", broken)
            driver.handle(Unassigned(""))

    with pytest.raises(AssertionError, match="invariant"):
        cluster.call(step)
    assert cluster.ended == ["partition 0: a step of its machine failed"]


def test_of_two_processes_of_one_server_one_ends(cluster: Cluster) -> None:
    """Both alive, they would fence each other off; unregistered, one would serve nobody later (seed 0x4eef)."""
    first, client = cluster.servers.pop(1), cluster._clients.pop(1)
    try:
        cluster.start_server(1)
        wait_until(lambda: cluster.ended, "one of them ends")
        assert set(cluster.ended) == {"another process has registered as server 1"}
    finally:
        cluster.run(first.close())
        client.close()


def test_coroutines_append_and_follow(cluster: Cluster) -> None:
    """``AsyncWaltzClient``: a follower sees in order what many tasks append, also while the partition moves."""

    async def main() -> None:
        async with await waltz_ray.connect_async(cluster.name, zookeeper=cluster.zookeeper) as client:
            seen: list[bytes] = []

            async def follow() -> None:
                async for transaction in client.feed(0, follow=True):
                    assert transaction.transaction_id == len(seen)
                    seen.append(transaction.data)
                    if len(seen) == 300:
                        return

            following = asyncio.create_task(follow())
            ids = await asyncio.gather(*[client.append(0, b"%d" % i) for i in range(100)])
            await asyncio.to_thread(cluster.place, [1])
            ids += await asyncio.gather(*[client.append(0, b"%d" % i) for i in range(100, 200)])
            many = await client.append_many(0, [b"%d" % i for i in range(200, 300)])
            await asyncio.wait_for(following, 20)
            assert [seen[i] for i in [*ids, *many]] == [b"%d" % i for i in range(300)]
            assert await client.server_high_water_mark(0) == 299

    asyncio.run(main())


def test_a_cursor_goes_from_one_client_to_the_next(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """On a real ZooKeeper, also while the partition moves; the command line sees it."""
    with connect(cluster) as first, connect(cluster) as second:
        first.append_many(0, [b"%d" % i for i in range(200)]).result(20)
        with first.cursor("audit", 0, hold=True) as cursor:
            seen = [transaction.transaction_id for transaction in islice(cursor, 50)]
            with pytest.raises(CursorTaken, match=r"taken by pid \d+ on "):
                second.cursor("audit", wait=0)
            waltz(cluster, "cursor", "list", "--json")
            (told,) = json.loads(capsys.readouterr().out)
            assert told["owner"].startswith("pid ")
            assert 150 <= told["lag"] <= 200
            cluster.place([1])
            seen += [transaction.transaction_id for transaction in islice(cursor, 50)]
        with second.cursor("audit", wait=20) as cursor:
            assert cursor.epoch == 2
            while len(seen) < 200:
                seen += [transaction.transaction_id for transaction in cursor.poll(20)]
        assert seen == [*range(200)], "nothing twice where nobody failed"
        assert [each.lag for each in first.cursors()] == [0]
        waltz(cluster, "cursor", "reset", "audit", "--to", "7", "--yes")
        assert TrimStore(cluster._client, cluster.name).raise_marks({0: 100}) == {0: 7}
        waltz(cluster, "cursor", "delete", "audit", "--confirm", "audit")
        assert TrimStore(cluster._client, cluster.name).holds.all() == {}
