"""Rules of the storage replicas' threads, broken: what may go on at once, and what waits (see ``mutations.py``)."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.storage import log_rules
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.pending_sync import PendingSync
from waltz_ray.storage.replica_service import ReplicaService

__all__ = [
    "acknowledged_though_cut_meanwhile",
    "cut_does_not_wait_for_a_running_sync",
    "journal_sync_covers_what_came_during_it",
    "orders_are_not_guarded",
    "reads_during_a_cut_are_not_started_over",
    "roll_does_not_wait_for_a_running_sync",
    "segment_sync_covers_what_came_during_it",
]

Patch = pytest.MonkeyPatch


def journal_sync_covers_what_came_during_it(patch: Patch) -> None:
    """What is durable is looked at after the sync, when others have written behind what it covers."""

    break_rule(patch, log_rules, "proven_by_sync", lambda begun, ended: ended)


def segment_sync_covers_what_came_during_it(patch: Patch) -> None:
    def synced(self: PartitionLog, pending: PendingSync) -> None:
        pending.last_id = pending.segment.last_id
        original(self, pending)

    original = PartitionLog.synced
    break_rule(patch, PartitionLog, "synced", synced)


def acknowledged_though_cut_meanwhile(patch: Patch) -> None:
    """What has been written is acknowledged, whatever became of it before it was synced."""
    break_rule(patch, PartitionLog, "is_durable", lambda *arguments: True)


def roll_does_not_wait_for_a_running_sync(patch: Patch) -> None:
    break_rule(patch, log_rules, "must_wait_for_sync", lambda end, size_bytes, limit_bytes: False)


def orders_are_not_guarded(patch: Patch) -> None:
    """Between the look at who may change a log and the change another connection may open it."""
    break_rule(patch, ReplicaService, "guard", lambda self, partition_id: nullcontext())


def reads_during_a_cut_are_not_started_over(patch: Patch) -> None:
    """Files that were cut under a reader are taken for damage."""
    break_rule(patch, PartitionLog, "was_cut_since", lambda self, epoch: False)


def cut_does_not_wait_for_a_running_sync(patch: Patch) -> None:
    break_rule(patch, PartitionLog, "wait_to_change_files", lambda self: None)
