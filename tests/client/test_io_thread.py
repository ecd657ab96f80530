"""One IO thread for all clients of a process: begun with the first, ended with the last, shared without harm."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.client.conftest import PATIENCE_S, MakeClient
from tests.client.fake_server import FakeDirectory, FakeServer
from waltz_ray.client import Location, WaltzClient, threads
from waltz_ray.client.io_thread import IoThread, _LoopThread, _Shared
from waltz_ray.client.shell import Turn
from waltz_ray.client.tcp import TcpTransport
from waltz_ray.client.workers import TurnThread
from waltz_ray.config import ClientConfig
from waltz_ray.errors import AppendFailed, AppendTimeout, ClientClosed, InvalidInput, ZooKeeperUnreachable


def io_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "waltz-io"]


def test_many_clients_share_one_thread(server: FakeServer, make_client: MakeClient) -> None:
    clients = [make_client() for _ in range(20)]
    assert sorted(client.append(0, b"x").result(PATIENCE_S) for client in clients) == list(range(20))
    assert len(io_threads()) == 1
    for client in clients[:-1]:
        client.close()
    assert len(io_threads()) == 1
    assert clients[-1].append(0, b"last").result(PATIENCE_S) == 20
    clients[-1].close()
    assert io_threads() == []
    assert make_client().append(0, b"again").result(PATIENCE_S) == 21


def test_a_client_whose_thread_cannot_be_started_leaves_none_behind(
    server: FakeServer, directory: FakeDirectory, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(turn: Turn, name: str) -> TurnThread:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threads, "TurnThread", start)
        with pytest.raises(RuntimeError, match="can't start"):
            WaltzClient(directory, TcpTransport())
    assert io_threads() == []
    assert make_client().append(0, b"x").result(PATIENCE_S) == 0


def test_a_client_whose_close_is_interrupted_while_zookeeper_is_asked_leaves_no_thread_behind(
    server: FakeServer,
) -> None:
    class Interrupted(FakeDirectory):
        def _cancel(self) -> None:
            raise KeyboardInterrupt

    directory = Interrupted({0: server})
    client = WaltzClient(directory, TcpTransport())
    client.append(0, b"x").result(PATIENCE_S)
    with pytest.raises(KeyboardInterrupt):
        client.close()
    assert directory.closed
    assert [thread for thread in threading.enumerate() if thread.name.startswith("waltz")] == []


def test_closing_one_waits_for_its_own_and_leaves_the_others_alone(server: FakeServer, make_client: MakeClient) -> None:
    staying, leaving = make_client(), make_client()
    staying.append(0, b"x").result(PATIENCE_S)
    leaving.append(0, b"y").result(PATIENCE_S)
    feed = staying.feed(0, follow=True)
    assert next(feed).transaction_id == 0
    server.script.hold_appends = True
    pending, lost = staying.append(0, b"pending"), leaving.append(0, b"lost")
    while sum(server.batch_sizes) < 4:  # else what is lost could arrive when appends are taken again
        assert not lost.done()
    leaving.close()
    with pytest.raises(ClientClosed):
        lost.result(0)
    assert not pending.done()
    server.script.hold_appends = False
    server.drop_connections()
    assert pending.result(PATIENCE_S) == 2
    assert [next(feed).data for _ in range(2)] == [b"y", b"pending"]


def test_nothing_of_a_closed_client_stays_on_the_loop(make_client: MakeClient) -> None:
    """Tasks, timers and connections: each would live as long as the process's other clients."""
    staying = make_client()
    staying.append(0, b"x").result(PATIENCE_S)
    leaving = make_client()
    leaving.append(0, b"x").result(PATIENCE_S)
    partition = leaving._engine.attachments[0].partition
    follower = leaving.feed(0, follow=True)
    next(follower)
    io = IoThread()

    async def tasks() -> set[str]:
        await asyncio.sleep(0)
        return {task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()}

    leaving.close()
    left = io.call(tasks())
    assert left == set()  # a partition that is mounted waits for nothing
    assert partition._timers == {}
    assert staying.append(0, b"y").result(PATIENCE_S) > 0
    io.stop(_nothing())


@pytest.mark.parametrize("error", [ValueError("application"), SystemExit(1)])
def test_a_callback_that_raises_hurts_nobody(
    make_client: MakeClient, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = make_client(), make_client()

    def callback(future: Future[int]) -> None:
        raise error

    future = one.append(0, b"x")
    future.add_done_callback(callback)
    future.result(PATIENCE_S)
    assert other.append(0, b"y").result(PATIENCE_S) == 1
    assert one.append(0, b"z").result(PATIENCE_S) == 2
    assert "exception calling callback" in caplog.text


def test_no_client_may_be_waited_for_on_the_thread_of_all(make_client: MakeClient) -> None:
    one, other = make_client(), make_client()
    errors: list[BaseException] = []
    told = threading.Event()

    def callback(future: Future[int]) -> None:
        for action in (other.close, other.flush, other.wait_ready, lambda: other.server_high_water_mark(0)):
            try:
                action()
            except InvalidInput as error:
                errors.append(error)
        told.set()

    one.append(0, b"x").add_done_callback(callback)
    assert told.wait(PATIENCE_S)
    assert len(errors) == 4


def test_appends_from_callbacks_go_on(server: FakeServer, make_client: MakeClient) -> None:
    """A chain across two clients: each append is made in the callback of the one before, on the IO thread."""
    clients = make_client(), make_client()
    over = threading.Event()
    ids: list[int] = []

    def done(future: Future[int]) -> None:
        ids.append(future.result())
        if len(ids) < 100:
            clients[len(ids) % 2].append(0, b"next").add_done_callback(done)
        else:
            over.set()

    clients[0].append(0, b"first").add_done_callback(done)
    assert over.wait(PATIENCE_S)
    assert ids == list(range(100))


def test_a_callback_finds_the_room_of_the_append_it_is_about(make_client: MakeClient) -> None:
    client = make_client(config=ClientConfig(outstanding_appends=1))
    over = threading.Event()
    ids: list[int] = []
    errors: list[BaseException] = []

    def done(future: Future[int]) -> None:
        ids.append(future.result())
        try:
            if len(ids) < 50:
                client.append(0, b"next").add_done_callback(done)
            else:
                over.set()
        except AppendFailed as error:
            errors.append(error)
            over.set()

    client.append(0, b"first").add_done_callback(done)
    assert over.wait(PATIENCE_S)
    assert (ids, errors) == (list(range(50)), [])


def test_flush_misses_no_future(server: FakeServer, make_client: MakeClient) -> None:
    """Two fates arrive together; while the first is being told, the second is still waited for."""
    client = make_client()
    began, gate = threading.Event(), threading.Event()

    def callback(future: Future[int]) -> None:
        began.set()
        assert gate.wait(PATIENCE_S)

    server.script.hold_mounts = True
    first, second = client.append(0, b"x"), client.append(0, b"y")
    first.add_done_callback(callback)
    server.script.hold_mounts = False
    server.drop_connections()
    assert began.wait(PATIENCE_S)
    assert (first.done(), second.done(), server.batch_sizes) == (True, False, [2])
    with pytest.raises(AppendTimeout, match="1 of 2 appends"):
        client.flush(0.02)
    gate.set()
    client.flush(PATIENCE_S)
    assert second.done()


def test_a_client_that_cannot_be_made_leaves_no_thread(server: FakeServer) -> None:
    class Away(FakeDirectory):
        def watch(self, callback: Callable[[Mapping[int, Location]], None]) -> Callable[[], None]:
            raise ZooKeeperUnreachable("away")

    before = set(threading.enumerate())
    with pytest.raises(ZooKeeperUnreachable):
        WaltzClient(Away({0: server}), TcpTransport())
    assert set(threading.enumerate()) <= before


def test_nobody_is_given_a_thread_that_has_died() -> None:
    """Nothing we know of ends it; then it should not be the end of the process's clients for ever."""
    broken = _LoopThread()
    broken.loop.call_soon_threadsafe(broken.loop.stop)
    broken.thread.join(PATIENCE_S)
    shared = _Shared()
    shared.running = broken
    taken = shared.take()
    assert taken is not broken
    assert taken.thread.is_alive()
    shared.give_back(taken)
    assert shared.running is None
    assert not taken.thread.is_alive()


def test_a_garbage_collection_may_post_at_any_time() -> None:
    """A follower that nobody holds any more does, and it begins at any allocation: also while this thread posts."""
    io, told = IoThread(), threading.Event()

    def collected() -> None:
        with io._lock:
            io.post(told.set)

    threading.Thread(target=collected, daemon=True).start()
    assert told.wait(PATIENCE_S)
    io.stop(_nothing())


def test_a_thread_of_the_application_may_get_the_number_of_the_one_that_has_ended() -> None:
    io = IoThread()
    io.stop(_nothing())
    number = io._running.thread.ident
    assert number is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading, "get_ident", lambda: number)
        assert not io.is_current
        io.post(pytest.fail, "it is closed")
        with pytest.raises(ClientClosed):
            io.call(_nothing())


def test_calls_when_stopped() -> None:
    io = IoThread()
    waiting = io.start(asyncio.sleep(3600))
    io.stop(_nothing())
    with pytest.raises(ClientClosed):
        io.result(waiting)
    with pytest.raises(ClientClosed):
        io.start(_nothing())
    io.post(lambda: pytest.fail("posted to a thread that has ended"))


async def _nothing() -> None:
    """Nothing."""


_LEAK = """
import sys
from waltz_ray.client import Location, WaltzClient, threads
from waltz_ray.client.tcp import TcpTransport
from waltz_ray.protocol.ids import Endpoint

class Directory:
    partitions, cluster_key = 1, ""
    def next_client_id(self): return 1
    def watch(self, callback):
        callback({0: Location(1, 1, Endpoint("127.0.0.1", int(sys.argv[1])))})
        return lambda: None
    def close(self): pass

client = WaltzClient(Directory(), TcpTransport())
print(client.append(0, b"x").result(20))
"""


def test_a_client_that_is_never_closed_does_not_keep_the_interpreter_alive(server: FakeServer) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _LEAK, str(server.endpoint.port)],
        cwd=Path(__file__).parents[2],
        timeout=60,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == "0\n"


def _append_in_child(port: int) -> None:
    """In a forked child: the parent's IO thread is not here."""
    exec(_LEAK.replace("sys.argv[1]", str(port)), {})


def test_a_forked_child_has_an_io_thread_of_its_own(server: FakeServer, make_client: MakeClient) -> None:
    client = make_client()
    client.append(0, b"parent").result(PATIENCE_S)
    child = multiprocessing.get_context("fork").Process(target=_append_in_child, args=(server.endpoint.port,))
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode == 0
    assert client.append(0, b"parent again").result(PATIENCE_S) == 2


_REFUSED = """
from waltz_ray.errors import ClientClosed

def refused(call):
    try:
        call()
    except ClientClosed:
        return
    raise AssertionError(call)
"""

_FORKED = """
import os, signal, sys
from waltz_ray.testing import InMemoryCluster

with InMemoryCluster(partitions=1) as cluster, cluster.connect() as client:
    client.append(0, b"a").result(20)
    cursor = client.cursor("audit")
    next(cursor)
    child = os.fork()
    if not child:
        signal.alarm(20)  # or it would wait for ever
        refused(lambda: client.append(0, b"b").result())
        refused(lambda: client.append_many(0, [b"b"]).result())
        refused(lambda: client.server_high_water_mark(0))
        refused(lambda: next(client.feed(None)))
        cursor.close()
        sys.exit()  # and out of both `with`
    assert os.waitpid(child, 0)[1] == 0
    assert client.append(0, b"c").result(20) == 1
    assert next(cursor).data == b"c"
    cursor.close()
"""


def test_a_client_of_the_parent_is_closed_in_a_forked_child_and_leaves_the_parents_alone() -> None:
    subprocess.run([sys.executable, "-c", _REFUSED + _FORKED], check=True, timeout=60)


_FORKED_AND_WAITS = """
import os, signal
from waltz_ray import TransactionContext
from waltz_ray.testing import InMemoryCluster

class Simple(TransactionContext):
    def partition_id(self, partitions): return 0
    def execute(self, builder): builder.data = b"a"; return True

with InMemoryCluster(partitions=1) as cluster, cluster.connect() as client:
    client.submit(Simple()).result(20)
    with client.feed(0, start="latest", follow=True) as follower:
        with cluster.suspended(0):
            client.append(0, b"b")
            child = os.fork()
            if not child:
                signal.alarm(20)  # or it would wait for ever
                refused(client.flush)
                refused(client.wait_ready)  # whose lock a thread may have that is not here
                refused(lambda: client.wait_applied(0, 0))
                refused(lambda: client.submit(Simple()).result())
                refused(lambda: client.submit(Simple(), timeout=20).result())
                refused(follower.poll)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        assert next(follower).data == b"b"
    client.flush(20)
    assert client.submit(Simple()).result(20)
"""


def test_nobody_waits_in_a_forked_child_for_what_its_parent_has_begun() -> None:
    subprocess.run([sys.executable, "-c", _REFUSED + _FORKED_AND_WAITS], check=True, timeout=60)


_CLOSED_AT_THE_END = """
import logging
from waltz_ray.errors import ClientClosed
from waltz_ray.testing import InMemoryCluster

class Owner:
    def __init__(self):
        self.cluster = InMemoryCluster(partitions=1)
        self.client = self.cluster.start().connect()
        self.client.append(0, b"a").result(20)

    def __del__(self):
        try:
            self.client.server_high_water_mark(0)
        except ClientClosed:
            self.client.close()
            print("closed")

logging.owner = Owner()  # it is there until modules go, when the threads have gone
"""


def test_who_closes_a_client_when_the_interpreter_ends_waits_for_no_thread() -> None:
    """Of those that are daemons none is left then: the process never ended."""
    ended = subprocess.run([sys.executable, "-c", _CLOSED_AT_THE_END], check=True, timeout=30, capture_output=True)
    assert (ended.stdout, ended.stderr) == (b"closed\n", b"")


def test_a_full_client_refuses_the_thread_that_brings_fates(make_client: MakeClient) -> None:
    """Otherwise one client's limit would stop all of them."""
    full = make_client(config=ClientConfig(outstanding_appends=1))
    other = make_client()
    errors: list[BaseException] = []
    told = threading.Event()

    def callback(future: Future[int]) -> None:
        try:
            for _ in range(3):
                full.append(0, b"x")
        except AppendFailed as error:
            errors.append(error)
        told.set()

    other.append(0, b"y").add_done_callback(callback)
    assert told.wait(PATIENCE_S)
    assert len(errors) == 1
    full.flush(PATIENCE_S)
