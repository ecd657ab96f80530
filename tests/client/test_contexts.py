"""Transaction contexts: executed until they commit or give up, with the mark read before the application's code."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.client.conftest import PATIENCE_S, MakeClient, Recorder
from tests.client.fake_server import FakeServer
from tests.client.test_lock_lines import no_more_threads
from waltz_ray.client import TransactionBuilder, TransactionContext
from waltz_ray.errors import ClientClosed, InvalidInput


class Context(TransactionContext):
    """Does what a function says; remembers what it was told."""

    def __init__(self, execute: Callable[[TransactionBuilder], bool], partition: int = 0) -> None:
        self.execute_function = execute
        self.partition = partition
        self.executions = 0
        self.completions: list[bool] = []
        self.errors: list[BaseException] = []
        self.lock_failures: list[int] = []

    def partition_id(self, partitions: int) -> int:
        return self.partition

    def execute(self, builder: TransactionBuilder) -> bool:
        self.executions += 1
        return self.execute_function(builder)

    def on_completion(self, committed: bool) -> None:
        self.completions.append(committed)

    def on_exception(self, error: BaseException) -> None:
        self.errors.append(error)

    def on_lock_failure(self, transaction_id: int) -> None:
        self.lock_failures.append(transaction_id)


def simple(builder: TransactionBuilder) -> bool:
    builder.data = b"x"
    return True


def test_the_next_attempt_waits_until_the_conflict_is_applied(server: FakeServer, make_client: MakeClient) -> None:
    recorder = Recorder()
    client = make_client(recorder)
    client.wait_ready(PATIENCE_S)
    recorder.gate = threading.Event()
    seen: list[list[int]] = []

    def execute(builder: TransactionBuilder) -> bool:
        seen.append(recorder.ids())
        builder.data = b"second"
        builder.write_lock("row", 7)
        return True

    client.append(0, b"first", append_locks=[("row", 7)]).result(PATIENCE_S)  # committed, not applied: gate is shut
    context = Context(execute)
    future = client.submit(context)
    while not client.statistics()["lock_conflicts"]:
        assert not future.done()
    assert seen == [[]]
    recorder.gate.set()
    assert future.result(PATIENCE_S).committed
    assert seen == [[], [0]]
    assert context.lock_failures == [0]


def test_the_mark_is_read_before_execute(server: FakeServer, make_client: MakeClient) -> None:
    """Something is applied while execute runs: the lock has to fail, since the code may not have seen it."""
    recorder = Recorder()
    client = make_client(recorder)
    client.wait_ready(PATIENCE_S)

    def execute(builder: TransactionBuilder) -> bool:
        if not recorder.applied:
            client.append(0, b"meanwhile", append_locks=[("row", 1)])
            recorder.wait_for(lambda: client.high_water_mark(0) == 0)
        builder.data = b"mine"
        builder.write_lock("row", 1)
        return True

    context = Context(execute)
    assert client.submit(context).result(PATIENCE_S).committed
    assert context.executions == 2
    assert context.lock_failures == [0]


def test_an_attempt_during_which_the_application_went_back_is_executed_again(
    server: FakeServer, make_client: MakeClient
) -> None:
    """Its mark is from before; what it has read may be from after, and know less."""
    recorder = Recorder()
    client = make_client(recorder, partitions=[0])
    server.append_directly(0, [b"0", b"1", b"2"])
    recorder.wait_for(lambda: recorder.ids() == [0, 1, 2])
    sent: list[int] = []

    def restore_backup(partition: int, transaction: int) -> None:
        recorder.marks[partition] = 0
        recorder.fail_on = set()

    def execute(builder: TransactionBuilder) -> bool:
        if not sent:
            recorder.on_uncaught, recorder.fail_on = restore_backup, {3}
            server.append_directly(0, [b"3"])
            recorder.wait_for(lambda: bool(recorder.uncaught))
        sent.append(recorder.marks[0])
        builder.data = b"mine"
        builder.write_lock("row", 1)
        return True

    context = Context(execute)
    assert client.submit(context).result(PATIENCE_S).committed
    assert context.executions >= 2, "its first attempt claimed to know transaction 2 and had read what knows 0"
    assert server.batch_sizes == [1], "and was never sent"


def test_a_dropped_attempt_is_executed_again(server: FakeServer, make_client: MakeClient) -> None:
    client = make_client(Recorder())
    client.wait_ready(PATIENCE_S)
    server.script.drop_before_admitting = 2
    context = Context(simple)
    assert client.submit(context).result(PATIENCE_S).committed
    assert context.executions == 3
    assert context.completions == [True]
    assert server.logs[0].data() == [b"x"]


def test_locks_need_a_mark(make_client: MakeClient) -> None:
    client = make_client()

    def locked(builder: TransactionBuilder) -> bool:
        builder.read_lock("row", 1)
        return simple(builder)

    with pytest.raises(InvalidInput, match="client_mark"):
        client.append(0, b"x", read_locks=[("row", 1)])
    with pytest.raises(InvalidInput, match="needs a client with callbacks"):
        client.submit(Context(locked)).result(PATIENCE_S)
    assert client.submit(Context(simple)).result(PATIENCE_S).committed


def test_a_context_without_data_or_partition(make_client: MakeClient) -> None:
    client = make_client()
    with pytest.raises(InvalidInput, match=r"set no builder\.data"):
        client.submit(Context(lambda builder: True)).result(PATIENCE_S)
    with pytest.raises(InvalidInput, match="no partition 9"):
        client.submit(Context(simple, partition=9)).result(PATIENCE_S)


def test_close_ends_contexts_that_wait(server: FakeServer, make_client: MakeClient) -> None:
    client = make_client(Recorder())
    client.wait_ready(PATIENCE_S)
    server.script.hold_appends = True
    context = Context(simple)
    future = client.submit(context)
    while not server.batch_sizes:
        assert not future.done()
    client.close()
    with pytest.raises(ClientClosed):
        future.result(0)
    assert [type(error) for error in context.errors] == [ClientClosed]
    with pytest.raises(ClientClosed):
        client.submit(Context(simple))


def test_a_context_for_which_there_is_no_thread_at_all_has_not_begun(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make_client()
    with monkeypatch.context() as patched:
        no_more_threads(patched, 0)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            client.submit(Context(simple))
    client.flush(PATIENCE_S)  # nothing is waited for
    client.close()
