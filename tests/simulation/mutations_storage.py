"""Rules of the storage replicas, broken (see ``mutations.py``)."""

from __future__ import annotations

import pytest

from tests.simulation.break_rule import break_rule
from tests.simulation.disk_threads import GatedDisk
from tests.simulation.replica import DIRECTORY, SimReplica
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.errors import ControlFileMissing
from waltz_ray.storage import control_file, layout, log_rules, order_rules, reading, store
from waltz_ray.storage.control_file import ControlEntry
from waltz_ray.storage.disk import DurableDisk
from waltz_ray.storage.journal import Journal
from waltz_ray.storage.partition_log import PartitionLog
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
    break_rule(patch, ReplicaStore, "sync", lambda self, partition_ids: None)
    break_rule(patch, PartitionLog, "is_durable", lambda *arguments: True)


def fence_is_forgotten_at_restart(patch: Patch) -> None:
    """A fence is only kept in memory until some mark is written."""

    def slots_to_write(old: ControlEntry, new: ControlEntry, current: int) -> tuple[int, ...]:
        only_the_fence = old.session_id >= 0 and new == ControlEntry(new.session_id, *old[1:])
        return () if only_the_fence else original(old, new, current)

    original = control_file.slots_to_write
    break_rule(patch, control_file, "slots_to_write", slots_to_write)


def fence_is_not_checked(patch: Patch) -> None:
    """Any session may change the log, over any connection."""
    break_rule(patch, log_rules, "check_session", lambda log, session_id: None)
    break_rule(patch, order_rules, "check_session", lambda log, request: None)
    old_connections_may_change_the_log(patch)


def old_connections_may_change_the_log(patch: Patch) -> None:
    break_rule(patch, order_rules, "check_connection", lambda *arguments: None)


def sync_errors_are_ignored(patch: Patch) -> None:
    def fdatasync(self: DurableDisk, handle: int, path: str) -> None:
        self.check()
        try:
            self.disk.fdatasync(handle)
        except OSError:
            return

    break_rule(patch, DurableDisk, "fdatasync", fdatasync)


def page_cache_is_trusted_after_a_failed_sync(patch: Patch) -> None:
    """What a start reads counts as durable, and is not written again."""
    break_rule(patch, log_rules, "unproven", lambda indexed_end, end, index_is_ours: range(0))


def torn_tail_is_not_cut(patch: Patch) -> None:
    """A record whose header looks right is taken although its checksum is wrong."""
    break_rule(patch, layout, "is_whole", lambda record: True)
    damaged_records_are_served(patch)


def damaged_records_are_served(patch: Patch) -> None:
    break_rule(patch, reading, "first_bad_record", lambda batch: -1)


def empty_disk_is_taken_for_a_new_one(patch: Patch) -> None:
    def open_store(self: SimReplica, cluster: ClusterStore) -> ReplicaStore:
        try:
            return original(self, cluster)
        except ControlFileMissing:
            info = cluster.info()
            disk = GatedDisk(self.disk, self.threads)
            return ReplicaStore.create(disk, DIRECTORY, info.cluster_key, info.partitions, self.config)

    original = SimReplica.open_store
    break_rule(patch, SimReplica, "open_store", open_store)
    break_rule(patch, order_rules, "check_files", lambda log, request, directory: None)


def votes_are_not_made_durable(patch: Patch) -> None:
    """A session is accepted while what the vote says may still be lost."""
    break_rule(patch, PartitionLog, "prove_vote", lambda self: None)


def cut_in_memory_only(patch: Patch) -> None:
    """The log is said to end earlier, and the files keep what was to be cut."""

    def truncate(self: PartitionLog, session_id: int, last_id: int) -> None:
        if self.damaged is not None or session_id != self.session_id or last_id >= self.last_id:
            original(self, session_id, last_id)
        else:
            self.last_id = self.synced_id = last_id

    original = PartitionLog.truncate
    break_rule(patch, PartitionLog, "truncate", truncate)


def journal_is_not_replayed(patch: Patch) -> None:
    break_rule(patch, store, "replay", lambda *arguments: 0)


def journal_survives_a_cut(patch: Patch) -> None:
    break_rule(patch, Journal, "forget", lambda self, partition_id: None)


def journal_is_used_again_too_early(patch: Patch) -> None:
    """Before the segments that its entries stand in for are durable."""
    break_rule(patch, Journal, "flush_segment", lambda self, path: None)
