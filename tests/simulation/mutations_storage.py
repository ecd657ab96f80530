"""Rules of the storage replicas, broken (see ``mutations.py``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.simulation.disk_threads import GatedDisk
from tests.simulation.replica import DIRECTORY, SimReplica
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.errors import ControlFileMissing
from waltz_ray.protocol.messages.replica import (
    Appended,
    Open,
    StateReply,
)
from waltz_ray.protocol.records import RECORD_HEADER_BYTES, RECORD_OVERHEAD_BYTES
from waltz_ray.storage import layout, reading, replica_service, store
from waltz_ray.storage.control_file import ControlEntry, ControlFile
from waltz_ray.storage.disk import DurableDisk
from waltz_ray.storage.journal import Journal
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.replica_service import ReplicaService
from waltz_ray.storage.segment import ActiveSegment
from waltz_ray.storage.store import ReplicaStore

__all__ = [
    "acknowledge_before_sync",
    "damaged_records_are_served",
    "empty_disk_is_taken_for_a_new_one",
    "fence_is_forgotten_at_restart",
    "fence_is_not_checked",
    "journal_is_not_replayed",
    "journal_is_used_again_too_early",
    "journal_survives_a_cut",
    "old_connections_may_change_the_log",
    "page_cache_is_trusted_after_a_failed_sync",
    "sync_errors_are_ignored",
    "torn_tail_is_not_cut",
    "cut_in_memory_only",
    "votes_are_not_made_durable",
]

Patch = pytest.MonkeyPatch


def acknowledge_before_sync(patch: Patch) -> None:
    def acknowledge(self: Any) -> None:
        self.replies += [
            Appended(partition_id, session_id, written.last_id)
            for (partition_id, session_id), written in self._written.items()
        ]
        self._written = {}

    patch.setattr(replica_service._Turn, "_acknowledge", acknowledge)


def fence_is_forgotten_at_restart(patch: Patch) -> None:
    """A fence is only kept in memory until some mark is written."""

    def write(self: ControlFile, partition_id: int, entry: ControlEntry) -> None:
        old = self.entry(partition_id)
        if old.session_id >= 0 and entry == old._replace(session_id=entry.session_id):
            self._entries[partition_id] = entry
        else:
            original(self, partition_id, entry)

    original = ControlFile.write
    patch.setattr(ControlFile, "write", write)


def fence_is_not_checked(patch: Patch) -> None:
    def check_session(self: PartitionLog, session_id: int) -> None:
        """Any session may change the log."""

    def check_request(log: PartitionLog, request: Any) -> None:
        """Any session may ask."""

    def check_change(self: ReplicaService, log: PartitionLog, request: Any, connection: object) -> None:
        """Any session may change the log, over any connection."""

    patch.setattr(PartitionLog, "_check_session", check_session)
    patch.setattr(replica_service, "_check_session", check_request)
    patch.setattr(ReplicaService, "_check_change", check_change)


def old_connections_may_change_the_log(patch: Patch) -> None:
    def check_change(self: ReplicaService, log: PartitionLog, request: Any, connection: object) -> None:
        replica_service._check_session(log, request)

    patch.setattr(ReplicaService, "_check_change", check_change)


def sync_errors_are_ignored(patch: Patch) -> None:
    def fdatasync(self: DurableDisk, handle: int, path: str) -> None:
        self.check()
        try:
            self.disk.fdatasync(handle)
        except OSError:
            return

    patch.setattr(DurableDisk, "fdatasync", fdatasync)


def page_cache_is_trusted_after_a_failed_sync(patch: Patch) -> None:
    """What a start reads counts as durable, and is not written again."""

    def find_records(self: ActiveSegment, durable_id: int, stop_id: int | None) -> str | None:
        reason = original(self, durable_id, stop_id)
        self._unproven = self.end
        return reason

    original = ActiveSegment._find_records
    patch.setattr(ActiveSegment, "_find_records", find_records)


def torn_tail_is_not_cut(patch: Patch) -> None:
    """A record whose header looks right is taken although its checksum is wrong."""

    def check_record(*arguments: Any) -> tuple[str | None, int]:
        reason, length = original(*arguments)
        window, _, _, offset, file_size, _ = arguments
        if reason is not None and "checksum" in reason:
            head = window.bytes_at(offset, RECORD_HEADER_BYTES)
            length = int.from_bytes(head[28:32], "big") + RECORD_OVERHEAD_BYTES
            reason = None if offset + length <= file_size else reason
        return reason, length

    original = layout._check_record
    patch.setattr(layout, "_check_record", check_record)
    patch.setattr(reading, "first_bad_record", lambda batch: -1)


def damaged_records_are_served(patch: Patch) -> None:
    patch.setattr(reading, "first_bad_record", lambda batch: -1)


def empty_disk_is_taken_for_a_new_one(patch: Patch) -> None:
    def open_store(self: SimReplica, cluster: ClusterStore) -> ReplicaStore:
        try:
            return original(self, cluster)
        except ControlFileMissing:
            info = cluster.info()
            disk = GatedDisk(self.disk, self.threads)
            return ReplicaStore.create(disk, DIRECTORY, info.cluster_key, info.partitions, self.config)

    def open_session(replica_store: ReplicaStore, log: PartitionLog, request: Open) -> StateReply:
        return original_open(replica_store, log, replace(request, joined_session_id=-1))

    original, original_open = SimReplica._open, replica_service._open
    patch.setattr(SimReplica, "_open", open_store)
    patch.setattr(replica_service, "_open", open_session)


def votes_are_not_made_durable(patch: Patch) -> None:
    """A session is accepted while what the vote says may still be lost."""

    def open_session(self: PartitionLog, session_id: int) -> int:
        with pytest.MonkeyPatch.context() as while_opening:
            while_opening.setattr(self, "_sync_here", lambda: None)
            return original(self, session_id)

    original = PartitionLog.open_session
    patch.setattr(PartitionLog, "open_session", open_session)


def cut_in_memory_only(patch: Patch) -> None:
    """The log is said to end earlier, and the files keep what was to be cut."""

    def truncate(self: PartitionLog, session_id: int, last_id: int) -> None:
        if self.damaged is not None or session_id != self.session_id or last_id >= self.last_id:
            original(self, session_id, last_id)
        else:
            self.last_id = self.synced_id = last_id

    original = PartitionLog.truncate
    patch.setattr(PartitionLog, "truncate", truncate)


def journal_is_not_replayed(patch: Patch) -> None:
    patch.setattr(store, "replay", lambda *arguments: 0)


def journal_survives_a_cut(patch: Patch) -> None:
    patch.setattr(Journal, "forget", lambda self, partition_id: None)


def journal_is_used_again_too_early(patch: Patch) -> None:
    """Before the segments that its entries stand in for are durable."""
    patch.setattr(Journal, "_flush_segment", lambda self, path: None)
