"""Who tries again when: lines, workers, and that a lock all contexts want lets one after the other through."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.client.conftest import PATIENCE_S, MakeClient, Recorder
from tests.client.fake_server import FakeServer
from waltz_ray.client import SubmitResult, TransactionBuilder, TransactionContext
from waltz_ray.client.contexts import ContextRunner
from waltz_ray.client.futures import LightFuture
from waltz_ray.client.lock_lines import LockLines, Place
from waltz_ray.client.requests import AppendCall
from waltz_ray.client.threads import Threads
from waltz_ray.client.workers import WorkerPool
from waltz_ray.config import ClientConfig
from waltz_ray.errors import ClientClosed, InvalidInput


class Lines:
    """Places by name; ``trying`` stand first."""

    def __init__(self) -> None:
        self.lines = LockLines()
        self.places: dict[str, Place] = {}
        self.trying: list[str] = []

    def enter(self, name: str, *hashes: int) -> None:
        self.places[name] = Place(hashes, 0, lambda: self.trying.append(name))
        self.lines.enter(self.places[name])

    def leave(self, name: str, transaction_id: int = -1) -> None:
        if name in self.trying:
            self.trying.remove(name)
        self.lines.leave(self.places.pop(name), transaction_id)


def test_one_after_the_other() -> None:
    lines = Lines()
    for name in "abc":
        lines.enter(name, 7)
    assert lines.trying == ["a"]
    lines.leave("a", 12)
    assert lines.trying == ["b"]
    assert (lines.places["b"].after, lines.places["c"].after) == (12, 0)
    lines.leave("b")
    assert lines.trying == ["c"]
    lines.leave("c")
    assert lines.lines._lines == {}


def test_different_locks_and_no_locks_do_not_wait() -> None:
    lines = Lines()
    lines.enter("a", 1, 2)
    lines.enter("b", 3)
    lines.enter("reader")
    lines.enter("c", 3, 2)
    lines.enter("d", 3)
    assert lines.trying == ["a", "b", "reader"]
    lines.leave("b")
    assert lines.trying == ["a", "reader", "d"]  # "c" waits for lock 2, in the line of 3 it is not yet
    lines.leave("a", 5)
    assert lines.trying == ["reader", "d"]
    lines.leave("d", 4)
    assert lines.trying == ["reader", "c"]
    assert lines.places["c"].after == 5


def test_who_ends_while_it_waits_is_not_waited_for() -> None:
    lines = Lines()
    for name in "abc":
        lines.enter(name, 7, 8)
    lines.leave("b")
    assert lines.trying == ["a"]
    lines.leave("a")
    assert lines.trying == ["c"]
    lines.leave("c")
    ended = Place([7], 0, lambda: lines.trying.append("ended before it entered"))
    lines.lines.leave(ended, -1)
    lines.lines.enter(ended)
    assert lines.trying == []
    assert lines.lines._lines == {}


@given(st.lists(st.sets(st.integers(0, 4), max_size=4), max_size=12), st.randoms(use_true_random=False))
def test_everybody_gets_its_turn_and_nobody_shares_a_lock(wanted: list[set[int]], random: object) -> None:
    lines = Lines()
    left = [(str(i), hashes) for i, hashes in enumerate(wanted)]
    locks = dict(left)
    ended = 0
    while left or lines.trying:
        held = [lock for name in lines.trying for lock in locks[name]]
        assert len(held) == len(set(held))
        dice = random.random()  # type: ignore[attr-defined]
        if left and (not lines.trying or dice < 0.6):
            name, hashes = left.pop()
            lines.enter(name, *hashes)
        else:
            candidates = lines.trying if dice < 0.9 else [*lines.places]
            lines.leave(random.choice(candidates))  # type: ignore[attr-defined]
            ended += 1
    assert ended == len(wanted)
    assert lines.lines._lines == {}


class Counter(TransactionContext):
    """Reads what is applied, writes one more, under a lock that all want. Some give up, some raise."""

    def __init__(self, recorder: Recorder, number: int) -> None:
        self.recorder = recorder
        self.number = number
        self.executions = 0

    def partition_id(self, partitions: int) -> int:
        return 0

    def execute(self, builder: TransactionBuilder) -> bool:
        self.executions += 1
        if self.number % 10 == 3 and self.executions > 1:
            return False
        if self.number % 10 == 7 and self.executions > 1:
            raise ValueError("application")
        with self.recorder.changed:
            value = int(self.recorder.applied[-1][3]) if self.recorder.applied else 0
        builder.data = b"%d" % (value + 1)
        builder.write_lock("counter", 1)
        return True


def test_a_lock_that_all_want_costs_two_attempts_each(server: FakeServer, make_client: MakeClient) -> None:
    recorder = Recorder()
    client = make_client(recorder)
    client.wait_ready(PATIENCE_S)
    recorder.gate = threading.Event()
    first = Counter(recorder, 0)
    assert client.submit(first).result(PATIENCE_S).committed  # committed; the gate keeps it from being applied
    contexts = [Counter(recorder, number) for number in range(1, 200)]
    futures = [client.submit(context) for context in contexts]
    while client.statistics()["lock_conflicts"] < len(contexts):
        assert not any(future.done() for future in futures)
    recorder.gate.set()
    for future in futures:
        future.exception(PATIENCE_S)
    committed = [future for future in futures if future.exception() is None and future.result()]
    assert len(committed) == 199 - 40
    assert server.logs[0].data() == [b"%d" % (i + 1) for i in range(160)]
    assert {context.executions for context in contexts} == {2}
    assert client._engine.attachments[0].lines._lines == {}


class RefusingPort:
    """Every attempt is refused because of transaction 5, which is never applied."""

    applied_mark, refusals = 4, 0

    def __init__(self) -> None:
        self.lines = LockLines()
        self.threads = Threads(ClientConfig())
        self.runner = ContextRunner(1, ClientConfig(), lambda partition_id: self, self.threads)
        self.refused = threading.Semaphore(0)

    def put(self, append: AppendCall) -> None:
        self.runner.lock_failed(append, self, 5)
        self.refused.release()

    def when_applied(self, transaction_id: int, action: Callable[[], None]) -> None:
        assert transaction_id == 5


def test_close_ends_contexts_that_stand_in_line() -> None:
    port = RefusingPort()
    futures: list[LightFuture[SubmitResult]] = [LightFuture() for _ in range(20)]
    for number, future in enumerate(futures):
        port.runner.submit(Counter(Recorder(), number), future)
    for _ in futures:
        assert port.refused.acquire(timeout=PATIENCE_S)
    port.threads.stop(asyncio.sleep(0))
    port.runner.close()
    assert {type(future.exception(0)) for future in futures} == {ClientClosed}
    assert port.lines._lines == {}


def test_an_attempt_may_want_other_locks_in_another_partition(server: FakeServer, make_client: MakeClient) -> None:
    """Its old place is given up, so that whoever stands behind it goes on."""
    recorder = Recorder()
    client = make_client(recorder)
    client.wait_ready(PATIENCE_S)
    recorder.gate = threading.Event()
    for partition in (0, 1):
        client.append(partition, b"first", append_locks=[("row", 1)]).result(PATIENCE_S)

    class Wanders(TransactionContext):
        def __init__(self, partitions: list[int]) -> None:
            self.partitions = partitions
            self.executions = 0

        def partition_id(self, partitions: int) -> int:
            return self.partitions[min(self.executions, len(self.partitions) - 1)]

        def execute(self, builder: TransactionBuilder) -> bool:
            builder.data = b"x"
            builder.write_lock("row", 1)
            self.executions += 1
            return True

    contexts = [Wanders([0, 1]), Wanders([0]), Wanders([0, 1]), Wanders([1, 0])]
    futures = [client.submit(context) for context in contexts]
    while client.statistics()["lock_conflicts"] < len(contexts):
        assert not any(future.done() for future in futures)
    recorder.gate.set()
    assert all(future.result(PATIENCE_S) for future in futures)
    assert sum(len(server.logs[partition].data()) for partition in (0, 1)) == 2 + len(contexts)
    assert [client._engine.attachments[partition].lines._lines for partition in (0, 1)] == [{}, {}]


def test_workers_begin_in_order_and_never_more_than_allowed() -> None:
    pool = WorkerPool(3, "test-worker")
    began: list[int] = []
    names: set[str] = set()
    gate, all_there = threading.Event(), threading.Barrier(4)

    def work(number: int) -> None:
        began.append(number)
        names.add(threading.current_thread().name)
        if number < 3:
            all_there.wait(PATIENCE_S)
            assert gate.wait(PATIENCE_S)

    assert all(pool.put(work, number) for number in range(3))
    all_there.wait(PATIENCE_S)
    assert all(pool.put(work, number) for number in range(3, 20))
    assert sorted(began) == [0, 1, 2]
    gate.set()
    over = threading.Event()
    pool.put(over.set)
    assert over.wait(PATIENCE_S)
    pool.close(wait=True)
    assert sorted(began) == list(range(20))
    assert names <= {"test-worker-0", "test-worker-1", "test-worker-2"}
    assert not pool.put(work, 99)


def no_more_threads(monkeypatch: pytest.MonkeyPatch, than: int) -> None:
    """As where the process may have no further one (``ulimit -u``)."""
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if int(thread.name.rpartition("-")[2]) >= than:
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)


def test_where_no_further_thread_can_be_had_those_that_there_are_do_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who calls may be the thread of callbacks, which would have ended by it, without a word to anybody."""
    pool = WorkerPool(3, "test-worker")
    gate, over = threading.Event(), threading.Event()
    with monkeypatch.context() as patched:
        no_more_threads(patched, 1)
        assert pool.put(gate.wait, PATIENCE_S)
        assert pool.put(over.set)
    gate.set()
    assert over.wait(PATIENCE_S)
    pool.close(wait=True)


def test_a_thread_whose_start_was_interrupted_is_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while it begins: it took away another one's word to end, for which close waited for ever."""
    pool = WorkerPool(2, "test-worker")
    begin, interrupts, over = threading.Thread.start, iter([KeyboardInterrupt]), threading.Event()

    def start(thread: threading.Thread) -> None:
        begin(thread)
        for error in interrupts:
            raise error

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(KeyboardInterrupt):
            pool.put(print)
        assert pool.put(over.set)
    assert over.wait(PATIENCE_S)
    pool.close(wait=True)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("test-worker")]


def test_a_context_whose_submit_was_interrupted_is_not_waited_for(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C right after it was noted: flush waited for it for ever."""
    client = make_client()

    class Interrupted:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: object) -> None:
            monkeypatch.undo()
            raise KeyboardInterrupt

    monkeypatch.setattr(client._engine.runner, "_lock", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        client.submit(Counter(Recorder(), 0))
    client.flush(PATIENCE_S)


def test_close_ends_contexts_that_one_which_runs_waits_for(make_client: MakeClient) -> None:
    """It waited for the one that ran, which waited for another one that was never begun."""
    client = make_client(config=ClientConfig(context_threads=1))
    other = Counter(Recorder(), 0)
    ended: list[type] = []
    submitted: queue.SimpleQueue[Future[SubmitResult]] = queue.SimpleQueue()

    class Waits(Counter):
        def execute(self, builder: TransactionBuilder) -> bool:
            future = client.submit(other)
            submitted.put(future)
            ended.append(type(future.exception()))
            raise ValueError("application")

    future = client.submit(Waits(Recorder(), 0))
    inner = submitted.get(timeout=PATIENCE_S)
    late = threading.Timer(PATIENCE_S, inner.set_exception, [TimeoutError()])
    late.start()
    client.close()
    late.cancel()
    late.join()
    assert (ended, type(future.exception(0)), other.executions) == ([ClientClosed], ValueError, 0)


def test_a_context_that_flushes_is_refused(make_client: MakeClient) -> None:
    """It waited for its own end."""
    client = make_client()

    class Flushes(Counter):
        def execute(self, builder: TransactionBuilder) -> bool:
            client.flush(PATIENCE_S)
            return False

        def on_exception(self, error: BaseException) -> None:
            client.flush(PATIENCE_S)  # it has ended

    with pytest.raises(InvalidInput, match="in a context"):
        client.submit(Flushes(Recorder(), 0)).result(PATIENCE_S)
    client.flush(PATIENCE_S)


def test_what_a_call_raises_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    pool = WorkerPool(1, "test-worker")
    done = threading.Event()

    def fails() -> None:
        raise ValueError("of the application")

    pool.put(fails)
    pool.put(done.set)
    assert done.wait(PATIENCE_S)
    pool.close(wait=True)
    assert "of the application" in caplog.text


def test_closing_drops_what_has_not_begun_and_a_worker_may_close() -> None:
    pool = WorkerPool(1, "test-worker")
    began: list[str] = []
    gate, running, over = threading.Event(), threading.Event(), threading.Event()

    def closes() -> None:
        running.set()
        assert gate.wait(PATIENCE_S)
        pool.close(wait=True)
        over.set()

    pool.put(closes)
    assert running.wait(PATIENCE_S)
    pool.put(began.append, "never")
    gate.set()
    assert over.wait(PATIENCE_S)
    pool.close(wait=True)
    assert began == []
