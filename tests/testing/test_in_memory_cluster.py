"""The in-memory cluster keeps the log's promises, and each of its faults is what its name says."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from inspect import signature

import pytest

from tests.testing.application import PATIENCE_S, Counted, Follower
from waltz_ray import ClientConfig, WaltzClient, connect, connect_async
from waltz_ray.client.codecs import JsonCodec
from waltz_ray.config import ServerConfig
from waltz_ray.errors import (
    AppendFailed,
    AppendTimeout,
    ClientClosed,
    ConfigError,
    InvalidInput,
    LockConflict,
    Trimmed,
)
from waltz_ray.testing import Faults, InMemoryCluster

ONE_BY_ONE = ClientConfig(batch_records=1)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert [t for t in set(threading.enumerate()) - before if t.name.startswith("waltz")] == []


def log_of(client: WaltzClient, partition_id: int = 0) -> list[bytes]:
    return [transaction.data for transaction in client.feed(partition_id)]


def test_an_application_on_several_partitions() -> None:
    follower = Follower()
    with InMemoryCluster(partitions=4) as cluster, cluster.connect(callbacks=follower) as client:
        client.wait_ready(PATIENCE_S)
        ids = client.append_many(3, [b"a", b"b", b"c"]).result(PATIENCE_S)
        assert ids.tolist() == [0, 1, 2]
        assert client.append(1, b"d", header=7).result(PATIENCE_S) == 0
        follower.wait_for(lambda: follower.data == {1: [b"d"], 3: [b"a", b"b", b"c"]})
        assert (client.partitions, client.server_high_water_mark(3)) == (4, 2)
        assert [t.header for t in client.read(1, 0, 10)] == [7]


@pytest.mark.parametrize("retained_bytes", [0, 1 << 20])
def test_what_is_trimmed_may_be_in_a_servers_memory(retained_bytes: int) -> None:
    with InMemoryCluster(config=ServerConfig(retained_bytes=retained_bytes)) as cluster, cluster.connect() as client:
        for number in range(4):  # a batch each
            client.append(0, b"%d" % number).result(PATIENCE_S)
        assert cluster.trim(0, 2) == 2
        assert log_of(client) == [b"2", b"3"]
        if retained_bytes:
            assert [t.data for t in client.read(0, 0, 4)] == [b"0", b"1", b"2", b"3"]
        else:
            with pytest.raises(Trimmed):
                next(client.read(0, 0, 4))


def test_a_client_takes_the_arguments_of_a_real_ones() -> None:
    """But for those that say where a cluster is."""
    places = {"self", "cluster", "zookeeper", "transport", "directory", "address"}
    for ours, real in ((InMemoryCluster.connect, connect), (InMemoryCluster.connect_async, connect_async)):
        assert {*signature(ours).parameters} - places == {*signature(real).parameters} - places
    with InMemoryCluster() as cluster, cluster.connect(codec=JsonCodec()) as client:
        client.append(0, {"a": 1}).result(PATIENCE_S)
        assert [each.value for each in client.read(0, 0, 1)] == [{"a": 1}]

    async def asynchronously() -> None:
        async with InMemoryCluster() as cluster, await cluster.connect_async(codec=JsonCodec()) as client:
            await client.append(0, [2])
            assert [each.value async for each in client.read(0, 0, 1)] == [[2]]

    asyncio.run(asynchronously())


def test_it_is_quick_enough_for_tests() -> None:
    with InMemoryCluster() as cluster, cluster.connect() as client:
        start = time.process_time()  # what others take of a loaded machine does not count
        appends = [client.append(0, b"x" * 100) for _ in range(5000)]
        assert [append.result(PATIENCE_S) for append in appends] == list(range(5000))
        assert time.process_time() - start < 1.0  # a tenth to a fifth of that


def test_exactly_once_whatever_happens() -> None:
    """Chance, moves, kills and lost connections together; what is in the log is what was appended."""
    faults = Faults(0.05, 0.05, 0.05, delay_ms=(0.0, 2.0))
    follower = Follower()
    cluster = InMemoryCluster(partitions=2, servers=2, faults=faults, seed=11)
    with cluster, cluster.connect(follower, ClientConfig(batch_records=4)) as client:
        appends = []
        for number in range(1200):
            appends.append(client.append(number % 2, b"%d" % number))
            if number % 100 == 0:
                appends[-1].result(PATIENCE_S)
            if number % 300 == 150:
                cluster.move(0)
                cluster.kill_server(1 + number % 2)
                cluster.drop_connections()
        ids = [append.result(PATIENCE_S) for append in appends]
        follower.wait_for(lambda: sum(map(len, follower.data.values())) == 1200)
        assert [follower.data[n % 2][ids[n]] for n in range(1200)] == [b"%d" % n for n in range(1200)]
        assert log_of(client, 0) == follower.data[0]
        assert min(cluster.faults_met[kind] for kind in ("append_failures", "connections_lost", "answers_lost")) > 0
        assert client.statistics()["retries"] > 0


def test_a_refused_append_is_sent_again_or_reported() -> None:
    with InMemoryCluster() as cluster, cluster.connect(config=ONE_BY_ONE) as client:
        cluster.force(append_failures=1)
        assert client.append(0, b"a").result(PATIENCE_S) == 0
        cluster.force(append_failures=1)
        with pytest.raises(AppendFailed, match="a fault of the in-memory cluster"):
            client.append(0, b"b", retry=False).result(PATIENCE_S)
        assert log_of(client) == [b"a"]
        assert cluster.faults_met == {"append_failures": 2}


def test_refused_appends_keep_the_order_of_their_calls() -> None:
    """As at any server, what is sent before the client knows is refused, too."""
    sent = [b"%d" % number for number in range(300)]
    cluster = InMemoryCluster(faults=Faults(append_failures=0.2), seed=3)
    with cluster, cluster.connect(config=ClientConfig(batch_records=3)) as client:
        assert client.append_many(0, sent).result(PATIENCE_S).tolist() == list(range(300))
        assert log_of(client) == sent
        assert cluster.faults_met["append_failures"] > 1


@pytest.mark.parametrize(("fault", "retries"), [("connections_lost", 1), ("answers_lost", 0)])
def test_an_append_without_an_answer_is_in_the_log_once(fault: str, retries: int) -> None:
    """The feed says which of the two it was: it is sent again exactly when it has to be."""
    with InMemoryCluster() as cluster, cluster.connect() as client:
        client.wait_ready(PATIENCE_S)
        cluster.force(**{fault: 1})
        assert client.append(0, b"a").result(PATIENCE_S) == 0
        assert log_of(client) == [b"a"]
        statistics = client.statistics()
        assert (statistics["retries"], statistics["reconnects"]) == (retries, 1)


def test_a_forced_lock_failure() -> None:
    follower = Follower()
    with InMemoryCluster() as cluster, cluster.connect(follower) as client:
        cluster.force(lock_failures=1)
        first, second = Counted(follower), Counted(follower)
        assert client.submit(first).result(PATIENCE_S)  # there is nothing yet that could have refused it
        assert client.submit(second).result(PATIENCE_S)
        assert (first.executions, second.executions, second.refused) == (1, 2, [0])
        assert log_of(client) == [b"0", b"1"]
        cluster.force(lock_failures=1)
        client.append(0, b"no lock").result(PATIENCE_S)
        with pytest.raises(LockConflict) as refused:
            client.append(0, b"", write_locks=[("number", 1)]).result(PATIENCE_S)
        assert refused.value.transaction_id == 2


def test_contexts_in_spite_of_lock_failures() -> None:
    follower = Follower()
    with InMemoryCluster(faults=Faults(lock_failures=0.3), seed=2) as cluster, cluster.connect(follower) as client:
        contexts = [Counted(follower) for _ in range(40)]
        assert all(outcome.result(PATIENCE_S) for outcome in [client.submit(context) for context in contexts])
        follower.wait_for(lambda: len(follower.data[0]) == 40)
        assert follower.data[0] == [b"%d" % number for number in range(40)]
        assert cluster.faults_met["lock_failures"] > 0


def test_a_suspended_feed() -> None:
    follower = Follower()
    with InMemoryCluster(partitions=2) as cluster, cluster.connect(follower) as client:
        client.wait_ready(PATIENCE_S)
        with cluster.suspended(0):
            append = client.append(0, b"a")
            assert client.append(1, b"b").result(PATIENCE_S) == 0
            assert client.server_high_water_mark(0) == 0  # committed, and the client does not know
            with pytest.raises(AppendTimeout):
                client.flush(0.05)
            cluster.drop_connections()  # nor after the next mount
            with cluster.connect(partitions=[1]) as other:
                other.append(1, b"c").result(PATIENCE_S)
            follower.wait_for(lambda: len(follower.data[1]) == 2)
            assert not append.done()
            assert client.high_water_mark(0) == -1
        assert append.result(PATIENCE_S) == 0
        follower.wait_for(lambda: 0 in follower.data)


def test_a_killed_server_keeps_what_was_committed() -> None:
    with InMemoryCluster() as cluster, cluster.connect() as client:
        client.append_many(0, [b"a", b"b"]).result(PATIENCE_S)
        cluster.kill_server()
        assert client.append(0, b"c").result(PATIENCE_S) == 2
        assert log_of(client) == [b"a", b"b", b"c"]


def test_delays_keep_the_order() -> None:
    with InMemoryCluster(faults=Faults(delay_ms=(0.0, 3.0))) as cluster, cluster.connect(config=ONE_BY_ONE) as client:
        start = time.monotonic()
        appends = [client.append(0, b"%d" % number) for number in range(50)]
        assert [append.result(PATIENCE_S) for append in appends] == list(range(50))
        assert time.monotonic() - start > 0.003
        cluster.faults = Faults()
        assert client.append(0, b"").result(PATIENCE_S) == 50


def test_for_coroutines() -> None:
    async def main() -> list[bytes]:
        async with InMemoryCluster(partitions=2) as cluster, await cluster.connect_async() as client:
            cluster.force(answers_lost=1)
            ids = await asyncio.gather(*[client.append(0, b"%d" % number) for number in range(100)])
            assert sorted(ids) == list(range(100))
            cluster.kill_server()
            await client.append(0, b"last")
            return [transaction.data async for transaction in client.feed(0)]

    found = asyncio.run(main())
    assert (len(found), len(set(found)), found[-1]) == (101, 101, b"last")


def test_what_is_under_way_when_the_cluster_ends() -> None:
    with InMemoryCluster() as cluster:
        client = cluster.connect()
        client.append(0, b"a").result(PATIENCE_S)
    append = client.append(0, b"b")
    client.close()
    with pytest.raises(ClientClosed):
        append.result(PATIENCE_S)


def test_a_writer_waits_for_who_does_not_read() -> None:
    """A follower that takes nothing is sent no more than its credit, and holds nobody up."""
    with InMemoryCluster() as cluster, cluster.connect() as client, cluster.connect() as reader:
        feed = reader.feed(0, follow=True)
        client.append_many(0, [b"x" * 100_000] * 400).result(PATIENCE_S)
        assert sum(len(next(feed).data) for _ in range(400)) == 40_000_000
        feed.stop()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Faults(append_failures=2), "must be a share from 0 to 1, not 2"),
        (lambda: Faults(delay_ms=(3, 1)), "must be .least, most. in milliseconds"),
        (lambda: InMemoryCluster().force(nothing=1), "there is no fault 'nothing'"),
    ],
)
def test_faults_that_there_are_not(wrong: object, message: str) -> None:
    assert callable(wrong)
    with pytest.raises(ConfigError, match=message):
        wrong()


def test_input_that_cannot_be_used() -> None:
    with pytest.raises(InvalidInput, match="at least one partition"):
        InMemoryCluster(0)
    with pytest.raises(InvalidInput, match="is not running"):
        InMemoryCluster().connect()
    with InMemoryCluster() as cluster:
        with pytest.raises(InvalidInput, match="is running already"):
            cluster.start()
        with pytest.raises(InvalidInput, match=r"servers=2\) has two"):
            cluster.move(0)
        with pytest.raises(InvalidInput, match="there is no server 2"):
            cluster.kill_server(2)
        with pytest.raises(InvalidInput, match="there is no partition 1"), cluster.suspended(1):
            pass
