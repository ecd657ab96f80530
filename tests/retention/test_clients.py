"""What was trimmed away, as clients see it: Trimmed with the first ID there is, and never a gap, of either client."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone

import pytest

from tests.client.async_client import AsyncClient
from tests.client.conftest import PATIENCE_S, Recorder
from tests.cluster.harness import wait_until
from waltz_ray.client import Transaction, TransactionBuilder, TransactionContext, WaltzClient
from waltz_ray.config import ClientConfig, ServerConfig
from waltz_ray.errors import Trimmed
from waltz_ray.protocol.spaces import DEFAULT_SPACE
from waltz_ray.testing import InMemoryCluster

NOON = datetime(2026, 11, 21, 12, tzinfo=timezone.utc)


@pytest.fixture
def now() -> list[datetime]:
    return [NOON]


@pytest.fixture
def cluster(now: list[datetime]) -> Iterator[InMemoryCluster]:
    # Nothing is retained: what was trimmed is nowhere.
    with InMemoryCluster(2, config=ServerConfig(retained_bytes=0), clock=lambda: now[0]) as cluster:
        yield cluster


Make = Callable[..., "WaltzClient | AsyncClient"]


@pytest.fixture(params=["threads", "async"])
def make(request: pytest.FixtureRequest, cluster: InMemoryCluster) -> Iterator[Make]:
    made: list[WaltzClient | AsyncClient] = []
    kind = WaltzClient if request.param == "threads" else AsyncClient

    def client(
        callbacks: Recorder | None = None, config: ClientConfig | None = None, partitions: tuple[int, ...] | None = None
    ) -> WaltzClient | AsyncClient:
        directory, transport = cluster._directory(DEFAULT_SPACE), cluster._transport()
        made.append(kind(directory, transport, callbacks, config, partitions))
        return made[-1]

    yield client
    for one in made:
        one.close()


def fill(client: WaltzClient | AsyncClient, count: int, data: bytes = b"x") -> None:
    for _ in range(count):  # a batch each, for what is trimmed goes in whole ones
        client.append(0, data).result(PATIENCE_S)


class Busy(Recorder):
    """Applies nothing until it is told to."""

    busy = True

    def apply_transaction(self, transaction: Transaction) -> None:
        if self.busy:
            raise BlockingIOError("the database is locked")
        super().apply_transaction(transaction)


class Locked(TransactionContext):
    def partition_id(self, partitions: int) -> int:
        return 0

    def execute(self, builder: TransactionBuilder) -> bool:
        builder.data = b"c"
        builder.write_lock("k", 1)
        return True


def test_reads_and_feeds(cluster: InMemoryCluster, make: Make) -> None:
    client = make()
    fill(client, 10)
    assert cluster.trim(0, 4) == 4
    assert [one.transaction_id for one in client.feed(0)] == [4, 5, 6, 7, 8, 9]
    assert [one.transaction_id for one in client.feed([0, 1], last=100)] == [4, 5, 6, 7, 8, 9]
    assert [one.transaction_id for one in client.feed(0, start=7)] == [7, 8, 9]
    for gone in (client.read(0, 3, 9), client.feed(0, start=3), client.feed(0, start=3, follow=True)):
        with pytest.raises(Trimmed) as raised:
            next(gone)
        assert raised.value.args[:3] == (0, 3, 4)
        assert "the first that can be read is 4" in str(raised.value)
        assert pickle.loads(pickle.dumps(raised.value)).args == raised.value.args
    with client.feed(0, follow=True) as follower:
        assert [next(follower).transaction_id for _ in range(6)] == [4, 5, 6, 7, 8, 9]
    cluster.trim(0, 10)
    assert list(client.feed(0)) == []
    with client.feed(0, follow=True) as follower:
        fill(client, 1)
        assert next(follower).transaction_id == 10


def test_a_point_in_time_that_is_gone_means_what_is_left(
    cluster: InMemoryCluster, make: Make, now: list[datetime]
) -> None:
    client = make()
    fill(client, 3)
    now[0] = NOON + timedelta(minutes=1)
    fill(client, 3)
    cluster.trim(0, 5)
    for follow in (False, True):
        feed = client.feed(0, start=NOON, follow=follow)
        assert next(feed).transaction_id == 5


def test_an_application_that_is_below_the_mark_is_told_and_fed_nothing(cluster: InMemoryCluster, make: Make) -> None:
    fill(make(), 10)
    cluster.trim(0, 6)
    recorder = Recorder({0: 3})
    client = make(recorder, partitions=(0,))
    with pytest.raises(Trimmed, match="partition 0: transaction 4 was trimmed away"):
        client.wait_ready(PATIENCE_S)
    with pytest.raises(Trimmed):
        client.append(0, b"y").result(PATIENCE_S)
    recorder.wait_for(lambda: bool(recorder.uncaught))
    assert recorder.uncaught[0][:2] == (0, 3)
    assert isinstance(recorder.uncaught[0][2], Trimmed)
    assert recorder.applied == []
    # One that has all that is gone is served.
    recorder = Recorder({0: 5})
    make(recorder, partitions=(0,)).wait_applied(0, 9, PATIENCE_S)
    assert recorder.ids() == [6, 7, 8, 9]


def test_an_application_that_is_slow_loses_what_comes_next_and_is_told(cluster: InMemoryCluster, make: Make) -> None:
    """Its contexts that wait for what will never be applied are told, too."""
    recorder = Busy()
    client = make(recorder, ClientConfig(feed_credit_bytes=1 << 16), (0,))
    other = make()
    fill(other, 10, bytes(20_000))
    other.append(0, b"x", append_locks=[("k", 1)], client_mark=-1).result(PATIENCE_S)
    submitted = client.submit(Locked())
    wait_until(lambda: client.statistics()["lock_conflicts"] > 0, "a refusal, after which it waits for transaction 10")
    cluster.trim(0, 11)
    recorder.busy = False
    recorder.wait_for(lambda: isinstance(recorder.uncaught[-1][2], Trimmed))
    partition_id, mark, error = recorder.uncaught[-1]
    assert isinstance(error, Trimmed)
    assert (partition_id, error.first_id) == (0, 11)
    assert recorder.ids() == list(range(error.wanted_id)) == list(range(mark + 1))
    with pytest.raises(Trimmed):
        submitted.result(PATIENCE_S)
    with pytest.raises(Trimmed):
        client.wait_ready(PATIENCE_S)


def test_who_only_appends_is_never_hindered(cluster: InMemoryCluster, make: Make) -> None:
    client = make()
    fill(client, 5)
    cluster.trim(0, 5)
    cluster.drop_connections()
    assert client.append(0, b"y").result(PATIENCE_S) == 5
    late = make()
    assert late.append(0, b"y").result(PATIENCE_S) == 6
