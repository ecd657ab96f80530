"""Limits, moves, refusals, errors and the end of a client."""

from __future__ import annotations

import asyncio
import gc
import math
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FuturesTimeout  # in Python 3.10 it is not the builtin one
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.client.conftest import PATIENCE_S, MakeAnyClient, MakeClient, Recorder
from tests.client.fake_server import FakeDirectory, FakeServer
from waltz_ray.client import Location, WaltzClient, threads
from waltz_ray.client.requests import AppendCall
from waltz_ray.client.tcp import TcpTransport
from waltz_ray.client.time_limits import TimeLimit, checked_timeout
from waltz_ray.config import ClientConfig
from waltz_ray.errors import (
    AppendTimeout,
    ClientClosed,
    InvalidInput,
    PartitionNotReady,
    SpaceGone,
    WaltzError,
)
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.records import MOST_LOCKS


def test_append_many_beyond_the_limit_passes_in_parts(server: FakeServer, make_client: MakeClient) -> None:
    client = make_client(config=ClientConfig(outstanding_appends=3))
    assert client.append_many(0, [b"%d" % i for i in range(10)]).result(PATIENCE_S).tolist() == list(range(10))
    assert max(server.batch_sizes) == 3


def test_nobody_owns_the_partition(server: FakeServer, directory: FakeDirectory, make_client: MakeClient) -> None:
    directory.move(0, None)
    client = make_client(config=ClientConfig(mount_timeout_ms=50))
    with pytest.raises(PartitionNotReady, match="no server owns it"):
        client.append(0, b"x").result(PATIENCE_S)
    future = client.append(0, b"y")
    directory.move(0, server.location(0))
    assert future.result(PATIENCE_S) == 0


def test_a_refused_connection_is_tried_again(
    server: FakeServer, directory: FakeDirectory, make_client: MakeClient
) -> None:
    directory.move(0, Location(1, 1, Endpoint("127.0.0.1", 1)))
    client = make_client()
    future = client.append(0, b"x")
    directory.move(0, server.location(0))
    assert future.result(PATIENCE_S) == 0


@pytest.mark.parametrize("announced", [True, False])
def test_partition_moves_to_another_server(
    server: FakeServer,
    directory: FakeDirectory,
    make_any: MakeAnyClient,
    announced: bool,
    request: pytest.FixtureRequest,
) -> None:
    recorder = Recorder()
    client = make_any(recorder, partitions=[0])
    assert client.append(0, b"0").result(PATIENCE_S) == 0
    with FakeServer(server_id=2, logs=server.logs) as other:
        other.generations[0] = 2
        server.script.hold_appends = True  # the old server hangs
        future = client.append(0, b"1")
        while sum(server.batch_sizes) < 2:
            assert not future.done()
        if announced:
            server.leave(0)
        directory.move(0, other.location(0))
        assert future.result(PATIENCE_S) == 1
        recorder.wait_for(lambda: recorder.ids() == [0, 1])
        assert other.logs[0].batches[-1].fields["generation"].tolist() == [2]
        client.close()  # before the server


def test_a_wrong_generation_is_refused_and_mounted_again(
    server: FakeServer, directory: FakeDirectory, make_client: MakeClient
) -> None:
    client = make_client()
    client.append(0, b"0").result(PATIENCE_S)
    server.generations[0] = 5
    future = client.append(0, b"1")
    while client.statistics()["reconnects"] < 2:
        assert not future.done()
    directory.move(0, server.location(0))
    assert future.result(PATIENCE_S) == 1


def test_invalid_input_is_refused_at_once(make_client: MakeClient) -> None:
    client = make_client(config=ClientConfig(max_frame_bytes=10_000), partitions=[0])
    with pytest.raises(InvalidInput, match="there is no partition 7; this space has 2: 0 to 1"):
        client.append(7, b"x")
    with pytest.raises(InvalidInput, match="partition 1 is not one of this client's"):
        client.append(1, b"x")
    with pytest.raises(InvalidInput, match="is longer than a log takes"):
        client.append(0, b"x" * 5_000)
    with pytest.raises(InvalidInput, match="is longer than a log takes"):
        client.append_many(0, [b"", b"x" * 5_000])
    with pytest.raises(InvalidInput, match="signed 32-bit"):
        client.append(0, b"x", header=1 << 31)
    with pytest.raises(InvalidInput, match="signed 32-bit"):
        client.append_many(0, [b"", b""], headers=np.array([0, 1 << 40]))
    with pytest.raises(InvalidInput, match="signed 32-bit"):
        client.append_many(0, [b""], headers=[1 << 70])
    with pytest.raises(InvalidInput, match="high-water mark must be"):
        client.append(0, b"x", write_locks=[("a", 1)], client_mark=1 << 70)
    with pytest.raises(InvalidInput, match="high-water mark must be"):
        make_client(Recorder({0: -5}))
    with pytest.raises(InvalidInput, match="headers of shape"):
        client.append_many(0, [b"", b""], headers=[1])
    with pytest.raises(InvalidInput, match="no partition -1"):
        client.read(-1, 0, 1)
    assert client.append(0, b"x" * 4_500).result(PATIENCE_S) == 0


def test_a_server_that_is_too_old(server: FakeServer, make_client: MakeClient) -> None:
    server.script.hello_versions = (0, 1, 2, 3, 4)
    client = make_client(config=ClientConfig(mount_timeout_ms=1000))  # enough to hear it on a loaded machine
    with pytest.raises(PartitionNotReady, match="speaks version 4 at most"):
        client.append(0, b"x").result(PATIENCE_S)


def test_futures_can_be_awaited(make_client: MakeClient) -> None:
    client = make_client()

    async def main() -> list[int]:
        futures: list[Future[int]] = [client.append(0, b"x") for _ in range(10)]
        return await asyncio.gather(*map(asyncio.wrap_future, futures))

    assert asyncio.run(main()) == list(range(10))


def test_flush(server: FakeServer, make_client: MakeClient) -> None:
    client = make_client()
    client.flush(0)
    server.script.hold_appends = True
    future = client.append(0, b"x")
    with pytest.raises(AppendTimeout, match="1 of 1 appends"):
        client.flush(0.02)
    server.script.hold_appends = False
    server.drop_connections()
    client.flush(PATIENCE_S)
    assert future.done()


def test_close_with_pending(server: FakeServer, directory: FakeDirectory, make_client: MakeClient) -> None:
    client = make_client(config=ClientConfig(outstanding_appends=1))
    server.script.hold_appends = True
    future = client.append(0, b"x")
    errors: list[BaseException] = []

    def blocked() -> None:
        try:
            client.append(0, b"y")
        except ClientClosed as error:
            errors.append(error)

    thread = threading.Thread(target=blocked)
    thread.start()
    client.close()
    thread.join(PATIENCE_S)
    with pytest.raises(ClientClosed, match=r"may or may not be in the log|was not sent"):  # as far as it came
        future.result(0)
    assert len(errors) == 1
    assert directory.closed
    with pytest.raises(ClientClosed):
        client.append(0, b"z")
    with pytest.raises(ClientClosed):
        client.server_high_water_mark(0)
    client.close()


def test_a_client_whose_close_is_interrupted_has_closed_its_directory(
    directory: FakeDirectory, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ZooKeeper session has the leases of cursors: it would live on with nobody to close it."""
    client = make_client()
    shut_down, main = client._engine.shut_down, threading.get_ident()

    async def interrupted() -> None:
        await shut_down()
        await asyncio.to_thread(signal.pthread_kill, main, signal.SIGINT)
        await asyncio.Event().wait()

    monkeypatch.setattr(client._engine, "shut_down", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.close()
    assert directory.closed


def test_a_client_whose_close_is_interrupted_has_told_who_waits(
    server: FakeServer, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its loop ends with it, if it is the last client: other threads waited for an append, or a feed, for ever."""
    client = make_client()
    server.script.hold_mounts = True
    append, feed, main = client.append(0, b"x"), client.feed(0, follow=True), threading.get_ident()

    async def interrupted(*_: object) -> None:
        await asyncio.to_thread(signal.pthread_kill, main, signal.SIGINT)
        await asyncio.Event().wait()

    monkeypatch.setattr(client._engine, "unsubscribe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.close()
    with pytest.raises(ClientClosed):
        append.result(PATIENCE_S)
    with pytest.raises(ClientClosed):
        feed.poll(PATIENCE_S)


def test_no_thread_is_left(server: FakeServer, directory: FakeDirectory) -> None:
    before = set(threading.enumerate())
    with WaltzClient(directory, TcpTransport(), Recorder()) as client:
        client.append(0, b"x").result(PATIENCE_S)
        assert len(set(threading.enumerate()) - before) >= 2
    assert set(threading.enumerate()) <= before


def test_close_in_a_callback_of_the_application(server: FakeServer, make_client: MakeClient) -> None:
    recorder = Recorder()
    client = make_client(recorder, partitions=[0])
    recorder.on_uncaught = lambda partition, transaction: client.close()
    recorder.fail_on = {0}
    client.append(0, b"x")
    recorder.wait_for(lambda: bool(recorder.uncaught))
    client.close()


def test_waiting_for_the_io_thread_on_the_io_thread_is_refused(make_client: MakeClient) -> None:
    client = make_client()
    errors: list[BaseException] = []
    told = threading.Event()

    def callback(future: Future[int]) -> None:
        for action in (client.close, client.flush, client.wait_ready, lambda: client.server_high_water_mark(0)):
            try:
                action()
            except InvalidInput as error:
                errors.append(error)
        told.set()

    client.append(0, b"x").add_done_callback(callback)
    assert told.wait(PATIENCE_S)
    assert len(errors) == 4


def test_a_callback_that_waits_for_another_future_is_refused(make_client: MakeClient) -> None:
    """It would hold up all clients of the process, for ever."""
    client = make_client()
    told: Future[list[BaseException | None]] = Future()

    def callback(future: Future[int]) -> None:
        other = client.append(0, b"y")
        found: list[BaseException | None] = []
        calls: list[Callable[[], object]] = [other.result, other.exception, lambda: other.result(0), future.result]
        for call in calls:
            try:
                call()
                found.append(None)
            except (InvalidInput, FuturesTimeout) as error:
                found.append(error)
        told.set_result(found)

    client.append(0, b"x").add_done_callback(callback)
    found = told.result(PATIENCE_S)
    assert [type(each) for each in found] == [InvalidInput, InvalidInput, FuturesTimeout, type(None)]
    client.flush(PATIENCE_S)


def test_a_callback_that_waits_for_a_feed_that_follows_is_refused(server: FakeServer, make_client: MakeClient) -> None:
    """It would hold up all clients of the process, for ever, as what it waits for comes over the same thread."""
    client = make_client()
    told: Future[list[object]] = Future()
    with client.feed(0, start="latest", follow=True) as follower:

        def callback() -> None:
            found: list[object] = []
            for call in (follower.poll, lambda: follower.poll(5.0), lambda: next(follower), lambda: follower.poll(0)):
                try:
                    found.append(call())
                except InvalidInput as error:
                    found.append(type(error))
            told.set_result(found)

        client._threads.post(callback)  # where those of futures are called
        *refused, at_once = told.result(PATIENCE_S)
        assert refused == 3 * [InvalidInput]
        assert not at_once
        client.append(0, b"x").result(PATIENCE_S)
        assert next(follower).data == b"x", "it goes on elsewhere"


def test_feed_that_follows(server: FakeServer, make_client: MakeClient) -> None:
    server.append_directly(0, [b"0", b"1", b"2"])
    client = make_client()
    feed = client.feed(0, start=1, follow=True)
    assert [next(feed).data for _ in range(2)] == [b"1", b"2"]
    server.append_directly(0, [b"3"])
    assert next(feed).transaction_id == 3
    server.drop_connections()
    server.append_directly(0, [b"4"])
    assert next(feed).transaction_id == 4
    client.close()
    with pytest.raises(ClientClosed):
        next(feed)


def test_a_time_limit_ends_with_the_append(make_client: MakeClient) -> None:
    """Its timer would keep the append's data for as long as the time-out is."""
    client = make_client()
    for timeout in (1000.0, 1001.0):
        client.append(0, b"x", timeout=timeout).result(PATIENCE_S)
        client.append(0, b"behind it").result(PATIENCE_S)
    client.append(0, b"and its timer's end").result(PATIENCE_S)
    gc.collect()
    assert [one for one in gc.get_objects() if isinstance(one, TimeLimit)] == []


def test_a_callback_appends_before_who_waits_for_room(server: FakeServer, make_client: MakeClient) -> None:
    """It must not wait, and is the cheapest way to keep a number of appends under way."""
    client = make_client(config=ClientConfig(outstanding_appends=1))
    client.wait_ready(PATIENCE_S)
    server.script.hold_appends = True
    chained: list[Future[int]] = []
    first = client.append(0, b"first")
    first.add_done_callback(lambda future: chained.append(client.append(0, b"chained")))
    thread = threading.Thread(target=client.append, args=(0, b"waits"))
    thread.start()
    while not client._engine.attachments[0].outbox.blocked:
        assert thread.is_alive()
    server.script.hold_appends = False
    server.drop_connections()
    thread.join(PATIENCE_S)
    client.flush(PATIENCE_S)
    assert [one.result(0) for one in chained] == [1]
    assert server.logs[0].data() == [b"first", b"chained", b"waits"]


@pytest.mark.parametrize("taken", [False, True])
def test_who_is_interrupted_while_he_waits_for_room_has_appended_nothing(
    taken: bool, server: FakeServer, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where room came in that very moment, as long as it has not been sent."""
    client = make_client(config=ClientConfig(outstanding_appends=2))
    server.script.hold_mounts = True
    first = client.append_many(0, [b"first", b"and second"])
    outbox = client._engine.attachments[0].outbox

    class Interrupted(Future[None]):
        def result(self, timeout: float | None = None) -> None:
            if taken:
                [append] = outbox.open_appends()
                asyncio.run_coroutine_threadsafe(_end(append), client._threads._io.loop).result(PATIENCE_S)
                assert super().result(PATIENCE_S) is None
            raise KeyboardInterrupt

    async def _end(append: AppendCall) -> None:
        assert outbox.withdraw(append)

    monkeypatch.setattr(threads, "Future", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.append(0, b"never")
    server.script.hold_mounts = False
    server.drop_connections()
    if not taken:
        assert first.result(PATIENCE_S).tolist() == [0, 1]
    client.append(0, b"after").result(PATIENCE_S)
    assert server.logs[0].data() == [*([] if taken else [b"first", b"and second"]), b"after"]


@pytest.mark.parametrize("many", [False, True])
def test_flush_after_an_append_that_was_interrupted_ends(
    many: bool, server: FakeServer, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C before the IO thread was told of it: flush waited for ever, and nothing that came later was sent."""
    client = make_client()
    client.append(0, b"first").result(PATIENCE_S)
    bell = client._engine.attachments[0].partition._bell
    post, interrupts = bell._post, iter([KeyboardInterrupt])

    def interrupted(*call: Any) -> None:
        for error in interrupts:
            raise error
        post(*call)

    monkeypatch.setattr(bell, "_post", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.append_many(0, [b"never", b"never"]) if many else client.append(0, b"never", timeout=PATIENCE_S)
    client.flush(PATIENCE_S)
    client.append(0, b"after").result(PATIENCE_S)
    assert server.logs[0].data() == [b"first", b"after"]


def test_an_append_takes_so_many_locks_at_the_most(make_client: MakeClient) -> None:
    """More are refused before anything is sent, as a server would."""
    client = make_client()
    locks = [("row", n) for n in range(MOST_LOCKS)]
    assert client.append(0, b"x", write_locks=locks[:1], read_locks=locks[1:], client_mark=-1).result(PATIENCE_S) == 0
    with pytest.raises(InvalidInput, match="takes 4096 locks at the most, not 4097"):
        client.append(0, b"x", write_locks=locks[:1], read_locks=locks, client_mark=-1)


@pytest.mark.parametrize("timeout", [np.float32(20), np.int64(20), Fraction(20), 10**400, math.inf])
def test_any_kind_of_number_is_a_time(timeout: float, server: FakeServer, make_client: MakeClient) -> None:
    client = make_client()
    assert client.append(0, b"x", timeout=timeout).result(PATIENCE_S) == 0
    client.wait_ready(timeout)
    client.flush(timeout)
    limited = checked_timeout(timeout)
    assert type(limited) is float
    assert limited in (20.0, threading.TIMEOUT_MAX)


def test_close_at_any_moment_of_the_first_mount(server: FakeServer, directory: FakeDirectory) -> None:
    before = set(threading.enumerate())
    for round_number in range(30):
        client = WaltzClient(directory, TcpTransport())
        future = client.append(0, b"x")
        while round_number % 3 == 2 and not server.mount_marks:
            continue
        if round_number % 3 == 1:
            future.result(PATIENCE_S)
        client.close()
        assert future.done()
        server.mount_marks.clear()
    assert set(threading.enumerate()) <= before


def test_an_error_that_is_told_again_and_again_does_not_grow(directory: FakeDirectory, make_any: MakeAnyClient) -> None:
    """Each telling added to the traceback of the one before, which has the locals of all."""
    client = make_any(partitions=[0])
    callback = directory._callback
    assert callback is not None
    callback(SpaceGone("the space was deleted"))  # type: ignore[arg-type]
    for call in (lambda: client.server_high_water_mark(0), lambda: client.wait_ready(PATIENCE_S)):
        lengths = [traceback_length(call) for _ in range(10)]
        assert lengths[-1] == lengths[1], lengths


def traceback_length(call: Callable[[], object]) -> int:
    with pytest.raises(WaltzError) as told:
        call()
    return len(told.traceback)
