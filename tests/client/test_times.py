"""Points in time: where a feed begins, when a transaction was appended; over both clients, with a clock that is set."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import islice

import pytest

from tests.client.clock import NOON, Clock
from waltz_ray.client import WaltzClient
from waltz_ray.client.bounds import FeedPlan, at_time
from waltz_ray.client.times import WantedTimes, from_milliseconds, in_milliseconds, time_of
from waltz_ray.errors import DataUnavailable, InvalidInput
from waltz_ray.testing import InMemoryCluster


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cluster(clock: Clock) -> Iterator[InMemoryCluster]:
    with InMemoryCluster(partitions=2, clock=clock) as cluster:
        yield cluster


def append_by_the_minute(client: WaltzClient, clock: Clock) -> None:
    """Partition 0: three transactions at noon, two at 12:01, one at 12:03; none in partition 1."""
    for minute, count in ((0, 3), (1, 2), (3, 1)):
        clock.now = NOON + timedelta(minutes=minute)
        client.append_many(0, [b"%d" % minute] * count).result(10)


def test_first_id_at(cluster: InMemoryCluster, clock: Clock) -> None:
    with cluster.connect() as client:
        append_by_the_minute(client, clock)
        minutes = {-1: 0, 0: 0, 1: 3, 2: 5, 3: 5, 4: 6}
        found = {minute: client.first_id_at(0, NOON + timedelta(minutes=minute)) for minute in minutes}
        assert found == minutes
        assert client.first_id_at(0, (NOON + timedelta(minutes=1)).astimezone(timezone(timedelta(hours=9)))) == 3
        assert client.first_id_at(1, NOON) == 0, "the ID that the next one gets"
        with pytest.raises(InvalidInput, match="when must say its time zone"):
            client.first_id_at(0, datetime(2026, 11, 21))
        with pytest.raises(InvalidInput, match="when must be a datetime, not str"):
            client.first_id_at(0, "yesterday")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="there is no partition 2"):
            client.first_id_at(2, NOON)


def test_a_feed_from_a_time_on(cluster: InMemoryCluster, clock: Clock) -> None:
    with cluster.connect() as client:
        append_by_the_minute(client, clock)
        after_noon = NOON + timedelta(seconds=1)
        assert [one.transaction_id for one in client.feed(0, after_noon)] == [3, 4, 5]
        assert [one.transaction_id for one in client.feed(None, clock.now + timedelta(days=1))] == []
        with client.feed(None, after_noon, follow=True) as follower:
            assert next(follower).transaction_id == 3
            client.append(1, b"from now on").result(10)
            rest = {(one.partition_id, one.transaction_id) for one in islice(follower, 3)}
            assert rest == {(0, 4), (0, 5), (1, 0)}


def test_when_a_transaction_was_appended(cluster: InMemoryCluster, clock: Clock) -> None:
    with cluster.connect() as client:
        append_by_the_minute(client, clock)
        times = [one.appended_at for one in client.feed(0)]
        assert times == [NOON + timedelta(minutes=minute) for minute in (0, 0, 0, 1, 1, 3)]
        last = next(iter(client.read(0, 5, 6)))
        fresh = next(iter(client.read(0, 5, 6)))
        assert client.appended_at(last) == last.appended_at == NOON + timedelta(minutes=3)
        sent = pickle.loads(pickle.dumps(last))
        assert sent.appended_at == last.appended_at
        stranger = pickle.loads(pickle.dumps(fresh))
        with pytest.raises(DataUnavailable, match=r"client\.appended_at"):
            _ = stranger.appended_at
        assert client.appended_at(stranger) == last.appended_at


def test_a_clock_that_goes_back(cluster: InMemoryCluster, clock: Clock) -> None:
    with cluster.connect() as client:
        client.append(0, b"a").result(10)
        clock.now = NOON - timedelta(hours=1)
        client.append(0, b"b").result(10)
        clock.now = NOON + timedelta(minutes=1)
        client.append(0, b"c").result(10)
        assert [one.appended_at for one in client.feed(0)] == [NOON, NOON, clock.now]
        assert client.first_id_at(0, NOON) == 0
        assert client.first_id_at(0, NOON + timedelta(seconds=1)) == 2


def test_in_coroutines(cluster: InMemoryCluster, clock: Clock) -> None:
    with cluster.connect() as client:
        append_by_the_minute(client, clock)

    async def test() -> None:
        async with await cluster.connect_async() as client:
            minute = NOON + timedelta(minutes=1)
            assert await client.first_id_at(0, minute) == 3
            found = [one async for one in client.feed(0, minute)]
            assert [one.transaction_id for one in found] == [3, 4, 5]
            with pytest.raises(DataUnavailable, match=r"await client\.appended_at"):
                _ = found[0].appended_at
            assert await client.appended_at(found[0]) == found[0].appended_at == minute
            async with client.feed([0], minute, follow=True) as follower:
                assert (await anext(follower)).transaction_id == 3

    asyncio.run(test())


def test_times_in_milliseconds() -> None:
    assert in_milliseconds("t", datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=timezone.utc)) == 1001, (
        "up: none before it is meant"
    )
    assert in_milliseconds("t", datetime.min.replace(tzinfo=timezone.utc)) == 0
    assert from_milliseconds(in_milliseconds("t", NOON)) == NOON
    assert from_milliseconds((1 << 63) - 1).year == 9999
    times = ((3, 1000), (5, 2000))
    assert [time_of(transaction_id, times) for transaction_id in (2, 3, 4, 5)] == [
        None,
        from_milliseconds(1000),
        from_milliseconds(1000),
        from_milliseconds(2000),
    ]


def test_times_that_come_in_pieces() -> None:
    wanted = WantedTimes(3, 20)
    answers = [(8, ((3, 1), (5, 2))), (12, ((8, 2),)), (12, ())]  # the log ends with 11
    asked = []
    while wanted.missing:
        asked.append(wanted.first_id)
        wanted.take(*answers[len(asked) - 1])
    assert (asked, wanted.times) == ([3, 8, 12], ((3, 1), (5, 2), (8, 2)))
    assert not WantedTimes(5, 5).missing


def test_a_plan_that_begins_at_a_time() -> None:
    plan = FeedPlan.of(None, 2, NOON, None)
    assert plan.time_ms == in_milliseconds("start", NOON)
    assert plan.started_at({0: 3, 1: 0}).first_ids({}) == {0: 3, 1: 0}
    with pytest.raises(InvalidInput, match="start must say its time zone"):
        FeedPlan.of(None, 2, datetime(2026, 1, 1), None)
    with pytest.raises(InvalidInput, match="give one of them"):
        FeedPlan.of(None, 2, NOON, 5)
    assert at_time("start", 7, [0], lambda *_: 1) == 7
    assert at_time("start", NOON, [0, 4], lambda partition_id, ms: partition_id + ms) == {
        0: in_milliseconds("start", NOON),
        4: in_milliseconds("start", NOON) + 4,
    }
