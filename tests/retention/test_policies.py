"""What the settings of a space come to: the rules, and a server that carries them out."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import cast

import pytest

from tests.client.clock import Clock
from waltz_ray.actors import retention as retention_module
from waltz_ray.actors.retention import Retention, RetentionHost
from waltz_ray.config import ServerConfig
from waltz_ray.coordination.hold_store import HoldStore
from waltz_ray.errors import InvalidInput, NodeDamaged, ZooKeeperUnreachable
from waltz_ray.protocol import trimming
from waltz_ray.protocol.spaces import changed_settings
from waltz_ray.protocol.trimming import AS_USUAL, SegmentLimits
from waltz_ray.testing import InMemoryCluster

# ---- rules --------------------------------------------------------------------------------------------------------


def test_marks_rise_as_far_as_every_hold_lets() -> None:
    holds = [{0: 7, 1: 3}, {0: 5}, {2: 0}]
    assert trimming.raised_marks({0: 2, 1: 3}, {0: 9, 1: 9, 2: 9, 3: 9}, holds) == {0: 5, 3: 9}
    assert trimming.raised_marks({0: 6}, {0: 9}, [{0: 5}]) == {}, "a hold below the mark keeps what is left"


def test_a_segment_goes_only_whole_and_the_newest_never() -> None:
    assert [trimming.segments_below([10, 20, 30], mark) for mark in (0, 10, 19, 20, 29, 30, 31, 99)] == [
        *(0, 0, 0, 1, 1, 2, 2, 2),
    ]
    assert trimming.segments_below([10], 99) == 0


def test_the_newest_segments_that_fit_are_kept() -> None:
    assert [trimming.by_size([0, 10, 20], [5, 5, 5], most) for most in (0, 4, 5, 9, 10, 14, 15, 99)] == [
        *(20, 20, 20, 20, 10, 10, 0, 0),
    ]


def test_segments_are_a_part_of_what_is_kept_but_not_tiny() -> None:
    def limits(log_bytes: int = 0, **settings: int) -> SegmentLimits:
        assert trimming.closes_early(settings) == (trimming.segment_limits(settings, log_bytes) != AS_USUAL)
        return trimming.segment_limits(settings, log_bytes)

    assert limits() == limits(compact=0) == AS_USUAL
    assert limits(retention_bytes=4_000_000) == SegmentLimits(1_000_000, None)
    assert limits(retention_ms=60_000) == SegmentLimits(None, 15_000)
    assert limits(retention_bytes=0, retention_ms=0) == SegmentLimits(16_384, 1_000)
    assert limits(compact=1) == limits(log_bytes=4 << 20, compact=1) == SegmentLimits(256 * 1024, None)
    assert limits(log_bytes=1 << 30, compact=1) == SegmentLimits(64 << 20, None)


def test_a_policy_is_age_or_size_or_a_layers_own() -> None:
    assert trimming.policy_of({}) is None
    assert trimming.policy_of({"compact": 1}) is None
    assert trimming.policy_of({"retention_ms": 5}) == (5, -1)
    assert trimming.policy_of({"retention_ms": 5, "retention_bytes": 0}) == (5, 0)
    assert trimming.policy_of({"compact": 0, "retention_bytes": 7}) == (-1, 7)


def test_a_space_that_compacts_has_no_other_policy() -> None:
    assert changed_settings({}, {"compact": 1}) == {"compact": 1}
    assert changed_settings({"retention_ms": 5}, {"compact": 1, "retention_ms": None}) == {"compact": 1}
    for before, changes in [({"compact": 1}, {"retention_ms": 5}), ({"retention_bytes": 5}, {"compact": 1})]:
        with pytest.raises(InvalidInput, match="set no retention_ms, retention_bytes"):
            changed_settings(before, changes)
    with pytest.raises(InvalidInput, match="compact is 1 or 0, not 2"):
        changed_settings({}, {"compact": 2})


# ---- a server -------------------------------------------------------------------------------------------------------


class Kept:
    """A cluster with a clock of its own; ``look``: what a server does every few seconds."""

    def __init__(self, cluster: InMemoryCluster, **settings: int) -> None:
        self.cluster = cluster
        self.store = cluster._store
        cluster._do(lambda: self.store.spaces.set("log", settings))

    def look(self, *remembering: Retention) -> dict[int, int]:
        """The marks after a look of these; of none of them: of each server's, which has asked nothing yet."""

        async def look() -> dict[int, int]:
            for retention in remembering or [Retention(server, 1.0) for server, _ in self.cluster._running.values()]:
                retention.follow(self.store.spaces.table())
                await retention.look()
            return self.store.trims.marks()

        return self.cluster._started.call(look())


def never() -> ServerConfig:
    return ServerConfig(retention_interval_ms=0)


def test_a_server_goes_on_looking_after_a_node_that_could_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    async def look(self: Retention) -> None:
        looked.append(1)
        if len(looked) == 1:
            raise NodeDamaged("/store/trims is no JSON")
        if len(looked) == 2:
            raise ZooKeeperUnreachable("no answer")
        if len(looked) == 3:
            raise RuntimeError("can't start new thread")
        raise asyncio.CancelledError

    monkeypatch.setattr(Retention, "look", look)
    host = SimpleNamespace(server_id=0)

    async def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            await Retention(cast(RetentionHost, host), 0.0).keep_looking()

    asyncio.run(run())
    assert len(looked) == 4


def test_what_is_older_than_a_space_keeps_is_given_up_and_nothing_younger() -> None:
    clock = Clock()
    with InMemoryCluster(partitions=2, config=never(), clock=clock) as cluster, cluster.connect() as client:
        kept = Kept(cluster, retention_ms=60_000)
        for _ in range(5):
            client.append(0, b"x").result()
            clock.now += timedelta(seconds=30)
        assert kept.look() == {0: 3}, "those of 150, 120 and 90 s ago"
        assert kept.look() == {0: 3}
        clock.now += timedelta(hours=1)
        assert kept.look() == {0: 5}
        clock.now -= timedelta(hours=1)
        assert kept.look() == {0: 5}, "a clock that is put back brings nothing back"


@pytest.mark.parametrize("settings", [{}, {"retention_bytes": 1_000_000}])
def test_a_server_whose_clock_is_behind_gives_up_nothing_too_early(
    settings: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1_000.0
    monkeypatch.setattr(retention_module, "_now_s", lambda: now_s)
    with InMemoryCluster(config=never()) as cluster, cluster.connect() as client:
        kept = Kept(cluster, retention_ms=3_600_000, **settings)
        [(server, _)] = cluster._running.values()
        server.now_ms = lambda: 1_000  # 1970: a machine without a battery that NTP has not reached
        retention = Retention(server, 1.0)
        assert kept.look(retention) == {}
        for minutes in range(5):
            client.append(0, b"x").result()
            now_s = 1_000.0 + 600 * minutes
            assert kept.look(retention) == {}, "what was just appended is not an hour old"
        now_s = 1_000.0 + 3_600 + 601
        assert kept.look(retention) == {0: 2}, "the first two were there an hour ago"
        now_s += 3_600
        assert kept.look(retention) == {0: 5}


def test_what_others_have_committed_in_between_is_as_old_as_it_is_dated(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, now_s = Clock(), 1_000.0
    monkeypatch.setattr(retention_module, "_now_s", lambda: now_s)
    with InMemoryCluster(config=never(), clock=clock) as cluster, cluster.connect() as client:
        kept = Kept(cluster, retention_ms=60_000)
        [(server, _)] = cluster._running.values()
        retention = Retention(server, 1.0)
        assert kept.look(retention) == {}
        for _ in range(5):
            client.append(0, b"x").result()
        clock.now += timedelta(hours=1)
        now_s += 10
        assert kept.look(retention) == {}, "they were appended within these ten seconds"
        server.assigned[0] += 1  # the partition was another server's
        now_s += 10
        assert kept.look(retention) == {0: 5}


def test_what_a_hold_keeps_stays() -> None:
    clock = Clock()
    with InMemoryCluster(config=never(), clock=clock) as cluster, cluster.connect() as client:
        kept = Kept(cluster, retention_ms=1_000)
        for _ in range(5):
            client.append(0, b"x").result()
        holds: HoldStore = kept.store.trims.holds
        cluster._do(lambda: holds.hold("audit", {0: 2}, "why"))
        clock.now += timedelta(hours=1)
        assert kept.look() == {0: 2}
        cluster._do(lambda: holds.release("audit"))
        assert kept.look() == {0: 5}


def test_a_space_is_kept_to_a_size_and_another_is_not_touched() -> None:
    with InMemoryCluster(config=never()) as cluster:
        cluster.create_space("orders")
        kept = Kept(cluster, retention_bytes=300)
        with cluster.connect() as client, cluster.connect(space="orders") as orders:
            for _ in range(10):
                client.append(0, bytes(60)).result()
                orders.append(0, bytes(60)).result()
        assert kept.look() == {0: 7}, "three records of 100 bytes are left"


def test_nothing_is_raised_for_a_space_whose_layer_does_it() -> None:
    with InMemoryCluster(config=never()) as cluster, cluster.connect() as client:
        kept = Kept(cluster, compact=1)
        client.append(0, b"x").result()
        assert kept.look() == {}


def test_replicas_are_asked_only_where_the_answer_may_be_another_one() -> None:
    with InMemoryCluster(config=never()) as cluster, cluster.connect() as client:
        kept = Kept(cluster, retention_bytes=300)
        [(server, _)] = cluster._running.values()
        asked: list[int] = []

        async def look_twice() -> list[int]:
            excess = server.drivers[0].excess

            async def counted(age_ms: int, most_bytes: int) -> int:
                asked.append(server.drivers[0].machine.high_water_mark)
                return await excess(age_ms, most_bytes)

            server.drivers[0].excess = counted  # type: ignore[method-assign]
            retention.follow(kept.store.spaces.table())
            await retention.look()
            await retention.look()
            return asked

        retention = Retention(server, 1.0)
        client.append(0, b"x").result()
        assert cluster._started.call(look_twice()) == [0]
        client.append(0, b"x").result()
        assert cluster._started.call(look_twice())[:2] == [0, 1]


@pytest.mark.parametrize("hindered_by", ["a hold", "zookeeper", "another policy"])
def test_what_could_not_be_given_up_is_given_up_later_also_when_nothing_is_appended(
    hindered_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with InMemoryCluster(config=never()) as cluster:
        kept = Kept(cluster, retention_bytes=300 if hindered_by != "another policy" else 600)
        [(server, _)] = cluster._running.values()
        trims, retention = kept.store.trims, Retention(server, 1.0)
        with cluster.connect() as client:
            for _ in range(10):
                client.append(0, bytes(60)).result()

        async def look() -> None:
            retention.follow(kept.store.spaces.table())
            await retention.look()

        if hindered_by == "a hold":
            cluster._do(lambda: trims.holds.hold("backup", {0: 2}, "why"))
            cluster._started.call(look())
            cluster._do(lambda: trims.holds.release("backup"))
        elif hindered_by == "zookeeper":

            def unreachable(wanted: object) -> None:
                raise ZooKeeperUnreachable("no answer")

            with monkeypatch.context() as away:
                away.setattr(server.store.trims, "raise_marks", unreachable)
                with pytest.raises(ZooKeeperUnreachable):
                    cluster._started.call(look())
        else:
            cluster._started.call(look())
            assert trims.marks() == {0: 4}
            cluster._do(lambda: kept.store.spaces.set("log", {"retention_bytes": 300}))
        cluster._started.call(look())
        assert trims.marks() == {0: 7}
