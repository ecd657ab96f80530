"""Rules of a partition on its server, broken (see ``mutations.py``)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.protocol.ids import NO_TRANSACTION
from waltz_ray.protocol.locks import LockRequests, LockTable, OneByOne, Verdicts
from waltz_ray.protocol.partition import feed, machine, mounts, reign
from waltz_ray.protocol.partition.events import Effect
from waltz_ray.protocol.partition.feed import FeedHub, Subscriber
from waltz_ray.protocol.partition.intake import Intake
from waltz_ray.protocol.partition.mounts import Mounts
from waltz_ray.protocol.partition.reign import Reign
from waltz_ray.protocol.partition.state import Log
from waltz_ray.protocol.records import AppendBatch, RecordBatch

__all__ = [
    "hand_over_keeps_its_log",
    "locks_are_forgotten_at_a_hand_over",
    "locks_are_not_updated",
    "superseded_connections_are_accepted",
    "admissions_leave_before_what_is_in_flight",
    "checkpoints_come_too_often",
    "mounts_are_not_confirmed",
    "confirmation_round_is_never_begun_again",
    "ready_without_what_is_in_flight",
    "feed_skips_a_batch",
]

Patch = pytest.MonkeyPatch


# ---- the log ----------------------------------------------------------------------------------------------------


def hand_over_keeps_its_log(patch: Patch) -> None:
    break_rule(patch, Log, "is_up_to", lambda self, roster: True)


def locks_are_forgotten_at_a_hand_over(patch: Patch) -> None:
    break_rule(patch, reign, "locks_of_a_new_log", lambda config, start: LockTable(1000, 2, NO_TRANSACTION))


def checkpoints_come_too_often(patch: Patch) -> None:
    break_rule(patch, Reign, "checkpoint_is_due", lambda self, high_water_mark: high_water_mark % 8 == 0)


# ---- admission --------------------------------------------------------------------------------------------------


def locks_are_not_updated(patch: Patch) -> None:
    def admit(self: LockTable, requests: LockRequests, first_id: int) -> Verdicts:
        marks = self.marks.copy()
        verdicts = original(self, requests, first_id)
        self.marks = marks
        return verdicts

    def update(self: OneByOne, hashes: Iterable[int], transaction_id: int) -> None:
        """The table stays as it was."""

    original = LockTable.admit
    break_rule(patch, OneByOne, "update", update)
    break_rule(patch, LockTable, "admit", admit)


def superseded_connections_are_accepted(patch: Patch) -> None:
    def append(self: Intake, connection_id: int, batch: AppendBatch, newest: Subscriber | None) -> list[Effect]:
        return original(self, connection_id if newest is None else newest.connection_id, batch, newest)

    original = Intake.append
    break_rule(patch, Intake, "append", append)


def admissions_leave_before_what_is_in_flight(patch: Patch) -> None:
    """What a session tells leads to admissions before the rest of what it orders has been handed on."""
    break_rule(patch, machine, "orders_first", lambda effects: effects)


# ---- mounts and the feed ----------------------------------------------------------------------------------------


def mounts_are_not_confirmed(patch: Patch) -> None:
    break_rule(patch, mounts, "confirmations_needed", lambda session: 0)


def confirmation_round_is_never_begun_again(patch: Patch) -> None:
    """A round whose mounts have gone stays open, and every later mount waits for it."""
    break_rule(patch, Mounts, "end_round", lambda self: None)


def ready_without_what_is_in_flight(patch: Patch) -> None:
    def mount(self: FeedHub, subscriber: Subscriber) -> None:
        subscriber.mount_target = NO_TRANSACTION
        original(self, subscriber)

    original = FeedHub.mount
    break_rule(patch, FeedHub, "mount", mount)


def feed_skips_a_batch(patch: Patch) -> None:
    def receivers(group: list[Subscriber], batch: RecordBatch) -> list[Subscriber]:
        told = original(group, batch)
        if batch.first_id % 23 != 11 or batch.first_id in skipped:
            return told
        skipped.add(batch.first_id)
        for subscriber in told:
            subscriber.position = batch.last_id
        return []

    skipped: set[int] = set()
    original = feed.receivers
    break_rule(patch, feed, "receivers", receivers)
