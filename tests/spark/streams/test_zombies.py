"""A run is stopped at any change, another takes over and does everything, then the first one wakes up."""

from __future__ import annotations

import pytest

from tests.spark.streams.faults import Fuse
from tests.spark.streams.staging import Stage, stage_before
from tests.spark.streams.world import CHAIN, DOCUMENT
from waltz_ray.errors import StorageError, VersionConflict

__all__ = ["after_zombie"]


def after_zombie(start: Stage, name: str, at: int, successor: Fuse, consumer: bool) -> tuple[list[str], bool]:
    """What does not hold when ``name`` slept before its change ``at`` while others worked; whether it came as far."""
    stage = start.copied()
    slept = False

    def sleep() -> None:
        nonlocal slept
        slept = True
        for session_id in list(stage.server._live_sessions):
            stage.server.expire(session_id)
        stage.run(name, successor)
        if consumer:
            assert stage.run(CHAIN[CHAIN.index(name) + 1], Fuse())

    fuse = Fuse(at, strike=sleep)
    try:
        stage.run(name, fuse)
    except (VersionConflict, StorageError):
        assert slept, "an error without a reason"
    return stage.problems(), slept


@pytest.mark.parametrize("name", CHAIN[:3])
@pytest.mark.parametrize("consumer", [False, True], ids=["alone", "consumed"])
def test_a_zombie_changes_nothing(name: str, consumer: bool) -> None:
    start = stage_before(name)
    at, slept = 0, True
    while slept:
        problems, slept = after_zombie(start, name, at, Fuse(), consumer)
        assert problems == [], f"{name} slept before its change {at}"
        at += 1
    assert at > 40


@pytest.mark.parametrize("name", ["tokyo", "all"])
def test_a_zombie_changes_nothing_in_the_documents_layout(name: str) -> None:
    start = stage_before(name, layouts=DOCUMENT)
    at, slept = 0, True
    while slept:
        problems, slept = after_zombie(start, name, at, Fuse(), consumer=bool(at % 2))
        assert problems == [], f"{name} slept before its change {at}"
        at += 1
    assert at > 40


@pytest.mark.long
@pytest.mark.parametrize("name", CHAIN[:3])
def test_a_zombie_wakes_up_after_its_successor_crashed(name: str) -> None:
    start = stage_before(name, minutes=1)
    at, slept = 0, True
    while slept:
        crash_at, crashed = 0, True
        while crashed:
            successor = Fuse(crash_at, middle=bool(at % 2))
            problems, slept = after_zombie(start, name, at, successor, consumer=bool(crash_at % 2))
            assert problems == [], f"{name} slept before its change {at}, its successor crashed at {crash_at}"
            crashed = successor.blown
            crash_at += 1
        at += 1
    assert at > 20


@pytest.mark.long
def test_a_zombie_in_its_own_recovery_changes_nothing() -> None:
    start = stage_before("tokyo", minutes=1)
    crash_at, crashed = 0, True
    while crashed:
        stage = start.copied()
        crashed = not stage.run("tokyo", Fuse(crash_at, middle=True))
        at, slept = 0, True
        while slept:
            problems, slept = after_zombie(stage, "tokyo", at, Fuse(), consumer=bool(at % 2))
            assert problems == [], f"crashed at {crash_at}; the recovery slept before its change {at}"
            at += 1
        crash_at += 1
    assert crash_at > 20
