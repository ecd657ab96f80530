"""What every client and every transport has to keep: the same tests with threads and on a loop, over TCP and actors."""

from __future__ import annotations

import asyncio
import itertools
import pickle
import threading
import zlib
from array import array
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from tests.client.conftest import PATIENCE_S, MakeAnyClient, Recorder
from tests.client.fake_server import FakeDirectory, FakeServer
from tests.cluster.harness import wait_until
from waltz_ray.client import SubmitResult, Transaction, TransactionBuilder, TransactionContext
from waltz_ray.client.keys import Lock
from waltz_ray.config import ClientConfig
from waltz_ray.errors import (
    AppendFailed,
    AppendTimeout,
    ClientAhead,
    ClientClosed,
    DataUnavailable,
    InvalidInput,
    InvariantBroken,
    LockConflict,
    NotApplied,
    OutboxFull,
    PartitionNotReady,
    PartlyAppended,
    Trimmed,
    WaltzError,
)
from waltz_ray.protocol.ids import LockId
from waltz_ray.protocol.messages.client import AppendedBatch, RejectionCode
from waltz_ray.protocol.mounting import _ANSWERS, Mounting
from waltz_ray.protocol.mounting_types import MountingState
from waltz_ray.runtime import driver

pytestmark = pytest.mark.parametrize("transport", ["tcp", "actor"], indirect=True)


class Context(TransactionContext):
    """Does what a function says; remembers what it was told."""

    def __init__(self, execute: Callable[[TransactionBuilder], bool]) -> None:
        self.execute_function = execute
        self.executions = 0
        self.told: list[object] = []

    def partition_id(self, partitions: int) -> int:
        return 0

    def execute(self, builder: TransactionBuilder) -> bool:
        self.executions += 1
        return self.execute_function(builder)

    def on_completion(self, committed: bool) -> None:
        self.told.append(committed)

    def on_exception(self, error: BaseException) -> None:
        self.told.append(type(error))


def simple(builder: TransactionBuilder) -> bool:
    builder.data = b"x"
    return True


# ---- appends


def test_append_gives_transaction_ids(server: FakeServer, make_any: MakeAnyClient) -> None:
    client = make_any()
    futures = [client.append(0, b"r%d" % i, header=i) for i in range(100)]
    assert [future.result(PATIENCE_S) for future in futures] == list(range(100))
    assert server.logs[0].data() == [b"r%d" % i for i in range(100)]
    fields = np.concatenate([batch.fields for batch in server.logs[0].batches])
    assert fields["header"].tolist() == list(range(100))
    assert set(fields["client_id"].tolist()) == {client.client_id}
    assert client.statistics()["committed"] == 100


NOT_BYTES: list[Any] = [5, True, "text", [1, 2], (1,), None, 1.5, {1: 2}, array("i", [1]), memoryview(b"abcd")[::2]]


@pytest.mark.parametrize("wrong", NOT_BYTES, ids=repr)
def test_data_that_is_not_bytes_is_refused_at_once(server: FakeServer, make_any: MakeAnyClient, wrong: Any) -> None:
    client = make_any()
    with pytest.raises(InvalidInput, match="data must be bytes, not"):
        client.append(0, wrong).result(PATIENCE_S)
    with pytest.raises(InvalidInput, match="data must be bytes, not"):
        client.append_many(0, [b"x", wrong]).result(PATIENCE_S)
    with pytest.raises(InvalidInput, match=r"takes a list with one|data must be bytes, not"):
        client.append_many(0, wrong).result(PATIENCE_S)

    def execute(builder: TransactionBuilder) -> bool:
        builder.data = wrong
        return True

    with pytest.raises(InvalidInput, match=r"data must be bytes, not|set no builder\.data"):
        client.submit(Context(execute)).result(PATIENCE_S)
    assert server.logs[0].data() == []


def test_all_that_is_bytes_is_taken_as_it_is_now(server: FakeServer, make_any: MakeAnyClient) -> None:
    client = make_any()
    mutable = bytearray(b"ab")
    futures: list[Future[Any]] = [client.append(0, mutable), client.append(0, memoryview(mutable)[1:])]  # type: ignore[arg-type]
    futures.append(client.append_many(0, [mutable, memoryview(b"c"), b"d"]))  # type: ignore[list-item]
    for future in futures:
        future.result(PATIENCE_S)
    mutable[:] = b"xx"
    assert server.logs[0].data() == [b"ab", b"b", b"ab", b"c", b"d"]
    with pytest.raises(InvalidInput, match="takes a list with one value for each transaction, not bytes"):
        client.append_many(0, b"abc").result(PATIENCE_S)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [True, 1.0, "1", None, b"1", [1]], ids=repr)
def test_numbers_that_are_none_are_refused_at_once(server: FakeServer, make_any: MakeAnyClient, wrong: Any) -> None:
    client = make_any()
    with pytest.raises(InvalidInput, match="a partition ID must be an integer, not"):
        client.append(wrong, b"x").result(PATIENCE_S)
    with pytest.raises(InvalidInput, match="a partition ID must be an integer, not"):
        client.append_many(wrong, [b"x"]).result(PATIENCE_S)
    with pytest.raises(InvalidInput, match="a partition ID must be an integer, not"):
        list(client.read(wrong, 0, 1))
    with pytest.raises(InvalidInput, match="a transaction header must be an integer, not"):
        client.append(0, b"x", header=wrong).result(PATIENCE_S)
    if wrong is not None:
        with pytest.raises(InvalidInput, match="a client high-water mark must be an integer, not"):
            client.append(0, b"x", write_locks=[("a", 1)], client_mark=wrong).result(PATIENCE_S)
    if wrong != [1]:
        with pytest.raises(InvalidInput, match="a transaction header must be an integer, not"):
            client.append_many(0, [b"x"], headers=wrong).result(PATIENCE_S)
    with pytest.raises(InvalidInput, match="a transaction header must be an integer, not"):
        client.append_many(0, [b"x"], headers=[wrong]).result(PATIENCE_S)
    with pytest.raises(InvalidInput, match="headers must be integers, not"):
        client.append_many(0, [b"x"], headers=np.array([1.5])).result(PATIENCE_S)

    def execute(builder: TransactionBuilder) -> bool:
        builder.data, builder.header = b"x", wrong
        return True

    with pytest.raises(InvalidInput, match="a transaction header must be an integer, not"):
        client.submit(Context(execute)).result(PATIENCE_S)
    context = Context(simple)
    context.partition_id = lambda partitions: wrong  # type: ignore[method-assign]
    with pytest.raises(InvalidInput, match="a partition ID must be an integer, not"):
        client.submit(context).result(PATIENCE_S)
    assert client.append(np.int64(0), b"x", header=np.int32(3)).result(PATIENCE_S) == 0  # type: ignore[arg-type,unused-ignore]
    assert client.append_many(0, [b"x"], headers=np.array([3])).result(PATIENCE_S).tolist() == [1]


@pytest.mark.parametrize("wrong", [3.7, 1e308, float("inf"), 1 << 63, 1 << 200, "1", None, True, object()], ids=repr)
def test_a_read_of_what_no_log_can_have_is_refused_at_once(make_any: MakeAnyClient, wrong: Any) -> None:
    client = make_any()
    with pytest.raises(InvalidInput, match="first_id must be an integer"):
        list(client.read(0, wrong, 5))
    with pytest.raises(InvalidInput, match="end_id must be an integer"):
        list(client.read(0, 0, wrong))
    with pytest.raises(InvalidInput, match=r"start must be|a feed needs"):
        next(client.feed(0, start=wrong, follow=True))
    with pytest.raises(InvalidInput, match="an integer"):
        client.supersede(wrong)


def test_a_read_may_end_anywhere(make_any: MakeAnyClient) -> None:
    client = make_any()
    client.append(0, b"x").result(PATIENCE_S)
    highest = (1 << 63) - 1
    assert [t.transaction_id for t in client.read(0, 0, highest)] == [0]
    assert [*client.read(0, 0, -5), *client.read(0, highest, highest)] == []


@pytest.mark.parametrize("wrong", ["1", b"", [], -1, float("nan"), True, object()], ids=repr)
def test_a_time_out_that_is_none_is_refused_at_once(server: FakeServer, make_any: MakeAnyClient, wrong: Any) -> None:
    client = make_any(Recorder({0: -1, 1: -1}))
    calls: list[Callable[[], object]] = [
        lambda: client.append(0, b"x", timeout=wrong).result(PATIENCE_S),
        lambda: client.append_many(0, [b"x"], timeout=wrong).result(PATIENCE_S),
        lambda: client.submit(Context(simple), timeout=wrong).result(PATIENCE_S),
        lambda: client.flush(wrong),
        lambda: client.wait_ready(wrong),
        lambda: client.wait_applied(0, 5, wrong),
        lambda: client.supersede(7, wrong),
    ]
    with client.feed(0, follow=True) as follower:
        calls.append(lambda: follower.poll(wrong))
        for call in calls:
            with pytest.raises(InvalidInput, match="timeout must be a number of seconds, at least 0, not"):
                call()
    assert server.logs[0].data() == []


@pytest.mark.parametrize("long", [1e308, float("inf"), 1 << 200], ids=repr)
def test_a_time_out_is_as_long_as_it_gets(server: FakeServer, make_any: MakeAnyClient, long: float) -> None:
    client = make_any(Recorder({0: -1, 1: -1}))
    assert client.append(0, b"x", timeout=long).result(PATIENCE_S) == 0
    assert client.submit(Context(simple), timeout=long).result(PATIENCE_S)
    client.flush(long)
    client.wait_ready(long)
    client.wait_applied(0, 1, long)
    with client.feed(0, follow=True) as follower:
        assert follower.poll(long)


def test_what_says_too_much_is_shortened(make_any: MakeAnyClient) -> None:
    client = make_any()
    long: Any = "x" * 100_000
    calls: list[Callable[[], object]] = [
        lambda: next(client.feed(0, start=long)),
        lambda: next(client.feed(0, last=long)),
        lambda: client.partition_for((long,)),  # type: ignore[arg-type]
        lambda: client.supersede(long),
        lambda: client.flush(long),
        lambda: client.append(0, b"x", write_locks=[(long,)], client_mark=-1).result(PATIENCE_S),  # type: ignore[list-item]
    ]
    for call in calls:
        with pytest.raises(InvalidInput) as caught:
            call()
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("wrong", [5, 1.5, object()], ids=["int", "float", "object"])
def test_locks_are_given_as_lists(make_any: MakeAnyClient, wrong: Any) -> None:
    client = make_any()
    with pytest.raises(InvalidInput, match="are given as a list of them"):
        client.append(0, b"x", write_locks=wrong, client_mark=-1).result(PATIENCE_S)


@pytest.mark.parametrize("wrong", [None, 5, lambda builder: True], ids=["None", "int", "function"])
def test_what_is_no_context_is_refused_at_once(make_any: MakeAnyClient, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="submit takes a TransactionContext, not"):
        make_any().submit(wrong).result(PATIENCE_S)


def test_a_client_does_not_supersede_itself(make_any: MakeAnyClient) -> None:
    client = make_any()
    with pytest.raises(InvalidInput, match="this client's own"):
        client.supersede(client.client_id)
    assert client.append(0, b"x").result(PATIENCE_S) == 0


@pytest.mark.parametrize("wrong", ["ab", ("a",), ("a", 1.5), ("a", True), (1, 1), 7, None], ids=repr)
def test_a_lock_that_is_none_is_refused_at_once(server: FakeServer, make_any: MakeAnyClient, wrong: Any) -> None:
    client = make_any()
    with pytest.raises(InvalidInput, match=r"a lock must be|a lock's name must be|a key must be"):
        client.append(0, b"x", append_locks=[wrong], client_mark=-1).result(PATIENCE_S)

    def execute(builder: TransactionBuilder) -> bool:
        builder.data = b"x"
        builder.append_lock(*wrong)
        return True

    if isinstance(wrong, tuple) and len(wrong) == 2:
        with pytest.raises(InvalidInput):
            client.submit(Context(execute)).result(PATIENCE_S)
    assert server.logs[0].data() == []


def test_a_lock_by_text_is_the_lock_of_its_crc(make_any: MakeAnyClient) -> None:
    client = make_any()
    client.append(0, b"x", append_locks=[("account", "bob")], client_mark=-1).result(PATIENCE_S)
    same_locks: list[Lock] = [("account", "bob"), ("account", b"bob"), LockId("account", zlib.crc32(b"bob"))]
    for same in same_locks:
        with pytest.raises(LockConflict):
            client.append(0, b"x", write_locks=[same], client_mark=-1).result(PATIENCE_S)
    assert client.append(0, b"x", write_locks=[("account", "ann")], client_mark=-1).result(PATIENCE_S) == 1


def test_of_many_some_may_be_in_the_log_though_others_were_refused(server: FakeServer, make_any: MakeAnyClient) -> None:
    client = make_any(config=ClientConfig(batch_records=3))
    server.script.reject_code = RejectionCode.BAD_CHECKSUM  # the first of two batches
    with pytest.raises(PartlyAppended, match="0 of 6 records are in the log, the others are not known to be") as caught:
        client.append_many(0, [b"%d" % i for i in range(6)]).result(PATIENCE_S)
    assert caught.value.transaction_ids == (-1,) * 6
    assert client.append(0, b"x").result(PATIENCE_S) == 3
    assert server.logs[0].data() == [b"3", b"4", b"5", b"x"]


def test_what_comes_after_close_was_not_sent(server: FakeServer, make_any: MakeAnyClient) -> None:
    client = make_any()
    client.append(0, b"x").result(PATIENCE_S)
    server.script.hold_appends = True
    sent = client.append(0, b"sent")
    client.close()
    with pytest.raises(ClientClosed, match="it may or may not be in the log"):
        sent.result(PATIENCE_S)
    for partition_id in (0, 1):
        with pytest.raises(ClientClosed, match="was not sent"):
            client.append(partition_id, b"y").result(PATIENCE_S)
        with pytest.raises(ClientClosed, match="was not sent"):
            client.append_many(partition_id, [b"y"]).result(PATIENCE_S)
    with pytest.raises(ClientClosed, match="was not sent"):
        client.submit(Context(simple)).result(PATIENCE_S)


def test_what_waited_to_be_sent_at_close_was_not_sent(server: FakeServer, make_any: MakeAnyClient) -> None:
    client = make_any()
    server.script.hold_mounts = True
    waits = client.append(0, b"x")
    client.close()
    with pytest.raises(ClientClosed, match="was not sent"):
        waits.result(PATIENCE_S)


def test_nothing_more_comes_of_a_client_that_is_superseded(server: FakeServer, make_any: MakeAnyClient) -> None:
    dead, heir = make_any(), make_any()
    assert dead.append(0, b"x").result(PATIENCE_S) == 0
    assert heir.supersede(dead.client_id, PATIENCE_S) == [0, -1]
    assert dead.append(0, b"y").result(PATIENCE_S) == 1
    assert dead.statistics()["reconnects"] == 1, "what it sent over the connection that it had was refused"
    server.script.hold_mounts = True
    with pytest.raises(PartitionNotReady):
        heir.supersede(dead.client_id, 0.05)


def test_partition_of_a_key(make_any: MakeAnyClient) -> None:
    client = make_any()
    assert [client.partition_for(key) for key in ("123456789", b"123456789", 123456789)] == [0xCBF43926 % 2] * 3
    assert client.partition_for("bob") == zlib.crc32(b"bob") % 2


def test_append_many_is_packed_and_ordered(server: FakeServer, make_any: MakeAnyClient) -> None:
    client = make_any(config=ClientConfig(batch_records=7))
    ids = client.append_many(1, [b"x" * i for i in range(20)], headers=np.arange(20, dtype=np.int32)).result(PATIENCE_S)
    assert ids.dtype == np.int64
    assert ids.tolist() == list(range(20))
    assert server.batch_sizes == [7, 7, 6]
    assert server.logs[1].data() == [b"x" * i for i in range(20)]
    assert client.append_many(1, []).result(PATIENCE_S).tolist() == []


def test_large_records(make_any: MakeAnyClient, server: FakeServer) -> None:
    client = make_any()
    datas = [bytes([i]) * 700_000 for i in range(6)]
    futures = [client.append(0, data) for data in datas]
    assert sorted(future.result(PATIENCE_S) for future in futures) == list(range(6))
    assert server.logs[0].data() == datas
    assert [one.data for one in client.read(0, 0, 6)] == datas


def test_what_no_frame_or_partition_can_take_is_refused(make_any: MakeAnyClient) -> None:
    client = make_any(config=ClientConfig(max_frame_bytes=10_000), partitions=[0])
    with pytest.raises(InvalidInput, match="there is no partition 7; this space has 2: 0 to 1"):
        client.append(7, b"x").result(PATIENCE_S)
    with pytest.raises(InvalidInput, match="partition 1 is not one of this client's"):
        client.append(1, b"x").result(PATIENCE_S)
    with pytest.raises(InvalidInput, match="is longer than a log takes"):
        client.append(0, b"x" * 5_000).result(PATIENCE_S)
    with pytest.raises(InvalidInput, match="signed 32-bit"):
        client.append(0, b"x", header=1 << 31).result(PATIENCE_S)
    with pytest.raises(InvalidInput, match="headers of shape"):
        client.append_many(0, [b"", b""], headers=[1]).result(PATIENCE_S)
    with pytest.raises(InvalidInput, match="no partition -1"):
        list(client.read(-1, 0, 1))
    with pytest.raises(InvalidInput, match="high-water mark must be"):
        make_any(Recorder({0: -5}))
    assert client.append(0, b"x" * 4_500).result(PATIENCE_S) == 0


@pytest.mark.parametrize("drops", ["drop_after_admitting", "drop_before_admitting"])
def test_connection_loss_neither_loses_nor_doubles(server: FakeServer, make_any: MakeAnyClient, drops: str) -> None:
    client = make_any()
    client.append(0, b"first").result(PATIENCE_S)
    setattr(server.script, drops, 2)
    futures = [client.append(0, b"%d" % i) for i in range(10)]
    ids = [future.result(PATIENCE_S) for future in futures]
    log = server.logs[0].data()
    assert len(log) == 11
    assert [log[i] for i in ids] == [b"%d" % i for i in range(10)]
    assert client.statistics()["reconnects"] >= 1


def test_an_own_record_fails_older_ones(server: FakeServer, make_any: MakeAnyClient) -> None:
    client = make_any()
    client.append(0, b"0").result(PATIENCE_S)
    server.script.lose_first = 3
    ids = client.append_many(0, [b"a", b"b", b"c", b"d", b"e"]).result(PATIENCE_S).tolist()
    assert ids == [3, 4, 5, 1, 2]  # "d" and "e" were in the log first; the others were sent again
    assert server.logs[0].data() == [b"0", b"d", b"e", b"a", b"b", b"c"]
    assert client.statistics()["retries"] == 1


def test_without_retry_a_refusal_is_told(server: FakeServer, make_any: MakeAnyClient) -> None:
    client = make_any()
    client.append(0, b"0").result(PATIENCE_S)
    server.script.queue_full = 1
    with pytest.raises(AppendFailed, match="QUEUE_FULL"):
        client.append(0, b"1", retry=False).result(PATIENCE_S)
    server.script.drop_before_admitting = 1
    with pytest.raises(AppendFailed, match="not in the log"):
        client.append(0, b"2", retry=False).result(PATIENCE_S)
    assert server.logs[0].data() == [b"0"]


@pytest.mark.parametrize(
    ("code", "kind"), [(RejectionCode.BAD_CHECKSUM, AppendFailed), (RejectionCode.TOO_LARGE, InvalidInput)]
)
def test_what_cannot_succeed_is_not_sent_again(
    server: FakeServer, make_any: MakeAnyClient, code: RejectionCode, kind: type[WaltzError]
) -> None:
    client = make_any()
    client.append(0, b"0").result(PATIENCE_S)
    server.script.reject_code = code
    with pytest.raises(kind, match=code.name):
        client.append(0, b"1").result(PATIENCE_S)
    assert client.append(0, b"2").result(PATIENCE_S) == 1


def test_many_under_a_lock_follow_each_other_and_nobody_else(server: FakeServer, make_any: MakeAnyClient) -> None:
    client, other, lock = make_any(), make_any(), ("row", 1)
    assert client.append_many(0, [b"0", b"1"], write_lock=lock, client_mark=-1).result(PATIENCE_S).tolist() == [0, 1]
    with pytest.raises(LockConflict) as caught:
        other.append_many(0, [b"0"], write_lock=lock, client_mark=-1).result(PATIENCE_S)
    assert caught.value.transaction_id == 1
    with pytest.raises(PartlyAppended, match="a lock is newer than the client's mark"):
        other.append_many(0, [b"1", b"2", b"3"], write_lock=lock, client_mark=0).result(PATIENCE_S)
    assert client.append_many(0, [b"4"], write_lock=lock, client_mark=3).result(PATIENCE_S).tolist() == [4]
    assert server.logs[0].data() == [b"0", b"1", b"2", b"3", b"4"]
    other.append(0, b"5").result(PATIENCE_S)  # under no lock at all: what follows it does not follow 4 directly
    with pytest.raises(PartlyAppended, match="a lock is newer than the client's mark"):
        client.append_many(0, [b"6", b"refused"], write_lock=lock, client_mark=4).result(PATIENCE_S)
    client.flush(PATIENCE_S)
    assert server.logs[0].data()[5:] == [b"5", b"6"]
    with pytest.raises(InvalidInput, match="client_mark"):
        client.append_many(0, [b"x"], write_lock=lock).result(PATIENCE_S)


def test_queue_full_is_sent_again(server: FakeServer, make_any: MakeAnyClient) -> None:
    client = make_any()
    client.append(0, b"0").result(PATIENCE_S)
    server.script.queue_full = 3
    assert client.append(0, b"1").result(PATIENCE_S) == 1
    assert server.batch_sizes == [1, 1, 1, 1, 1]
    assert client.statistics()["reconnects"] == 0


def test_lock_conflicts(server: FakeServer, make_any: MakeAnyClient) -> None:
    client = make_any(Recorder())
    assert client.append(0, b"a", write_locks=[("row", 1)]).result(PATIENCE_S) == 0
    with pytest.raises(LockConflict) as caught:
        client.append(0, b"b", write_locks=[("row", 1)], client_mark=-1).result(PATIENCE_S)
    assert (caught.value.partition_id, caught.value.transaction_id) == (0, 0)
    assert client.append(0, b"c", write_locks=[("row", 1)], client_mark=0).result(PATIENCE_S) == 1
    with pytest.raises(LockConflict):
        client.append(0, b"d", read_locks=[("row", 1)], client_mark=0).result(PATIENCE_S)
    assert client.append(0, b"e", append_locks=[("row", 1)], client_mark=-1).result(PATIENCE_S) == 2
    with pytest.raises(InvalidInput, match="client_mark"):
        make_any().append(0, b"x", read_locks=[("row", 1)]).result(PATIENCE_S)


# ---- time-outs


def settled(fate: Any) -> Any:
    """The result of the future of either client's ``AppendTimeout``."""
    if isinstance(fate, Future):
        return fate.result(PATIENCE_S)

    async def wait() -> Any:
        return await asyncio.wait_for(fate, PATIENCE_S)

    return asyncio.run_coroutine_threadsafe(wait(), fate.get_loop()).result()


@pytest.mark.parametrize("arrives", [True, False])
def test_a_time_out_says_unknown_and_carries_the_fate(
    server: FakeServer, make_any: MakeAnyClient, arrives: bool
) -> None:
    client = make_any(Recorder())
    client.append(0, b"first").result(PATIENCE_S)
    server.script.hold_feeds = arrives
    server.script.hold_appends = not arrives
    one, many = client.append(0, b"one", timeout=0.05), client.append_many(0, [b"2", b"3"], timeout=0.05)
    context = client.submit(Context(simple), timeout=0.05)
    fates = []
    for future in (one, many, context):
        with pytest.raises(AppendTimeout, match=r"no fate after 0\.05 s: .* unknown until the feed says") as caught:
            future.result(PATIENCE_S)
        assert not caught.value.retriable
        fates.append(caught.value.fate)
    with pytest.raises(AppendTimeout, match="3 of 3 appends"):
        client.flush(0.01)  # they are open
    if arrives:
        wait_until(lambda: len(server.logs[0].data()) == 5, "they are in the log", PATIENCE_S)
    server.script.hold_feeds = server.script.hold_appends = False
    server.drop_connections()  # the next mount tells what is in the log
    if arrives:
        assert settled(fates[0]) == server.logs[0].data().index(b"one")
        assert [server.logs[0].data()[i] for i in settled(fates[1])] == [b"2", b"3"]
        assert settled(fates[2]).transaction_id == server.logs[0].data().index(b"x")
    else:
        for fate in fates:  # nothing is sent again after its time
            with pytest.raises(AppendFailed):
                settled(fate)
    client.flush(PATIENCE_S)
    assert len(server.logs[0].data()) == (5 if arrives else 1)


def test_a_time_out_of_what_was_not_sent_is_known(server: FakeServer, make_any: MakeAnyClient) -> None:
    server.script.hold_mounts = True
    client = make_any(config=ClientConfig(outstanding_appends=2))
    with pytest.raises(AppendFailed, match=r"not sent within 0\.02 s and is not in the log"):
        client.append(0, b"never", timeout=0.02).result(PATIENCE_S)
    waits = client.append_many(0, [b"a", b"b"])
    with pytest.raises(OutboxFull, match=r"2 appends \(2 bytes\) .* no room came within 0\.02 s; this one was not"):
        client.append(0, b"never", timeout=0.02).result(PATIENCE_S)
    with pytest.raises(InvalidInput, match="timeout must be a number of seconds"):
        client.append(0, b"never", timeout=-1).result(PATIENCE_S)
    server.script.hold_mounts = False
    server.drop_connections()
    assert waits.result(PATIENCE_S).tolist() == [0, 1]
    assert client.append(0, b"c", timeout=PATIENCE_S).result(PATIENCE_S) == 2
    assert server.logs[0].data() == [b"a", b"b", b"c"]


def test_try_append_never_waits_for_room(server: FakeServer, make_any: MakeAnyClient) -> None:
    client = make_any(config=ClientConfig(outstanding_appends=1))
    assert client.try_append(0, b"a", header=5).result(PATIENCE_S) == 0
    server.script.hold_appends = True
    waits = client.append(0, b"b")
    while client.statistics()["appends"] < 2:
        assert not waits.done()
    with pytest.raises(OutboxFull, match="1 appends") as caught:
        client.try_append(0, b"c").result(PATIENCE_S)
    assert caught.value.retriable
    server.script.hold_appends = False
    server.drop_connections()
    assert waits.result(PATIENCE_S) == 1
    assert client.try_append(0, b"d", append_locks=[("row", 1)], client_mark=1).result(PATIENCE_S) == 2
    assert server.logs[0].data() == [b"a", b"b", b"d"]


# ---- mounts


def test_mount_refused_then_accepted(server: FakeServer, make_any: MakeAnyClient) -> None:
    server.script.not_ready_mounts = 2
    client = make_any()
    assert client.append(0, b"x").result(PATIENCE_S) == 0
    assert client.statistics()["reconnects"] == 2


def test_partition_that_never_becomes_ready(server: FakeServer, make_any: MakeAnyClient) -> None:
    server.script.hold_mounts = True
    client = make_any(config=ClientConfig(mount_timeout_ms=50))
    with pytest.raises(PartitionNotReady, match="partition 0 was not ready within 50 ms"):
        client.append(0, b"x").result(PATIENCE_S)
    with pytest.raises(PartitionNotReady):
        client.wait_ready(0.05)


def test_own_mode_resumes_below_what_is_pending(server: FakeServer, make_any: MakeAnyClient) -> None:
    client = make_any()
    client.append(0, b"mine").result(PATIENCE_S)
    server.append_directly(0, [b"other"] * 3)
    server.script.drop_after_admitting = 1
    assert client.append(0, b"mine again").result(PATIENCE_S) == 4
    assert server.mount_marks[0] == -2
    assert 0 <= server.mount_marks[1] < 4


def test_a_client_ahead_of_the_log_is_an_error_for_a_person(server: FakeServer, make_any: MakeAnyClient) -> None:
    recorder = Recorder({0: 17})
    server.append_directly(0, [b"only one"])
    client = make_any(recorder, partitions=[0])
    with pytest.raises(ClientAhead, match="high-water mark is 17, the log ends at 0"):
        client.wait_ready(PATIENCE_S)
    with pytest.raises(ClientAhead):
        client.append(0, b"x").result(PATIENCE_S)
    recorder.wait_for(lambda: bool(recorder.uncaught))
    assert isinstance(recorder.uncaught[0][2], ClientAhead)
    assert recorder.uncaught[0][:2] == (0, 17)
    assert recorder.applied == []


def test_what_became_of_an_append_may_have_been_trimmed_away(server: FakeServer, make_any: MakeAnyClient) -> None:
    client = make_any()
    client.append(0, b"known").result(PATIENCE_S)
    server.script.drop_after_admitting, server.script.trim_mark = 1, 2
    with pytest.raises(Trimmed, match=r"transaction 1 was trimmed away.*may or may not be in the log"):
        client.append(0, b"in the log, and nobody can tell").result(PATIENCE_S)
    assert client.append(0, b"it goes on").result(PATIENCE_S) == 2
    assert server.mount_marks == [-2, 0, -2]


# ---- a bug of ours


def goes_where_no_line_leads(machine: Mounting[Any], message: Any, frame_bytes: int) -> Any:
    return machine._enter(MountingState.GIVEN_UP)


def breaks_an_invariant(machine: Mounting[Any], message: Any, frame_bytes: int) -> Any:
    machine._held_bytes = -1
    return ()


@pytest.mark.parametrize(
    ("bug", "why"),
    [
        (goes_where_no_line_leads, "READY is never followed by GIVEN_UP"),
        (breaks_an_invariant, "-1 bytes of the feed are held"),
    ],
)
def test_a_partition_whose_machine_has_failed_is_given_up_and_says_so(
    server: FakeServer,
    make_any: MakeAnyClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    bug: Any,
    why: str,
) -> None:
    client = make_any()
    client.wait_ready(PATIENCE_S)
    client.append(0, b"before").result(PATIENCE_S)
    with monkeypatch.context() as patch:
        patch.setitem(_ANSWERS, AppendedBatch, bug)
        with pytest.raises(InvariantBroken, match=r"partition 0 of client .*may or may not be in the log"):
            client.append(0, b"during").result(PATIENCE_S)
    told = next(record for record in caplog.records if record.name == driver.__name__)
    assert why in str(told.exc_info)
    assert told.getMessage().splitlines()[-1] in ("Received(...)", "    SendAppends(...)")
    with pytest.raises(InvariantBroken):
        client.append(0, b"after").result(PATIENCE_S)
    with pytest.raises(InvariantBroken):
        client.wait_ready(PATIENCE_S)
    assert client.append(1, b"of another partition").result(PATIENCE_S) == 0


# ---- limits


@pytest.mark.parametrize("limits", [ClientConfig(outstanding_appends=5), ClientConfig(outstanding_bytes=500)])
def test_append_waits_at_the_limit(server: FakeServer, make_any: MakeAnyClient, limits: ClientConfig) -> None:
    client = make_any(config=limits)
    client.append(0, b"").result(PATIENCE_S)
    server.script.hold_appends = True
    futures = [client.append(0, b"x" * 100) for _ in range(5)]
    while sum(server.batch_sizes) < 6:
        assert not any(future.done() for future in futures)
    ids: list[int] = []
    thread = threading.Thread(target=lambda: ids.append(client.append(0, b"x" * 100).result(PATIENCE_S)))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    assert client.statistics()["appends"] == 6  # the seventh is not taken yet
    server.script.hold_appends = False
    server.drop_connections()  # what was held was never admitted: sent again
    thread.join(PATIENCE_S)
    assert sorted([future.result(PATIENCE_S) for future in futures] + ids) == [1, 2, 3, 4, 5, 6]


def test_the_limit_gives_up_when_nothing_moves(server: FakeServer, make_any: MakeAnyClient) -> None:
    client = make_any(config=ClientConfig(outstanding_appends=1, mount_timeout_ms=50))
    client.wait_ready(PATIENCE_S)
    server.script.hold_appends = True
    first = client.append(0, b"x")
    while not server.batch_sizes:
        assert not first.done()
    with pytest.raises(PartitionNotReady, match=r"1 appends .* none got one within 50 ms"):
        client.append(0, b"y").result(PATIENCE_S)


def test_flush(server: FakeServer, make_any: MakeAnyClient) -> None:
    client = make_any()
    client.flush(0)
    server.script.hold_appends = True
    future = client.append(0, b"x")
    while not server.batch_sizes:
        assert not future.done()
    with pytest.raises(AppendTimeout, match="1 of 1 appends"):
        client.flush(0.02)
    server.script.hold_appends = False
    server.drop_connections()
    client.flush(PATIENCE_S)
    assert future.result(PATIENCE_S) == 0


def test_the_feed_gets_no_more_than_its_credit(server: FakeServer, make_any: MakeAnyClient) -> None:
    for i in range(200):
        server.append_directly(0, [b"%1000d" % i])
    client = make_any(config=ClientConfig(feed_credit_bytes=10_000))
    feed = client.feed(0, follow=True)
    assert next(feed).transaction_id == 0

    def sent() -> int:
        return max((mount.sent + 1 for mount in server.mounts.values() if mount.credit <= 0), default=0)

    while not (frames := server.do(sent)):
        continue
    assert 1000 * frames <= 2 * (10_000 + 1100)  # the limit and one frame of overdraft; once given back, perhaps
    assert [next(feed).transaction_id for _ in range(199)] == list(range(1, 200))


# ---- callbacks


def test_the_feed_reaches_the_callbacks_in_order(server: FakeServer, make_any: MakeAnyClient) -> None:
    server.append_directly(0, [b"old%d" % i for i in range(5)], header=9)
    recorder = Recorder()
    client = make_any(recorder)
    client.wait_ready(PATIENCE_S)
    assert client.append(0, b"new", header=4).result(PATIENCE_S) == 5
    recorder.wait_for(lambda: len(recorder.applied) == 6)
    assert recorder.applied == [(0, i, 9, b"old%d" % i) for i in range(5)] + [(0, 5, 4, b"new")]
    assert client.high_water_mark(0) == 5 or recorder.ids()[-1] == 5
    assert client.server_high_water_mark(0) == 5


class Headers(Recorder):
    """Keeps the transactions, and reads no data."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Transaction] = []

    def apply_transaction(self, transaction: Transaction) -> None:
        with self.changed:
            self.marks[transaction.partition_id] = transaction.transaction_id
            self.kept.append(transaction)
            self.changed.notify_all()


def test_headers_reach_the_callbacks_in_order(server: FakeServer, make_any: MakeAnyClient) -> None:
    server.append_directly(0, [b"old%d" % i for i in range(5)], header=9)
    recorder = Headers()
    client = make_any(recorder, feed="headers")
    client.wait_ready(PATIENCE_S)
    assert client.append(0, b"new", header=4).result(PATIENCE_S) == 5
    recorder.wait_for(lambda: len(recorder.kept) == 6)
    assert [(one.transaction_id, one.header) for one in recorder.kept] == [(i, 9) for i in range(5)] + [(5, 4)]
    assert [client.fetch(one) for one in recorder.kept] == [b"old%d" % i for i in range(5)] + [b"new"]
    assert [one.data for one in recorder.kept[4:]] == [b"old4", b"new"]  # and stays
    with pytest.raises(InvalidInput, match="feed must be 'records' or 'headers', not 'tails'"):
        make_any(feed="tails")  # type: ignore[arg-type]


def test_reconnect_goes_on_after_the_last_transaction(server: FakeServer, make_any: MakeAnyClient) -> None:
    recorder = Recorder({0: 2})
    server.append_directly(0, [b"%d" % i for i in range(5)])
    make_any(recorder, partitions=[0])
    recorder.wait_for(lambda: recorder.ids() == [3, 4])
    server.drop_connections()
    server.append_directly(0, [b"5", b"6"])
    recorder.wait_for(lambda: len(recorder.ids()) >= 4)
    assert recorder.ids() == [3, 4, 5, 6]
    assert server.mount_marks == [2, 4]


def test_an_exception_makes_the_transaction_come_again(server: FakeServer, make_any: MakeAnyClient) -> None:
    recorder = Recorder()
    recorder.fail_on = {2, 4}
    server.append_directly(0, [b"%d" % i for i in range(6)])
    client = make_any(recorder, partitions=[0])
    recorder.wait_for(lambda: recorder.ids()[-1:] == [5])
    assert recorder.ids() == [0, 1, 2, 3, 4, 5]
    assert [(p, t, str(e)) for p, t, e in recorder.uncaught] == [(0, 2, "cannot apply 2"), (0, 4, "cannot apply 4")]
    assert client.append(0, b"more").result(PATIENCE_S) == 6
    recorder.wait_for(lambda: recorder.ids()[-1:] == [6])
    assert client.statistics()["reconnects"] == 0  # what was refused was kept, not fetched again


def test_an_application_that_went_back_is_fed_again(server: FakeServer, make_any: MakeAnyClient) -> None:
    recorder = Recorder()
    server.append_directly(0, [b"%d" % i for i in range(4)])
    client = make_any(recorder, partitions=[0])
    recorder.wait_for(lambda: recorder.ids() == [0, 1, 2, 3])
    recorder.fail_on = {4}

    def restore_backup(partition: int, transaction: int) -> None:
        recorder.marks[partition] = 0

    recorder.on_uncaught = restore_backup
    server.append_directly(0, [b"4"])
    recorder.wait_for(lambda: recorder.ids()[-1:] == [4])
    assert recorder.ids() == [0, 1, 2, 3, 1, 2, 3, 4]
    assert client.append(0, b"5").result(PATIENCE_S) == 5
    recorder.wait_for(lambda: recorder.ids()[-1:] == [5])


def test_ready_is_applied_up_to_the_mark(server: FakeServer, make_any: MakeAnyClient) -> None:
    server.append_directly(0, [b"%d" % i for i in range(50)])
    recorder = Recorder()
    make_any(recorder).wait_ready(PATIENCE_S)
    assert recorder.ids() == list(range(50))


def test_why_it_is_not_ready_is_said(server: FakeServer, make_any: MakeAnyClient) -> None:
    server.append_directly(0, [b"%d" % i for i in range(5)])
    recorder = Refuses()
    client = make_any(recorder, partitions=[0])
    with pytest.raises(
        NotApplied, match=r"applied up to 2, not up to 4, .*: applying .* ValueError\('not 3'\)"
    ) as caught:
        client.wait_ready(0.3)
    assert caught.value.retriable
    recorder.refuses = False
    client.wait_ready(PATIENCE_S)
    assert recorder.ids() == list(range(5))
    with pytest.raises(NotApplied, match=r"applied up to 4, not up to 5, .*: the log has come to 4"):
        client.wait_applied(0, 5, timeout=0.02)
    with pytest.raises(InvalidInput, match="applies nothing"):
        make_any().wait_applied(0, 0)


class Refuses(Recorder):
    """Does not apply transaction 3 before it is let."""

    refuses = True

    def apply_transaction(self, transaction: Transaction) -> None:
        if transaction.transaction_id == 3 and self.refuses:
            raise ValueError("not 3")
        super().apply_transaction(transaction)


def test_waiting_for_what_is_applied(server: FakeServer, make_any: MakeAnyClient) -> None:
    recorder = Recorder()
    client, other = make_any(recorder), make_any()
    told: list[int] = []

    def wait() -> None:
        client.wait_applied(1, 9, PATIENCE_S)
        told.extend(recorder.ids(1))

    thread = threading.Thread(target=wait)
    thread.start()
    other.append_many(1, [b"x"] * 9).result(PATIENCE_S)
    thread.join(0.05)
    assert thread.is_alive()
    assert told == []
    other.append(1, b"x").result(PATIENCE_S)
    thread.join(PATIENCE_S)
    assert told == list(range(10))
    client.wait_applied(1, 3, timeout=0)


def test_close_ends_who_waits_for_what_is_applied(make_any: MakeAnyClient) -> None:
    client = make_any(Recorder())
    client.wait_ready(PATIENCE_S)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            client.wait_applied(0, 0)
        except ClientClosed as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(0.02)
    client.close()
    thread.join(PATIENCE_S)
    assert len(errors) == 1


# ---- contexts


def test_contexts_commit_give_up_or_raise(make_any: MakeAnyClient) -> None:
    client = make_any(Recorder())
    commits, gives_up = Context(simple), Context(lambda builder: False)

    def explode(builder: TransactionBuilder) -> bool:
        raise ValueError("no")

    explodes = Context(explode)
    result = client.submit(commits).result(PATIENCE_S)
    assert result == SubmitResult(0, 0)
    assert result.committed
    assert client.submit(gives_up).result(PATIENCE_S) == SubmitResult(0, None)
    assert not SubmitResult(0, None)
    with pytest.raises(ValueError, match="no"):
        client.submit(explodes).result(PATIENCE_S)
    assert (commits.told, gives_up.told, explodes.told) == ([True], [False], [ValueError])
    with pytest.raises(InvalidInput, match=r"set no builder\.data"):
        client.submit(Context(lambda builder: True)).result(PATIENCE_S)


@pytest.mark.parametrize("outstanding", [1, 10_000])
def test_a_lost_update_is_prevented(server: FakeServer, make_any: MakeAnyClient, outstanding: int) -> None:
    """Counters under a write lock: two clients, every increment is seen. Also where attempts wait for room."""
    recorders = [Recorder(), Recorder()]
    clients = [make_any(recorder, ClientConfig(outstanding_appends=outstanding)) for recorder in recorders]

    def increment(recorder: Recorder) -> Context:
        def execute(builder: TransactionBuilder) -> bool:
            with recorder.changed:
                value = int(recorder.applied[-1][3]) if recorder.applied else 0
            builder.data = b"%d" % (value + 1)
            builder.write_lock("counter", 1)
            return True

        return Context(execute)

    contexts = [increment(recorders[i % 2]) for i in range(40)]
    futures = [clients[i % 2].submit(context) for i, context in enumerate(contexts)]
    assert all(future.result(PATIENCE_S) for future in futures)
    assert server.logs[0].data() == [b"%d" % (i + 1) for i in range(40)]
    assert sum(context.executions for context in contexts) > 40


@pytest.mark.parametrize(("drops", "executions"), [("drop_after_admitting", 1), ("drop_before_admitting", 2)])
def test_an_attempt_is_repeated_if_and_only_if_it_is_not_in_the_log(
    server: FakeServer, make_any: MakeAnyClient, drops: str, executions: int
) -> None:
    client = make_any(Recorder())
    client.wait_ready(PATIENCE_S)
    setattr(server.script, drops, 1)
    context = Context(simple)
    assert client.submit(context).result(PATIENCE_S).committed
    assert (context.executions, context.told) == (executions, [True])
    assert server.logs[0].data() == [b"x"]


# ---- reading


def test_read_and_feed(server: FakeServer, make_any: MakeAnyClient) -> None:
    for start in range(0, 30, 10):
        server.append_directly(0, [b"%d" % i for i in range(start, start + 10)], header=start)
    client = make_any()
    read = list(client.read(0, 5, 25))
    assert [one.transaction_id for one in read] == list(range(5, 25))
    assert [one.data for one in read] == [b"%d" % i for i in range(5, 25)]
    assert [one.header for one in read][:6] == [0, 0, 0, 0, 0, 10]
    assert (read[0].req_id.client_id, read[0].req_id.sequence_number) == (999_999, 5)
    assert [one.transaction_id for one in client.feed(0, start=28)] == [28, 29]
    assert list(client.read(0, 30, 40)) == []
    assert list(client.read(1, 0, 40)) == []


def test_transactions_pickle_with_their_data(server: FakeServer, make_any: MakeAnyClient) -> None:
    server.append_directly(0, [b"0", b"1"], header=3)
    (one,) = make_any().read(0, 1, 2)
    for copy in (pickle.loads(pickle.dumps(one)), pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(one))))):
        assert (copy.partition_id, copy.transaction_id, copy.header, copy.data) == (0, 1, 3, b"1")
        assert copy.req_id == one.req_id


def test_a_feed_that_follows(server: FakeServer, make_any: MakeAnyClient) -> None:
    server.append_directly(0, [b"0", b"1", b"2"])
    client = make_any()
    feed = client.feed(0, start=1, follow=True)
    assert [next(feed).data for _ in range(2)] == [b"1", b"2"]
    server.append_directly(0, [b"3"])
    assert next(feed).transaction_id == 3
    server.drop_connections()
    server.append_directly(0, [b"4"])
    assert next(feed).transaction_id == 4


def test_a_follower_is_polled(server: FakeServer, make_any: MakeAnyClient) -> None:
    client = make_any()
    with client.feed(0, follow=True) as follower:
        assert list(follower.poll(0.02)) == []
        server.append_directly(0, [b"0", b"1", b"2"])
        assert [one.data for one in follower.poll(PATIENCE_S)] == [b"0", b"1", b"2"]
        assert list(follower.poll(0)) == []
        server.append_directly(0, [b"3", b"4", b"5"])
        assert next(follower).data == b"3"
        assert [one.data for one in follower.poll(PATIENCE_S)] == [b"4", b"5"]  # the rest of the frame
        assert not follower.stopped
    assert follower.stopped
    assert list(follower.poll()) == []
    while server.do(lambda: server.mounts):
        continue  # it has left


def test_a_follower_is_stopped_from_elsewhere(server: FakeServer, make_any: MakeAnyClient) -> None:
    server.append_directly(0, [b"0", b"1"])
    follower = make_any().feed(0, follow=True)
    seen: list[int] = []

    def take() -> None:
        seen.extend(one.transaction_id for one in follower)
        seen.append(-1)

    thread = threading.Thread(target=take)
    thread.start()
    while len(seen) < 2:
        assert thread.is_alive()
    follower.stop()
    thread.join(PATIENCE_S)
    assert seen == [0, 1, -1]
    follower.stop()
    server.append_directly(0, [b"2"])
    assert list(follower) == []
    while server.do(lambda: server.mounts or server.connections):
        continue


def test_what_nobody_takes_from_any_more_is_stopped(server: FakeServer, make_any: MakeAnyClient) -> None:
    server.append_directly(0, [b"0", b"1"])
    client = make_any()
    for one in client.feed(0, follow=True):
        assert one.transaction_id == 0
        break
    while server.do(lambda: server.mounts):
        continue


def test_a_follower_of_several_partitions(server: FakeServer, make_any: MakeAnyClient) -> None:
    for partition in (0, 1):
        server.append_directly(partition, [b"%d" % i for i in range(3)])
    client = make_any()
    assert [(one.partition_id, one.transaction_id) for one in client.feed([1, 0], start={0: 1, 1: 2})] == [
        (0, 1),
        (0, 2),
        (1, 2),
    ]
    follower = client.feed(None, follow=True)
    seen = [next(follower) for _ in range(6)]
    server.append_directly(1, [b"3"])
    server.append_directly(0, [b"3"])
    seen += [next(follower) for _ in range(2)]
    for partition in (0, 1):
        assert [one.transaction_id for one in seen if one.partition_id == partition] == [0, 1, 2, 3]
    follower.stop()


def test_where_a_feed_begins(server: FakeServer, make_any: MakeAnyClient) -> None:
    server.append_directly(0, [b"%d" % i for i in range(5)])
    client = make_any()

    def ids(feed: Any, count: int = 9) -> list[int]:
        return [one.transaction_id for one in itertools.islice(feed, count)]

    assert ids(client.feed(0)) == [0, 1, 2, 3, 4]
    assert ids(client.feed(0, start=3)) == [3, 4]
    assert ids(client.feed(0, start="latest")) == []
    assert ids(client.feed([0, 1], last=2)) == [3, 4]
    assert ids(client.feed(0, last=100)) == [0, 1, 2, 3, 4]
    assert ids(client.feed(0, last=1, follow=True), 1) == [4]
    from_now = client.feed(0, start="latest", follow=True)
    assert list(from_now.poll(0.02)) == []
    server.append_directly(0, [b"5"])
    assert next(from_now).transaction_id == 5
    with pytest.raises(ClientAhead):
        next(client.feed(0, start=50, follow=True))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"partitions": 2}, "there is no partition 2"),
        ({"partitions": 1.5}, "a partition ID must be an integer, not float"),
        ({"partitions": object()}, "a partition ID must be an integer, not object"),
        ({"partitions": []}, "a feed needs a partition"),
        ({"partitions": 0, "start": -1}, "start must be"),
        ({"partitions": 0, "start": "tomorrow"}, "start must be"),
        ({"partitions": [0, 1], "start": {0: 5}}, "start names no transaction ID for partition 1"),
        ({"partitions": 0, "last": -1}, "last must be"),
        ({"partitions": 0, "last": 1, "start": 5}, "give one of them"),
    ],
)
def test_a_feed_that_cannot_be(make_any: MakeAnyClient, arguments: dict[str, Any], text: str) -> None:
    for follow in (False, True):
        with pytest.raises(InvalidInput, match=text):
            next(make_any().feed(**arguments, follow=follow))


def test_data_that_cannot_be_read(directory: FakeDirectory, make_any: MakeAnyClient) -> None:
    directory.move(0, None)
    client = make_any(config=ClientConfig(request_timeout_ms=50))
    with pytest.raises(DataUnavailable, match="partition 0 could not be read within 50 ms: no server owns"):
        list(client.read(0, 0, 1))


# ---- the end


def test_close_with_pending(server: FakeServer, directory: FakeDirectory, make_any: MakeAnyClient) -> None:
    client = make_any(Recorder())
    client.wait_ready(PATIENCE_S)
    server.script.hold_appends = True
    context = Context(simple)
    futures: list[Future[Any]] = [client.append(0, b"x"), client.append_many(1, [b"y", b"z"]), client.submit(context)]
    while sum(server.batch_sizes) < 4:
        assert not any(future.done() for future in futures)
    client.close()
    for future in futures:
        with pytest.raises(ClientClosed):
            future.result(PATIENCE_S)
    assert context.told == [ClientClosed]
    assert directory.closed
    with pytest.raises(ClientClosed):
        client.append(0, b"z").result(PATIENCE_S)
    with pytest.raises(ClientClosed):
        client.submit(Context(simple)).result(PATIENCE_S)
    client.close()
