"""The collector crashes at every change it makes, also in recovery, and the local works in between; zombies; teeth."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pytest
from waltz_spark.streams.collector import Collector
from waltz_spark.streams.collector_states import CollectorNode, CollectorState, Plan, decode_collector
from waltz_spark.streams.layout import join, marker_name, tmp_path

from tests.spark.streams.collecting import BEGIN, MINUTE, MakeCollector, Place
from tests.spark.streams.faults import FaultyFiles, Fuse
from waltz_ray.errors import NoNode, StorageError, VersionConflict

Between = Callable[[Place], None]


def nothing(place: Place) -> None:
    pass


def local(place: Place) -> None:
    """The local service publishes what is marked, and the log and the time go on."""
    assert place.publish(Fuse())
    place.later(1)


def power_cut(place: Place) -> None:
    place.files.lose_power()
    place.later(1)


def local_then_power_cut(place: Place) -> None:
    assert place.publish(Fuse())
    place.files.lose_power()


BETWEEN = (nothing, local, power_cut, local_then_power_cut)


def at_the_beginning(make: MakeCollector = Collector) -> Place:
    return Place(make=make)


def after_a_pause(make: MakeCollector = Collector) -> Place:
    """One minute is published; then come two without a collector, and one with records."""
    place = Place(make=make, first=BEGIN.replace(second=0) - MINUTE)
    assert place.collect(Fuse())
    assert place.publish(Fuse())
    place.later(3)
    return place


STARTS = (at_the_beginning, after_a_pause)


def crash(start: Place, at: int, middle: bool = False) -> tuple[Place, bool]:
    """A copy in which the collector has crashed at its change ``at``; whether it came as far."""
    place = start.copied()
    return place, not place.collect(Fuse(at, middle))


def found_by_crashes(start: Place, between: Between) -> set[str]:
    at, crashed, problems = 0, True, set[str]()
    while crashed:
        place, crashed = crash(start, at)
        between(place)
        problems |= set(place.problems())
        at += 1
    return problems


@pytest.mark.parametrize("begin", STARTS)
@pytest.mark.parametrize("between", BETWEEN)
def test_a_crash_at_every_change(begin: Callable[[], Place], between: Between) -> None:
    start = begin()
    at, crashed = 0, True
    while crashed:
        for middle in (False, True):
            place, crashed = crash(start, at, middle)
            between(place)
            assert place.problems() == [], f"crashed at change {at}, middle={middle}"
        at += 1
    assert at > 20


@pytest.mark.parametrize(
    "between", [nothing, *(pytest.param(one, marks=pytest.mark.long) for one in (local, power_cut))]
)
def test_a_second_crash_at_every_change_of_the_recovery(between: Between) -> None:
    start = after_a_pause()
    at, crashed, cases = 0, True, 0
    while crashed:
        place, crashed = crash(start, at, middle=True)
        between(place)
        again, crashed_again = 0, crashed
        while crashed_again:
            twice, crashed_again = crash(place, again, middle=bool((at + again) % 2))
            between(twice)
            assert twice.problems() == [], f"crashed at change {at}, and at {again} of the next run"
            again += 1
            cases += 1
        at += 1
    assert cases > 300


def after_zombie(start: Place, at: int, successor: Fuse) -> tuple[list[str], bool]:
    """What does not hold when the collector slept before change ``at`` while a successor and the local worked."""
    place = start.copied()
    slept = False

    def sleep() -> None:
        nonlocal slept
        slept = True
        for session_id in list(place.server._live_sessions):
            place.server.expire(session_id)
        place.collect(successor)
        assert place.publish(Fuse())

    try:
        place.collect(Fuse(at, strike=sleep))
    except (VersionConflict, StorageError):
        assert slept, "an error without a reason"
    return place.problems(), slept


@pytest.mark.parametrize("begin", STARTS)
def test_a_zombie_changes_nothing(begin: Callable[[], Place]) -> None:
    start = begin()
    at, slept = 0, True
    while slept:
        problems, slept = after_zombie(start, at, Fuse())
        assert problems == [], f"slept before change {at}"
        at += 1
    assert at > 20


@pytest.mark.long
def test_a_zombie_wakes_up_after_its_successor_crashed() -> None:
    start = after_a_pause()
    at, slept = 0, True
    while slept:
        crash_at, crashed = 0, True
        while crashed:
            successor = Fuse(crash_at, middle=bool(at % 2))
            problems, slept = after_zombie(start, at, successor)
            assert problems == [], f"slept before change {at}, its successor crashed at {crash_at}"
            crashed = successor.blown
            crash_at += 1
        at += 1
    assert at > 20


def test_a_person_has_emptied_the_temporary_directory() -> None:
    """The marker that waited there is written again, if the minute was not marked; that of an empty minute is lost."""
    start = after_a_pause()
    at, crashed, again = 0, True, 0
    while crashed:
        place, crashed = crash(start, at)
        node = node_of(place)
        if node.state is CollectorState.FILED:
            place.files.delete(tmp_path("/x", "c1"))
            problems = [each for each in place.problems() if not each.startswith("minutes missing")]
            assert problems == [], f"crashed at change {at}"
            again += 1
        at += 1
    assert again > 3


def node_of(place: Place) -> CollectorNode:
    client = place.server.client()
    try:
        return decode_collector("c1", client.get("/databus/c1")[0])
    except NoNode:
        return CollectorNode()
    finally:
        client.close()


# ---- one rule broken at a time: each must be noticed


class NoPlan(Collector):
    """Nothing is written down before the files are."""

    def _write(self, node: CollectorNode) -> None:
        if node.plan is None:
            super()._write(node)
        self.node = node


class MarksAgain(Collector):
    """Recovery takes a marker that is not in ``data/`` for one that was never there."""

    def _prepared(self, plan: Plan, minute: datetime) -> str:
        found = super()._prepared(plan, minute)
        target = join(self._data, marker_name(minute))
        if found or self._files.exists(target):
            return found
        again = self.staged("again")
        self._files.write(again, [self._marker(plan, minute)])
        return again


class NoFence(Collector):
    """Older runs keep the directories they rename from."""

    def _fence(self) -> None:
        self._files.make_directories(tmp_path(self._root, self._name, self._run))

    def _clean(self) -> None:
        pass


def test_no_plan_before_writing_is_caught() -> None:
    problems = found_by_crashes(after_a_pause(NoPlan), local)
    assert any("left in data/" in problem for problem in problems), problems
    assert any("twice ['" in problem for problem in problems), problems


def test_a_marker_written_again_is_caught() -> None:
    problems = found_by_crashes(after_a_pause(MarksAgain), local)
    assert any("quarantined" in problem for problem in problems), problems


def test_no_fence_is_caught() -> None:
    start = after_a_pause(NoFence)
    at, slept, problems = 0, True, set[str]()
    while slept:
        found, slept = after_zombie(start, at, Fuse())
        problems |= {each for each in found if not each.startswith("left in tmp")}
        at += 1
    assert problems != set()


def test_no_sync_of_names_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FaultyFiles, "sync_directory", lambda self, path: None)
    assert found_by_crashes(after_a_pause(), power_cut) != set()
