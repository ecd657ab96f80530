"""A crash at every change a service makes, with and without loss of power; a second one at every change of recovery."""

from __future__ import annotations

import pytest

from tests.spark.streams.faults import Fuse
from tests.spark.streams.staging import Stage, stage_before
from tests.spark.streams.world import CHAIN, DOCUMENT, MIXED, PARTS, Layouts


def consumer_of(name: str) -> str:
    return CHAIN[CHAIN.index(name) + 1]


def crash(stage: Stage, name: str, at: int, middle: bool, power: bool) -> tuple[Stage, bool]:
    """A copy of the stage in which ``name`` has crashed at its change ``at``; whether it came as far."""
    copied = stage.copied()
    ended = copied.run(name, Fuse(at, middle))
    if power:
        copied.lose_power()
    return copied, not ended


@pytest.mark.parametrize("name", CHAIN)  # the last is a mirror of a mirror, with nobody behind it
@pytest.mark.parametrize("power", [False, True], ids=["process", "power"])
def test_a_crash_at_every_change(name: str, power: bool) -> None:
    crash_at_every_change(name, power, PARTS)


@pytest.mark.parametrize(
    ("name", "power", "layouts"),
    [
        ("tokyo", False, DOCUMENT),
        ("tokyo", True, DOCUMENT),
        ("all", True, DOCUMENT),
        ("copy", True, DOCUMENT),
        ("all", True, MIXED),
        ("far", True, MIXED),
        ("copy", False, MIXED),
    ],
)
def test_a_crash_at_every_change_in_the_documents_layout(name: str, power: bool, layouts: Layouts) -> None:
    """Also in a chain in which every second service has the other layout."""
    crash_at_every_change(name, power, layouts)


def crash_at_every_change(name: str, power: bool, layouts: Layouts) -> None:
    start = stage_before(name, layouts=layouts)
    at = cases = 0
    while True:
        crashed = False
        for middle in (False, True):
            stage, crashed = crash(start, name, at, middle, power)
            # The consumer works between the crash and the recovery, or only after it.
            other = stage.copied()
            assert name == CHAIN[-1] or other.run(consumer_of(name), Fuse())
            for one in (stage, other):
                assert one.problems() == [], f"{name} crashed at its change {at}, middle={middle}"
                cases += 1
        if not crashed:
            break
        at += 1
    assert at > 20
    assert cases == 4 * (at + 1)


@pytest.mark.parametrize(
    ("name", "power"),
    [
        ("tokyo", True),
        ("all", False),
        ("far", True),
        ("copy", False),
        pytest.param("tokyo", False, marks=pytest.mark.long),
        pytest.param("all", True, marks=pytest.mark.long),
        pytest.param("far", False, marks=pytest.mark.long),
        pytest.param("copy", True, marks=pytest.mark.long),
    ],
)
def test_a_second_crash_at_every_change_of_the_recovery(name: str, power: bool) -> None:
    """``power``: of the second: what the first process had not synced is lost only then."""
    second_crash_at_every_change(name, power, PARTS)


@pytest.mark.parametrize(
    ("name", "power"),
    [
        ("tokyo", True),
        pytest.param("all", False, marks=pytest.mark.long),
        pytest.param("all", True, marks=pytest.mark.long),
        pytest.param("copy", True, marks=pytest.mark.long),
    ],
)
def test_a_second_crash_in_the_documents_layout(name: str, power: bool) -> None:
    second_crash_at_every_change(name, power, DOCUMENT)


def second_crash_at_every_change(name: str, power: bool, layouts: Layouts) -> None:
    start = stage_before(name, minutes=1, layouts=layouts)
    at, crashed, cases = 0, True, 0
    while crashed:
        stage, crashed = crash(start, name, at, True, power=False)
        if at % 2 and name != CHAIN[-1]:  # the consumer sees what the first crash left, or does not
            assert stage.run(consumer_of(name), Fuse())
        again, crashed_again = 0, crashed
        while crashed_again:
            twice, crashed_again = crash(stage, name, again, bool((at + again) % 2), power)
            assert twice.problems() == [], f"{name} crashed at {at}, and at {again} of the next run"
            again += 1
            cases += 1
        at += 1
    assert cases > 200
