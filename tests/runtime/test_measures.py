"""What is measured of appends on their way, on a clock that the test moves."""

from __future__ import annotations

import numpy as np
import pytest

from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.client import (
    AppendedBatch,
    LockFailureBatch,
    Mounted,
    Rejected,
    RejectionCode,
)
from waltz_ray.protocol.messages.original import MountState
from waltz_ray.protocol.partition.state import Stage
from waltz_ray.runtime.histogram import LATENCY_S, Histogram
from waltz_ray.runtime.measures import AppendStages, Measures

NUMBERS, IDS = np.arange(3, dtype=np.int32), np.arange(3, dtype=np.int64)


class Rig:
    def __init__(self) -> None:
        self.now = 100.0
        self.measures = Measures(lambda: self.now)
        self.stages = AppendStages(self.measures)

    def after(self, seconds: float) -> AppendStages:
        self.now += seconds
        return self.stages

    def turn(self, last_id: int, records: int = 1) -> None:
        """A turn with one batch, each part of it a millisecond long."""
        self.after(1).arrived()
        self.after(0.001).turn_began()
        self.after(0.001).sent(last_id, records, 100 * records)
        self.stages.turn_ended()

    def seen(self) -> dict[str, tuple[int, float]]:
        stages = self.measures.view().stages
        return {name: (view.count, round(view.total, 6)) for name, view in stages.items()}


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_each_stage_has_its_time(rig: Rig) -> None:
    rig.turn(last_id=9, records=10)
    rig.after(0.01).acknowledged(9)
    rig.after(0.01).acknowledged(9)
    rig.stages.committed(9, subscribers=1)
    rig.after(0.5).fed(9, 9)
    rig.after(1).acknowledged(9)
    assert rig.seen() == {
        "queue": (1, 0.001),
        "lock": (1, 0.001),
        "replicate": (3, 1.55),
        "commit": (1, 0.02),
        "feed": (1, 0.5),
    }
    view = rig.measures.view()
    assert (view.records, view.record_bytes, view.batch_records.total, view.batch_bytes.total) == (10, 1000, 10, 1000)


def test_a_commit_that_is_first_seen_by_its_feed_is_a_commit_then(rig: Rig) -> None:
    rig.turn(last_id=3)
    rig.after(0.02).told(AppendedBatch(0, 3, NUMBERS, IDS))
    assert (rig.seen()["commit"], rig.seen()["feed"]) == ((1, 0.02), (1, 0.0))


def test_who_reads_what_was_committed_without_him_is_not_measured(rig: Rig) -> None:
    rig.turn(last_id=3)
    rig.after(0.02).committed(3, subscribers=0)
    rig.after(500).fed(3, 3)
    assert rig.seen()["feed"] == (0, 0.0)


def test_copies_are_not_appends(rig: Rig) -> None:
    rig.stages.sent(5, 100, 1000)
    rig.after(1).acknowledged(5)
    assert rig.seen()["replicate"] == (0, 0.0)
    assert rig.measures.view().records == 0


def test_of_turns_within_a_millisecond_one_is_measured_and_all_are_counted(rig: Rig) -> None:
    rig.turn(last_id=0)
    for last_id in (1, 2, 3):
        rig.now = 101.0025 + last_id / 10_000  # the last asked for at 101.0
        rig.measures._last = 101.0025
        rig.stages.arrived()
        rig.stages.turn_began()
        rig.stages.sent(last_id, 1, 100)
        rig.stages.turn_ended()
    rig.stages.committed(3, 1)
    assert rig.seen()["commit"][0] == 1
    assert rig.measures.view().records == 4
    rig.turn(last_id=4)
    assert rig.seen()["queue"][0] == 2


def test_a_partition_that_goes_takes_its_numbers_along(rig: Rig) -> None:
    rig.stages.stage(Stage.READING)
    rig.turn(last_id=7)
    rig.stages.stage(Stage.IDLE)
    rig.after(100).committed(50, 1)
    assert rig.seen()["commit"] == (0, 0.0)


def test_a_recovery_lasts_from_the_first_look_until_the_session_is_open(rig: Rig) -> None:
    for stage in (Stage.READING, Stage.TAKING, Stage.OPENING, Stage.BACKOFF, Stage.READING, Stage.TAKING):
        rig.after(0.1).stage(stage)
    rig.after(0.1).stage(Stage.OPENING)
    rig.after(0.1).stage(Stage.OPEN)
    rig.after(9).stage(Stage.OPEN)
    rig.after(9).stage(Stage.READING)
    rig.after(1).stage(Stage.IDLE)
    assert (rig.measures.view().recovery.count, round(rig.measures.view().recovery.total, 6)) == (1, 0.7)


def test_refusals_are_counted_by_reason(rig: Rig) -> None:
    rig.stages.told(Rejected(0, 1, RejectionCode.QUEUE_FULL, NUMBERS, "full"))
    rig.stages.told(LockFailureBatch(0, NUMBERS, IDS))
    for state in (MountState.READY, MountState.TRIMMED):
        rig.stages.told(Mounted(ReqId(1, 1, 0, 0), state, 1, 0))
    view = rig.measures.view()
    assert (dict(view.refused), view.lock_failures) == ({"queue_full": 3, "mount_trimmed": 1}, 3)


def test_what_never_comes_is_not_remembered_for_ever(rig: Rig) -> None:
    for last_id in range(1000):
        rig.turn(last_id)
        rig.stages.committed(last_id, 1)
    rig.stages.acknowledged(10)
    rig.after(1).fed(10, 999)
    assert (rig.seen()["replicate"][0], rig.seen()["feed"][0]) == (0, 0)
    rig.stages.acknowledged(999)
    assert rig.seen()["replicate"][0] == 1


def test_a_histogram_counts_up_to_and_with_its_bounds() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 99.0):
        histogram.observe(value)
    view = histogram.view()
    assert (view.counts, view.count, view.total) == ((2, 2, 1), 5, 104.0)
    assert view.cumulative() == [("1.0", 2), ("2.0", 4), ("+Inf", 5)]
    assert list(LATENCY_S) == sorted(LATENCY_S)
