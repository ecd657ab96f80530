"""Rules of the storage replicas' threads, broken: what may go on at once, and what waits (see ``mutations.py``)."""

from __future__ import annotations

from typing import Any

import pytest

from waltz_ray.errors import Corruption
from waltz_ray.storage import replica_service
from waltz_ray.storage.journal import Journal
from waltz_ray.storage.partition_log import PartitionLog, PendingSync

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

    def sync(self: Any, file: Any) -> None:
        wanted = (file.number, file.end)
        while self._durable < wanted:
            if self._syncing:
                self._changed.wait()
                self._disk.check()
                continue
            self._syncing = True
            self._changed.release()
            try:
                self._disk.fdatasync(file.handle, file.path)
            finally:
                self._changed.acquire()
                self._syncing = False
                self._changed.notify_all()
            self._durable = max(self._durable, (file.number, file.end))

    patch.setattr(Journal, "_sync", sync)


def segment_sync_covers_what_came_during_it(patch: Patch) -> None:
    def synced(self: PartitionLog, pending: PendingSync) -> None:
        pending.last_id = pending.segment.last_id
        original(self, pending)

    original = PartitionLog.synced
    patch.setattr(PartitionLog, "synced", synced)


def acknowledged_though_cut_meanwhile(patch: Patch) -> None:
    """What has been written is acknowledged, whatever became of it before it was synced."""
    patch.setattr(PartitionLog, "is_durable", lambda *arguments: True)


def roll_does_not_wait_for_a_running_sync(patch: Patch) -> None:
    patch.setattr(PartitionLog, "_may_roll", lambda self, batch: False)


def orders_are_not_guarded(patch: Patch) -> None:
    """Between the look at who may change a log and the change another connection may open it."""

    def change(self: Any, log: PartitionLog, request: Any, connection: object, action: Any) -> Any:
        self._check_change(log, request, connection)
        with replica_service._refusing:
            return action()

    patch.setattr(replica_service.ReplicaService, "change", change)


def reads_during_a_cut_are_not_started_over(patch: Patch) -> None:
    """Files that were cut under a reader are taken for damage."""

    def explain(self: Any, damage: Corruption, epoch: int, *more: Any) -> None:
        original(self, damage, self._epoch, *more)

    original = PartitionLog._explain
    patch.setattr(PartitionLog, "_explain", explain)


def cut_does_not_wait_for_a_running_sync(patch: Patch) -> None:
    def quiet(self: Any) -> Any:
        return self._lock

    patch.setattr(PartitionLog, "_quiet", quiet)
