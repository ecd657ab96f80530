"""A minute that never comes between two that came is published empty, once it is certain, exactly once."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waltz_spark.streams.files import FilesOf
from waltz_spark.streams.holes import LONGEST, MinutesSeen, seen_with
from waltz_spark.streams.layout import PublishedPath, data_path, join
from waltz_spark.streams.services import StreamService
from waltz_spark.streams.settings import StreamSettings
from waltz_spark.streams.states import ThreadNode, decode_node, encode_node

from tests.spark.streams.faults import Fuse
from tests.spark.streams.memory_files import MemoryFiles
from tests.spark.streams.staging import Stage
from tests.spark.streams.world import FIRST, NOW, World
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.memory import MemoryZooKeeperServer
from waltz_ray.errors import ConfigError


def at(number: int) -> datetime:
    return FIRST + timedelta(minutes=number)


@given(st.lists(st.integers(0, 40), min_size=1))
def test_what_is_missing_is_what_lies_between(numbers: list[int]) -> None:
    seen = MinutesSeen(at(numbers[0]))
    for number in numbers[1:]:
        seen = seen.with_minute(at(number))
    between = {number for number in range(numbers[0], max(numbers)) if number not in numbers}
    assert set(seen.missing_until(at(100))) == {at(number) for number in between}
    node = ThreadNode(seen={"bank/host.example": seen})
    assert decode_node("x", encode_node(node)) == node


def test_a_long_gap_is_no_hole_and_who_brings_nothing_is_forgotten() -> None:
    path = PublishedPath("streams_local", "bank", FIRST, "tokyo", "c1")
    seen = seen_with(seen_with({}, path), path._replace(collector="c2"))
    later = seen_with(seen, path._replace(minute=FIRST + LONGEST))
    assert [len(list(each.missing_until(FIRST + 2 * LONGEST))) for each in later.values()] == [7 * 1440 - 1, 0]
    later = seen_with(seen, path._replace(minute=FIRST + LONGEST + timedelta(minutes=1)))
    assert later == {"bank/c1": MinutesSeen(FIRST + LONGEST + timedelta(minutes=1))}


def make(settings: StreamSettings, zookeeper: ZooKeeper, files_of: FilesOf) -> StreamService:
    return StreamService(replace(settings, holes_after_s=60), zookeeper, files_of, lambda: NOW)


def with_a_hole() -> Stage:
    """15:50 and 15:52 are there, 15:51 is not; it is 15:53:20."""
    files, server = MemoryFiles(), MemoryZooKeeperServer()
    world = World(files, "/x", minutes=1, files_each=1)
    world.collect(at(2), 1)
    world.expected[PublishedPath("streams_local", "bank", at(1), "tokyo", "c1")] = {}
    return Stage(world, files, server, make)


@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
def test_a_crash_at_every_change(power: bool) -> None:
    start = with_a_hole()
    number, crashed = 0, True
    while crashed:
        stage = start.copied()
        crashed = not stage.run("tokyo", Fuse(number, middle=bool(number % 2)))
        if power:
            stage.lose_power()
        if number % 3:
            assert stage.run("all", Fuse())
        assert stage.problems() == [], f"crashed at its change {number}"
        number += 1
    assert number > 40


def test_not_before_it_is_certain() -> None:
    """Too early, or something of the minute is there: it waits. What comes in time is published as it is."""
    stage = with_a_hole()
    client, world = stage.server.client(), stage.world
    path = PublishedPath("streams_local", "bank", at(1), "tokyo", "c1").on(world.root("tokyo"))

    def run(holes_after_s: float) -> None:
        settings = replace(world.settings["tokyo"], holes_after_s=holes_after_s)
        with StreamService(settings, client, lambda root: stage.files, lambda: NOW) as service:
            assert service.run_once().quarantined == {}

    for never in (0.0, 81.0):
        run(never)
        assert not stage.files.exists(path)
    begun = join(data_path(world.root("tokyo"), "bank", "c1"), "202611211551.begun")
    stage.files.write(begun, [b"?"])
    run(60)
    assert not stage.files.exists(path)
    world.collect(at(1), 2)
    run(60)
    assert len(stage.files.list(path)) == 2
    stage.files.delete(begun)
    assert stage.problems() == []


def test_a_time_below_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="holes_after_s"):
        StreamSettings("local", "tokyo", "/r", holes_after_s=-1).validate()
