"""Cursors as applications have them: over both clients, in a cluster in memory."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from itertools import count, islice
from typing import Any

import pytest

from tests.client.clock import NOON, Clock
from waltz_ray.client import Transaction, WaltzClient
from waltz_ray.client.bounds import FeedPlan
from waltz_ray.client.cursor_rules import CursorCall, CursorProgress, cursor_starts
from waltz_ray.client.cursors import Cursor
from waltz_ray.client.followers import Follower
from waltz_ray.client.subscription import Subscription
from waltz_ray.coordination.cursor_lease import CursorLease
from waltz_ray.coordination.cursor_store import CursorStore
from waltz_ray.coordination.trim_store import TrimStore
from waltz_ray.errors import (
    ClientClosed,
    CursorLost,
    CursorNotFound,
    CursorTaken,
    CursorUnsettled,
    InvalidInput,
    Trimmed,
    ZooKeeperUnreachable,
)
from waltz_ray.testing import InMemoryCluster


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cluster(clock: Clock) -> Iterator[InMemoryCluster]:
    with InMemoryCluster(partitions=2, clock=clock) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: InMemoryCluster) -> Iterator[WaltzClient]:
    with cluster.connect() as client:
        client.append_many(0, [b"%d" % n for n in range(10)]).result(10)
        yield client


@pytest.fixture
def trims(cluster: InMemoryCluster) -> Iterator[TrimStore]:
    session = cluster._sessions.begin()
    yield TrimStore(session, "memory")
    session.close()


def ids(cursor: Cursor, count: int) -> list[int]:
    return [transaction.transaction_id for transaction in islice(cursor, count)]


def positions(client: WaltzClient, name: str = "audit") -> dict[int, int]:
    return dict(next(each.positions for each in client.cursors() if each.name == name))


def test_ten_lines(client: WaltzClient) -> None:
    seen = []
    with client.cursor("audit", partitions=0) as cursor:
        for transaction in cursor:
            seen.append(transaction.data)
            if transaction.transaction_id == 4:
                break
    with client.cursor("audit") as cursor:
        assert cursor.positions == {0: 5}
        for transaction in cursor:
            seen.append(transaction.data)
            if transaction.transaction_id == 9:
                break
    assert seen == [b"%d" % n for n in range(10)]
    (status,) = client.cursors()
    assert (status.positions, status.owner, status.lag, status.epoch) == ({0: 10}, None, 0, 2)


def test_who_moves_a_cursor_whose_client_is_closed_is_told_that(cluster: InMemoryCluster) -> None:
    """And not that ZooKeeper cannot be reached, which is tried again."""
    with cluster.connect() as client:
        client.append_many(0, [b"x"] * 3).result(10)
        cursor, other = client.cursor("audit", 0), client.cursor("copy", 0, auto_commit=False)
        assert cursor.poll(10)
        assert other.poll(10)
    with pytest.raises(ClientClosed):
        other.commit()
    with pytest.raises(ClientClosed):
        other.reset("earliest")
    other.close()
    with pytest.raises(ClientClosed):
        cursor.poll(10)  # what was given out is done by that
    with pytest.raises(ClientClosed):
        cursor.close()


def test_who_moves_a_cursor_whose_client_for_coroutines_is_closed_is_told_that(cluster: InMemoryCluster) -> None:
    async def run() -> None:
        async with await cluster.connect_async() as client:
            await client.append_many(0, [b"x"] * 3)
            cursor, other = await client.cursor("audit", 0), await client.cursor("copy", 0, auto_commit=False)
            assert await cursor.poll(10)
            assert await other.poll(10)
        with pytest.raises(ClientClosed):
            await other.commit()
        with pytest.raises(ClientClosed):
            await other.reset("earliest")
        await other.close()
        with pytest.raises(ClientClosed):
            await cursor.poll(10)  # what was given out is done by that
        with pytest.raises(ClientClosed):
            await cursor.close()

    asyncio.run(run())


def test_who_asks_for_cursors_while_the_client_is_closed_is_told_that(
    cluster: InMemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = cluster.connect()
    names, take = CursorStore.names, CursorStore.take

    def closed_meanwhile(store: CursorStore) -> list[str]:
        client.close()
        return names(store)

    with monkeypatch.context() as patch:
        patch.setattr(CursorStore, "names", closed_meanwhile)
        with pytest.raises(ClientClosed):
            client.cursors()
    client = cluster.connect()

    def taken_later(store: CursorStore, name: str, hold: bool | None = None) -> CursorLease:
        client.close()
        return take(store, name, hold)

    monkeypatch.setattr(CursorStore, "take", taken_later)
    with pytest.raises(ClientClosed):
        client.cursor("audit")


def test_what_was_in_work_when_it_failed_comes_again(client: WaltzClient) -> None:
    def work() -> None:
        with client.cursor("audit", 0) as cursor:
            for transaction in cursor:
                _ = 1 // (3 - transaction.transaction_id)

    with pytest.raises(ZeroDivisionError):
        work()
    assert positions(client) == {0: 3}


def test_applied_and_not_committed_comes_again_from_the_earliest_such_position(cluster: InMemoryCluster) -> None:
    with cluster.connect() as client:
        client.append_many(0, [b"a"] * 10).result(10)
        client.append_many(1, [b"b"] * 10).result(10)
        cursor = client.cursor("audit", auto_commit=False)
        assert len(ids(cursor, 12)) == 12
        cursor.commit()
        committed = positions(client)
        assert sum(committed.values()) == 12
        assert len(ids(cursor, 8)) == 8
        cursor.close()  # as a crash: nothing more is written
        with client.cursor("audit", auto_commit=False) as again:
            first = {t.partition_id: t.transaction_id for t in reversed([*islice(again, 8)])}
        assert first == {p: position for p, position in committed.items() if position < 10}


def test_a_batch_is_done_when_the_next_one_is_asked_for(client: WaltzClient) -> None:
    cursor = client.cursor("audit", 0)
    assert [one.transaction_id for one in cursor.poll(10)] == [*range(10)]
    assert cursor.positions == {0: 0}
    assert not cursor.poll(timeout=0.01)
    assert cursor.positions == positions(client) == {0: 10}
    client.append(0, b"more").result(10)
    assert len(cursor.poll(10)) == 1
    cursor.close()
    assert positions(client) == {0: 10}


def test_many_advances_are_few_writes_and_none_waits_for_the_next_transaction(
    client: WaltzClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[dict[int, int]] = []
    monkeypatch.setattr("waltz_ray.client.cursor_rules.WRITE_EVERY_S", 60.0)
    with client.cursor("audit", 0) as cursor:
        advance = cursor._held.advance

        def counted(moved: dict[int, int]) -> None:
            written.append(moved)
            advance(moved)

        def last(moved: dict[int, int]) -> None:
            counted(moved)
            cursor.stop()

        monkeypatch.setattr(cursor._held, "advance", counted)
        ids(cursor, 10)
        assert written == [{0: 1}], "the first at once, the others later"
        monkeypatch.setattr("waltz_ray.client.cursor_rules.WRITE_EVERY_S", 0.05)
        monkeypatch.setattr(cursor._held, "advance", last)
        assert not cursor.poll()
        assert written == [{0: 1}, {0: 10}], "also while nothing comes"
        cursor.commit()
        assert len(written) == 2, "there is nothing to be said"


def test_a_second_owner_waits_or_is_refused(cluster: InMemoryCluster, client: WaltzClient) -> None:
    with cluster.connect() as other:
        first = client.cursor("audit", 0)
        for refused in (client, other):
            with pytest.raises(CursorTaken, match="cursor 'audit' of space 'log' is taken by session"):
                refused.cursor("audit", wait=0)
        with pytest.raises(CursorTaken):
            other.cursor("audit", wait=0.05)
        got: list[Cursor] = []
        waiting = threading.Thread(target=lambda: got.append(other.cursor("audit", wait=None)))
        waiting.start()
        ids(first, 3)
        first.commit()
        first.close()
        first.close()
        waiting.join(10)
        assert got[0].positions == {0: 3}
        assert got[0].epoch == first.epoch + 1
        got[0].close()


def test_who_waits_for_a_cursor_of_a_client_that_is_closed_is_told_so(
    cluster: InMemoryCluster, client: WaltzClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, when_free = threading.Event(), CursorStore.when_free

    def watched(store: CursorStore, name: str, callback: Callable[[], None]) -> Callable[[], None]:
        cancel = when_free(store, name, callback)
        waits.set()
        return cancel

    monkeypatch.setattr(CursorStore, "when_free", watched)

    async def test() -> None:
        asynchronous = await cluster.connect_async()
        waiting = asyncio.create_task(asynchronous.cursor("audit", wait=None))
        assert await asyncio.to_thread(waits.wait, 10)
        await asynchronous.close()
        with pytest.raises(ClientClosed):
            await asyncio.wait_for(waiting, 10)

    with client.cursor("audit", 0):
        other, told = cluster.connect(), Future[Cursor]()

        def wait() -> None:
            try:
                told.set_result(other.cursor("audit", wait=None))
            except ClientClosed as error:
                told.set_exception(error)

        threading.Thread(target=wait, daemon=True).start()
        assert waits.wait(10)
        other.close()
        with pytest.raises(ClientClosed):
            told.result(10)
        waits.clear()
        asyncio.run(test())


def test_a_session_that_is_lost_ends_the_cursor_also_while_it_waits(
    cluster: InMemoryCluster, client: WaltzClient
) -> None:
    cursor = client.cursor("audit", 0)
    ids(cursor, 10)
    cursor.commit()
    timer = threading.Timer(0.05, cluster.expire_sessions)
    timer.start()
    with pytest.raises(CursorLost, match=r"was lost: .*; what was not committed comes again"):
        next(cursor)
    timer.join()
    lengths: list[int] = []
    for _ in range(5):
        with pytest.raises(CursorLost) as told:
            cursor.poll(0)
        lengths.append(len(told.traceback))
    assert lengths == 5 * lengths[:1], "it does not grow"
    cursor.close()
    with client.cursor("audit") as again:
        assert again.positions == {0: 10}


def test_a_closed_client_has_no_cursors(cluster: InMemoryCluster, client: WaltzClient) -> None:
    """It was said that ZooKeeper cannot be reached, and that a write may have happened."""
    client.cursor("audit", 0).close()
    client.close()
    for call in (lambda: client.cursor("audit"), client.cursors, lambda: client.delete_cursor("audit")):
        with pytest.raises(ClientClosed):
            call()

    async def on_a_loop() -> None:
        async with await cluster.connect_async() as other:
            pass
        for waits in (other.cursor("audit"), other.cursors(), other.delete_cursor("audit"), other.start()):
            with pytest.raises(ClientClosed):
                await waits

    asyncio.run(on_a_loop())
    with cluster.connect() as another:
        assert [each.name for each in another.cursors()] == ["audit"]


def test_what_the_end_could_not_write_is_told(cluster: InMemoryCluster, client: WaltzClient) -> None:
    cursor = client.cursor("audit", 0)
    ids(cursor, 3)
    cluster.expire_sessions()
    with pytest.raises(CursorLost):
        cursor.close()
    with client.cursor("audit") as cursor:
        assert ids(cursor, 1) == [cursor.positions[0]] == [1], "written at once, and then a second later"


def test_the_applications_error_is_the_one_that_is_heard_of(
    cluster: InMemoryCluster, client: WaltzClient, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> None:
        with client.cursor("audit", 0) as cursor:
            ids(cursor, 3)
            cluster.expire_sessions()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert "cursor 'audit' was left by an error, and not moved on: cursor 'audit' of" in caplog.text


def test_reset(client: WaltzClient, clock: Clock) -> None:
    clock.now = NOON + timedelta(minutes=1)
    client.append_many(0, [b"later"] * 2).result(10)
    with client.cursor("audit", 0, start="latest") as cursor:
        assert cursor.positions == {0: 12}
        for start, first in (("earliest", 0), (7, 7), ({0: 3}, 3), (NOON + timedelta(seconds=30), 10), (2, 2)):
            cursor.reset(start)  # type: ignore[arg-type]
            assert positions(client) == {0: first}
            assert ids(cursor, 1) == [first]
        with pytest.raises(InvalidInput, match="partition 0: a cursor stands at 12 at the most just now, not 13"):
            cursor.reset(13)
        with pytest.raises(InvalidInput, match="start must be"):
            cursor.reset("yesterday")  # type: ignore[arg-type]
        assert ids(cursor, 2) == [3, 4], "it goes on as if nothing had been said"


@pytest.mark.parametrize("written", [False, True])
def test_a_reset_that_does_not_end_leaves_nothing_to_be_read_or_written(
    written: bool, client: WaltzClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have been written or not; what was done before must not be written over it, nor read on."""
    with client.cursor("audit", 0) as cursor:
        assert ids(cursor, 7) == [*range(7)]
        before, reset = positions(client), cursor._held.reset

        def unanswered(moved: Mapping[int, int]) -> None:
            if written:
                reset(moved)
            raise ZooKeeperUnreachable("no answer")

        with monkeypatch.context() as patch:
            patch.setattr(cursor._held, "reset", unanswered)
            with pytest.raises(ZooKeeperUnreachable):
                cursor.reset(2)
        for wait in (lambda: cursor.poll(), lambda: next(cursor)):
            with pytest.raises(CursorUnsettled, match="'audit' was being reset"):
                wait()
        cursor.commit()
        assert positions(client) == ({0: 2} if written else before)
        with monkeypatch.context() as patch:
            patch.setattr(cursor._book, "first_ids", lambda: unanswered({0: 2}))
            with pytest.raises(ZooKeeperUnreachable):
                cursor.reset(2)
        with pytest.raises(CursorUnsettled):
            cursor.poll()
        cursor.reset(2)
        assert ids(cursor, 3) == [2, 3, 4]
    assert positions(client) == {0: 5}


def test_a_reset_to_what_was_trimmed_meanwhile_is_told_by_what_comes_next(
    client: WaltzClient, trims: TrimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client.cursor("audit", 0, hold=False) as cursor:
        assert ids(cursor, 7) == [*range(7)]

        def trimmed(moved: Mapping[int, int]) -> None:
            raise Trimmed(0, 2, 4)

        with monkeypatch.context() as patch:
            patch.setattr(cursor._held, "reset", trimmed)
            with pytest.raises(Trimmed):
                cursor.reset(2)
        with pytest.raises(Trimmed):
            cursor.poll(0)
        cursor.reset("earliest")
        assert ids(cursor, 1) == [0]


def test_a_cursor_is_about_its_partitions_for_ever(client: WaltzClient) -> None:
    client.cursor("audit", 0).close()
    with pytest.raises(InvalidInput, match="cursor 'audit' is about the partitions 0, not 0, 1: leave partitions= out"):
        client.cursor("audit", [0, 1])
    client.cursor("audit", wait=0).close()
    with pytest.raises(InvalidInput, match="there is no partition 2"):
        client.cursor("other", 2)
    with pytest.raises(InvalidInput, match="cannot name a cursor"):
        client.cursor("Audit")
    with pytest.raises(InvalidInput, match="timeout must be a number of seconds"):
        client.cursor("audit", wait=-1)
    assert [each.name for each in client.cursors()] == ["audit"]
    client.delete_cursor("audit")
    with pytest.raises(CursorNotFound):
        client.delete_cursor("audit")


def test_a_cursor_that_holds_is_not_overtaken(client: WaltzClient, trims: TrimStore) -> None:
    with client.cursor("audit", 0, hold=True) as cursor:
        ids(cursor, 5)
        cursor.commit()
        assert trims.raise_marks({0: 9}) == {0: 5}
        cursor.reset("latest")
        assert trims.raise_marks({0: 9}) == {0: 9}


def test_one_whose_position_was_trimmed_away_is_told_so_and_goes_on_where_there_is_something(
    client: WaltzClient, trims: TrimStore
) -> None:
    client.cursor("audit", 0).close()
    trims.raise_marks({0: 6})
    with client.cursor("audit") as cursor:
        for ask in (lambda: next(cursor), lambda: cursor.poll(0)):
            with pytest.raises(Trimmed, match="transaction 0 was trimmed away; the first that can be read is 6"):
                ask()
        with pytest.raises(Trimmed):
            cursor.reset(5)
        cursor.reset("earliest")
        assert ids(cursor, 2) == [6, 7]
    with pytest.raises(Trimmed):
        client.cursor("new", 0, start=3)
    with client.cursor("new", 0, hold=True) as cursor:
        assert cursor.positions == {0: 6}


def test_one_that_is_overtaken_while_it_reads_is_told_so(cluster: InMemoryCluster) -> None:
    cluster.create_space("orders", 2)
    with cluster.connect(space="orders") as client, client.cursor("audit", 1, start="latest") as cursor:
        with cluster.suspended(3):  # the cluster's number: nothing is fed
            for number in range(8):
                client.append(1, b"%d" % number)
            deadline_s = time.monotonic() + 10
            while client.server_high_water_mark(1) < 7:
                assert time.monotonic() < deadline_s
            assert cluster.trim(1, 6, "orders") == 6
            cluster.kill_server()
        with pytest.raises(Trimmed) as told:
            cursor.poll(10)
        assert (told.value.partition_id, told.value.first_id) == (1, 6)
        with pytest.raises(Trimmed):
            cursor.poll(0)
        cursor.reset("earliest")
        assert ids(cursor, 2) == [6, 7]


def test_more_is_trimmed_while_a_cursor_is_set_to_the_earliest(
    client: WaltzClient, trims: TrimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = client._directory.cursors
    marks = [4, 6]

    def first(call: Callable[..., object]) -> Callable[..., object]:
        def late(*arguments: object) -> object:
            if marks:
                trims.raise_marks({0: marks.pop(0)})
            return call(*arguments)

        return late

    monkeypatch.setattr(book, "create", first(book.create))
    with client.cursor("audit", 0, hold=True) as cursor:
        assert cursor.positions == {0: 6}
        trims.holds.release("cursor.log.audit")
        marks += [7]
        monkeypatch.setattr(cursor._held, "reset", first(cursor._held.reset))
        cursor.reset("earliest")
        assert cursor.positions == {0: 7}


def test_a_space_has_cursors_of_its_own(cluster: InMemoryCluster, client: WaltzClient, trims: TrimStore) -> None:
    cluster.create_space("orders", 2)
    client.cursor("audit", 0).close()
    with cluster.connect(space="orders") as orders:
        orders.append_many(1, [b"x"] * 4).result(10)
        with orders.cursor("audit", hold=True) as cursor:
            ids(cursor, 3)
        assert positions(orders) == {0: 0, 1: 3}
        assert trims.raise_marks({2: 5, 3: 5}) == {2: 0, 3: 3}
    assert positions(client) == {0: 0}


def test_after_stop_nothing_comes_of_what_was_read_before(cluster: InMemoryCluster, client: WaltzClient) -> None:
    async def test() -> None:
        async with await cluster.connect_async() as another, await another.cursor("mail", 0) as cursor:
            assert (await anext(cursor)).transaction_id == 0
            await cursor.stop()
            assert not await cursor.poll(timeout=0)
            assert [one async for one in cursor] == []

    with client.cursor("audit", 0) as cursor:
        assert next(cursor).transaction_id == 0
        cursor.stop()
        assert not cursor.poll(timeout=0)
        assert [*cursor] == []
    asyncio.run(test())
    assert positions(client) == positions(client, "mail") == {0: 1}


INTERRUPTED: list[tuple[type, str, int, bool]] = [
    (Subscription, "taken", 1, True),
    (Subscription, "taken", 1, False),
    (Subscription, "used_once", 1, True),
    (Subscription, "used_once", 1, False),
    (Transaction, "__init__", 3, False),
]


@pytest.mark.parametrize("kind", ["feed", "cursor"])
@pytest.mark.parametrize(("where", "name", "call", "polls"), INTERRUPTED)
def test_who_is_interrupted_while_he_takes_has_taken_nothing(
    kind: str,
    where: type,
    name: str,
    call: int,
    polls: bool,
    client: WaltzClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C, and he goes on: what was in work, often all the rest of a frame, never came, and the cursor passed it."""
    done, calls = getattr(where, name), count(1)

    def interrupted_once(*arguments: Any) -> Any:
        result = done(*arguments)
        if next(calls) == call:
            raise KeyboardInterrupt
        return result

    def take(source: Cursor | Follower) -> None:
        while len(found) < 20:
            if polls:
                made = source.poll(10)
                assert made
                found.extend(each.transaction_id for each in made)
            else:
                found.append(next(source).transaction_id)

    found: list[int] = []
    opened: Cursor | Follower = client.cursor("audit", 0) if kind == "cursor" else client.feed(0, follow=True)
    with opened as source:
        found.append(next(source).transaction_id)
        client.append_many(0, [b"more"] * 10).result(10)
        monkeypatch.setattr(where, name, interrupted_once)
        timer = threading.Timer(10, source.stop)  # where something is missing it would be waited for
        timer.start()
        for _ in range(2):
            with suppress(KeyboardInterrupt):
                take(source)
        timer.cancel()
    assert found == [*range(20)]


def test_stop_ends_the_iteration_from_another_thread(client: WaltzClient) -> None:
    with client.cursor("audit", 0) as cursor:
        timer, given = threading.Timer(0.05, cursor.stop), 0
        for _ in cursor:
            given += 1
            if given == 10:  # all there are: it waits for more
                timer.start()
        timer.join()
        assert given == 10
        assert not cursor.poll(5)
    assert positions(client) == {0: 10}


def test_a_client_that_is_closed_ends_its_cursors(cluster: InMemoryCluster) -> None:
    with cluster.connect() as client:
        cursor = client.cursor("audit")
    with pytest.raises((ClientClosed, CursorLost)):
        next(cursor)
    with cluster.connect() as other, other.cursor("audit", wait=0) as again:
        assert again.epoch == 2


def test_while_zookeeper_is_away_it_goes_on_reading(
    client: WaltzClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("waltz_ray.client.cursor_rules.WRITE_EVERY_S", 0.0)
    with client.cursor("audit", 0) as cursor:
        away = type(cursor._held).connected
        monkeypatch.setattr(type(cursor._held), "connected", False)
        assert ids(cursor, 6) == [*range(6)]
        assert positions(client) == {0: 0}
        monkeypatch.setattr(type(cursor._held), "connected", away)
        assert ids(cursor, 1) == [6]
        assert positions(client) == {0: 6}


# ---- coroutines


def test_in_coroutines(cluster: InMemoryCluster, client: WaltzClient, trims: TrimStore) -> None:
    async def test() -> None:
        async with await cluster.connect_async() as asynchronous:
            async with await asynchronous.cursor("audit", 0) as cursor:
                async for transaction in cursor:
                    if transaction.transaction_id == 4:
                        break
                with pytest.raises(CursorTaken):
                    await asynchronous.cursor("audit", wait=0)
                with pytest.raises(CursorTaken):
                    await asynchronous.cursor("audit", wait=0.02)
            assert (await asynchronous.cursors())[0].positions == {0: 5}
            cursor = await asynchronous.cursor("audit")
            assert (cursor.positions, cursor.epoch, cursor.name) == ({0: 5}, 2, "audit")
            assert len(await cursor.poll(10)) == 5
            assert not await cursor.poll(0.01)
            await cursor.reset(NOON)
            assert len(await cursor.poll(10)) == 10
            await cursor.close()
            assert (await asynchronous.cursors())[0].positions == {0: 0}
            trims.raise_marks({0: 2})
            async with await asynchronous.cursor("audit", auto_commit=False) as cursor:
                with pytest.raises(Trimmed):
                    await anext(cursor)
                await cursor.reset("earliest")
                assert (await anext(cursor)).transaction_id == 2
                await cursor.commit()
                await anext(cursor)
            (status,) = await asynchronous.cursors()
            assert (status.positions, status.lag) == ({0: 3}, 7)
            await asynchronous.delete_cursor("audit")
            assert await asynchronous.cursors() == []

    asyncio.run(test())


def test_coroutines_that_wait_lose_and_are_cancelled(cluster: InMemoryCluster, client: WaltzClient) -> None:
    async def test() -> None:
        async with await cluster.connect_async() as asynchronous:
            held = client.cursor("audit", 0, start="latest")
            waiting = asyncio.create_task(asynchronous.cursor("audit", wait=None))
            cancelled = asyncio.create_task(asynchronous.cursor("audit", wait=None))
            await asyncio.sleep(0.05)
            cancelled.cancel()
            await asyncio.to_thread(held.close)
            cursor = await asyncio.wait_for(waiting, 10)
            reading = asyncio.create_task(cursor.poll())
            await asyncio.sleep(0.02)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            await asyncio.to_thread(client.append(0, b"more").result, 10)
            assert [one.data for one in await cursor.poll(10)] == [b"more"], "who was cancelled has taken nothing"
            reading = asyncio.create_task(cursor.poll())
            await asyncio.sleep(0.02)
            await asyncio.to_thread(cluster.expire_sessions)
            with pytest.raises(CursorLost):
                await asyncio.wait_for(reading, 10)
            await cursor.close()

    asyncio.run(test())


def test_who_is_cancelled_while_what_is_done_is_written_has_taken_nothing(
    cluster: InMemoryCluster, client: WaltzClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waltz_ray.client.cursor_rules.WRITE_EVERY_S", 0.0)
    writing, go_on = threading.Event(), threading.Event()

    async def test() -> None:
        async with await cluster.connect_async() as asynchronous, await asynchronous.cursor("audit", 0) as cursor:
            assert (await anext(cursor)).transaction_id == 0
            advance = cursor._held.advance

            def slow(moved: Mapping[int, int]) -> None:
                writing.set()
                assert go_on.wait(10)
                advance(moved)

            with monkeypatch.context() as patch:
                patch.setattr(cursor._held, "advance", slow)
                following = asyncio.create_task(cursor.__anext__())
                assert await asyncio.to_thread(writing.wait, 10)
                following.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await following
                go_on.set()
            assert (await anext(cursor)).transaction_id == 1

    asyncio.run(test())


def test_a_reset_that_is_cancelled_or_fails_leaves_nothing_to_be_read_or_written(
    cluster: InMemoryCluster, client: WaltzClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    resetting, go_on = threading.Event(), threading.Event()

    async def test() -> None:
        async with await cluster.connect_async() as asynchronous, await asynchronous.cursor("audit", 0) as cursor:
            for n in range(7):
                assert (await anext(cursor)).transaction_id == n
            reset, first_ids = cursor._held.reset, cursor._book.first_ids

            def slow(moved: Mapping[int, int]) -> None:
                resetting.set()
                assert go_on.wait(10)
                reset(moved)

            with monkeypatch.context() as patch:
                patch.setattr(cursor._held, "reset", slow)
                leaving = asyncio.create_task(cursor.reset(2))
                assert await asyncio.to_thread(resetting.wait, 10)
                leaving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await leaving
            with pytest.raises(CursorUnsettled):
                await cursor.poll()
            with pytest.raises(CursorUnsettled):
                await anext(cursor)
            await cursor.commit()
            again = asyncio.create_task(cursor.reset(4))
            await asyncio.sleep(0.05)
            go_on.set()  # the first one ends before the second begins
            await asyncio.wait_for(again, 10)
            assert (await asynchronous.cursors())[0].positions == {0: 4}
            assert [await anext(cursor), await anext(cursor)][1].transaction_id == 5

            def unanswered() -> Mapping[int, int]:
                if calls:
                    raise ZooKeeperUnreachable("no answer")
                calls.append(1)
                return first_ids()

            calls: list[int] = []
            with monkeypatch.context() as patch:
                patch.setattr(cursor._book, "first_ids", unanswered)
                with pytest.raises(ZooKeeperUnreachable):
                    await cursor.reset(1)
            with pytest.raises(CursorUnsettled):
                await asyncio.wait_for(cursor.poll(), 10)
        assert positions(client) == {0: 1}

    asyncio.run(test())


def test_who_is_cancelled_while_he_takes_it_has_not_got_it(cluster: InMemoryCluster, client: WaltzClient) -> None:
    client.cursor("audit", 0).close()

    async def test() -> None:
        async with await cluster.connect_async() as asynchronous:
            for _ in range(5):
                taking = asyncio.create_task(asynchronous.cursor("audit"))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                taking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await taking
            async with await asynchronous.cursor("audit", wait=10) as cursor:
                assert len(await cursor.poll(10)) == 10

    asyncio.run(test())


# ---- the rules


def test_what_counts_as_done() -> None:
    progress = CursorProgress({0: 5, 1: 7})
    assert progress.due_s(10.0) is None
    progress.give(0, 5)
    assert (progress.positions, progress.unwritten, progress.due_s(10.0)) == ({0: 5, 1: 7}, {}, None)
    progress.finish()
    assert (progress.positions, progress.unwritten, progress.due_s(10.0)) == ({0: 6, 1: 7}, {0: 6}, 0.0)
    progress.tried(10.0)
    assert progress.due_s(10.25) == 0.75
    progress.wrote({0: 6}, 10.25)
    assert (progress.unwritten, progress.due_s(99.0)) == ({}, None)


def test_where_a_cursor_begins() -> None:
    plan = FeedPlan.of([0, 1], 2, "earliest", None)
    assert cursor_starts(plan, True, {0: 9, 1: -1}, {0: 4, 1: 0}) == {0: 4, 1: 0}
    plan = FeedPlan.of([0, 1], 2, {0: 10, 1: 0}, None)
    assert cursor_starts(plan, False, {0: 9, 1: -1}, {0: 4, 1: 0}) == {0: 10, 1: 0}
    with pytest.raises(InvalidInput, match="a cursor stands at 9 at the most"):
        cursor_starts(plan, False, {0: 8, 1: -1}, {0: 4, 1: 0})
    with pytest.raises(Trimmed):
        cursor_starts(plan, False, {0: 9, 1: -1}, {0: 4, 1: 1})
    call = CursorCall("a", None, NOON, None, auto_commit=True)
    assert call.moves_with_the_log
    call.check([0, 1], 2)
    with pytest.raises(InvalidInput, match=r"about the partitions 0, 1, 2, 3, 4, 5, 6, 7, \.\.\., not 3"):
        CursorCall("a", 3, 0, None, auto_commit=True).check(range(9), 9)


def test_a_poll_keeps_its_time(client: WaltzClient) -> None:
    with client.cursor("audit", 0, start="latest") as cursor:
        begin = time.monotonic()
        assert not cursor.poll(0.05)
        assert 0.05 <= time.monotonic() - begin < 5
