"""One fake server, one directory, and clients that are closed at the end, over both transports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import pytest

from tests.client.async_client import AsyncClient
from tests.client.fake_actor import FakeActorHandle
from tests.client.fake_server import FakeDirectory, FakeServer
from waltz_ray.client import Callbacks, Transaction, WaltzClient
from waltz_ray.client.actor_transport import ActorTransport
from waltz_ray.client.engine import FeedKind
from waltz_ray.client.tcp import TcpTransport
from waltz_ray.client.transport import Transport
from waltz_ray.config import ClientConfig

PATIENCE_S = 20.0


class Recorder(Callbacks):
    """An application that remembers. ``fail_on`` raises once for each ID in it."""

    def __init__(self, marks: dict[int, int] | None = None) -> None:
        self.changed = threading.Condition()
        self.marks = marks or {}
        self.applied: list[tuple[int, int, int, bytes]] = []  # partition, ID, header, data
        self.events: list[object] = []
        self.uncaught: list[tuple[int, int, BaseException]] = []
        self.batches: list[int] = []
        self.fail_on: set[int] = set()
        self.on_uncaught: Callable[[int, int], None] = lambda partition, transaction: None
        self.gate: threading.Event | None = None

    def client_high_water_mark(self, partition_id: int) -> int:
        return self.marks.get(partition_id, -1)

    def apply_transactions(self, partition_id: int, transactions: Sequence[Transaction]) -> None:
        self.batches.append(len(transactions))
        super().apply_transactions(partition_id, transactions)

    def apply_transaction(self, transaction: Transaction) -> None:
        if self.gate is not None:
            assert self.gate.wait(PATIENCE_S)
        if transaction.transaction_id in self.fail_on:
            self.fail_on.discard(transaction.transaction_id)
            raise ValueError(f"cannot apply {transaction.transaction_id}")
        with self.changed:
            self.marks[transaction.partition_id] = transaction.transaction_id
            self.applied.append(
                (transaction.partition_id, transaction.transaction_id, transaction.header, transaction.data)
            )
            self.events.append(("applied", transaction.transaction_id))
            self.changed.notify_all()

    def uncaught_exception(self, partition_id: int, transaction_id: int, error: BaseException) -> None:
        with self.changed:
            self.uncaught.append((partition_id, transaction_id, error))
            self.on_uncaught(partition_id, transaction_id)
            self.changed.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE_S), (self.applied[-3:], self.uncaught)

    def ids(self, partition: int = 0) -> list[int]:
        return [applied[1] for applied in self.applied if applied[0] == partition]


class MakeClient(Protocol):
    def __call__(
        self,
        callbacks: Callbacks | None = None,
        config: ClientConfig | None = None,
        partitions: Sequence[int] | None = None,
        feed: FeedKind | None = None,
    ) -> WaltzClient: ...


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer(partitions=2) as running:
        yield running


@pytest.fixture
def directory(server: FakeServer) -> FakeDirectory:
    return FakeDirectory({0: server, 1: server})


@pytest.fixture(params=["tcp"])
def transport(request: pytest.FixtureRequest, server: FakeServer) -> Iterator[Transport]:
    """TCP; a module that is a contract for both asks for ``both_transports``."""
    if request.param == "tcp":
        yield TcpTransport()
        return
    handle = FakeActorHandle(server)
    yield ActorTransport(lambda server_id: handle)
    handle.shut_down()


class MakeAnyClient(Protocol):
    def __call__(
        self,
        callbacks: Callbacks | None = None,
        config: ClientConfig | None = None,
        partitions: Sequence[int] | None = None,
        feed: FeedKind | None = None,
    ) -> WaltzClient | AsyncClient: ...


@pytest.fixture(params=["threads", "async"])
def make_any(
    request: pytest.FixtureRequest, server: FakeServer, directory: FakeDirectory, transport: Transport
) -> Iterator[MakeAnyClient]:
    """Of either kind, with the same methods: what both promise is tested with both."""
    kind = WaltzClient if request.param == "threads" else AsyncClient
    clients: list[WaltzClient | AsyncClient] = []

    def make(
        callbacks: Callbacks | None = None,
        config: ClientConfig | None = None,
        partitions: Sequence[int] | None = None,
        feed: FeedKind | None = None,
    ) -> WaltzClient | AsyncClient:
        clients.append(kind(directory, transport, callbacks, config, partitions, feed))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def make_client(server: FakeServer, directory: FakeDirectory, transport: Transport) -> Iterator[MakeClient]:
    clients: list[WaltzClient] = []

    def make(
        callbacks: Callbacks | None = None,
        config: ClientConfig | None = None,
        partitions: Sequence[int] | None = None,
        feed: FeedKind | None = None,
    ) -> WaltzClient:
        clients.append(WaltzClient(directory, transport, callbacks, config, partitions, feed))
        return clients[-1]

    before = set(threading.enumerate())
    yield make
    for client in clients:
        client.close()
    left = [t for t in set(threading.enumerate()) - before if t.name.startswith("waltz") and t.is_alive()]
    assert not left, left
