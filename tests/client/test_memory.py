"""A generator that appends for ever without waiting costs what is allowed to be without a fate, and nothing is lost."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from tests.client.conftest import PATIENCE_S, MakeClient
from tests.client.fake_server import FakeServer, Log
from waltz_ray.client import WaltzClient
from waltz_ray.config import ClientConfig
from waltz_ray.protocol.records import RecordBatch

_FIXED_BYTES = 8_000_000  # batches on their way through the two ends of a connection in one process


@pytest.fixture
def traced() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


class Generator:
    """Appends ``count`` records as fast as it may and keeps nothing of them but counts."""

    def __init__(self, client: WaltzClient, count: int, size_bytes: int) -> None:
        self.put = 0
        self.ids = 0
        self.errors: list[BaseException] = []
        self._client = client
        self._count = count
        self._padding = b"x" * size_bytes
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        for number in range(self._count):
            self._client.append(0, self._padding + b"%d" % number).add_done_callback(self._done)
            self.put += 1

    def _done(self, future: Future[int]) -> None:
        error = future.exception()
        if error is None:
            self.ids += 1
        else:
            self.errors.append(error)

    def wait_until_blocked(self) -> None:
        outbox = self._client._engine.attachments[0].outbox
        while not outbox.blocked:
            assert self.thread.is_alive()


def _forget_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server keeps only its last batch, so that the memory is the client's."""

    def append(self: Log, *args: object) -> RecordBatch:
        records = original(self, *args)  # type: ignore[arg-type]
        del self.batches[:-1]
        return records

    original = Log.append
    monkeypatch.setattr(Log, "append", append)


@pytest.mark.usefixtures("traced")
def test_bytes_are_bounded(server: FakeServer, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    _forget_what_was_there(monkeypatch)
    limit, count = 2_000_000, 20_000
    client = make_client(config=ClientConfig(outstanding_bytes=limit, batch_bytes=256 * 1024))
    client.append(0, b"").result(PATIENCE_S)
    before = tracemalloc.get_traced_memory()[0]
    server.script.hold_appends = True
    generator = Generator(client, count, 3000)  # 60 MB
    generator.wait_until_blocked()
    held = tracemalloc.get_traced_memory()[0] - before
    assert 3000 * generator.put <= limit
    assert held < limit + _FIXED_BYTES
    server.script.hold_appends = False
    server.drop_connections()
    generator.thread.join(3 * PATIENCE_S)
    client.flush(PATIENCE_S)
    peak = tracemalloc.get_traced_memory()[1] - before
    assert peak < limit + _FIXED_BYTES
    assert (generator.put, generator.ids, generator.errors) == (count, count, [])


@pytest.mark.usefixtures("traced")
def test_small_records_are_bounded_by_their_number(server: FakeServer, make_client: MakeClient) -> None:
    client = make_client(config=ClientConfig(outstanding_appends=5000))
    client.append(0, b"").result(PATIENCE_S)
    server.script.hold_appends = True
    before = tracemalloc.get_traced_memory()[0]
    generator = Generator(client, 6000, 10)
    generator.wait_until_blocked()
    each = (tracemalloc.get_traced_memory()[0] - before) / 5000
    assert generator.put == 5000
    assert each < 1500  # bytes beside the data; measured: about 800
    server.script.hold_appends = False
    server.drop_connections()
    generator.thread.join(PATIENCE_S)
    client.flush(PATIENCE_S)
    assert (generator.ids, generator.errors) == (6000, [])


@pytest.mark.usefixtures("traced")
def test_without_the_limit_it_would_grow(server: FakeServer, make_client: MakeClient) -> None:
    """That the two tests above look at the right thing."""
    client = make_client(config=ClientConfig(outstanding_bytes=1 << 30, outstanding_appends=1_000_000))
    client.append(0, b"").result(PATIENCE_S)
    server.script.hold_appends = True
    before = tracemalloc.get_traced_memory()[0]
    generator = Generator(client, 10_000, 3000)
    generator.thread.join(PATIENCE_S)
    assert tracemalloc.get_traced_memory()[0] - before > 30_000_000
    client.close()
    assert (generator.ids, len(generator.errors)) == (0, 10_000)
