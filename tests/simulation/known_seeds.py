"""For each mutation a seed that notices it (`make simulate-mutations` finds them again)."""

from __future__ import annotations

__all__ = ["KNOWN_SEEDS"]

KNOWN_SEEDS: dict[str, int] = {
    "publish_before_copy": 0x6,
    "non_members_vote": 0x2,
    "non_members_are_not_cut": 0x23,
    "voters_are_truncated": 0x0,
    "shortest_vote": 0x5,
    "one_vote_too_few": 0x5,
    "unregistered_replicas_count": 0x93,
    "late_joiners_are_entered_nowhere": 0x15,
    "quorum_too_small": 0x11,
    "closing_mark_is_overwritten": 0x0,
    "damaged_replicas_vote": 0x6,
    "session_number_comes_again": 0x0,
    "record_is_written_without_comparing": 0x17,
    "ready_without_what_is_in_flight": 0x4,
    "mounts_are_not_confirmed": 0xA,
    "superseded_connections_are_accepted": 0x82,
    "hand_over_keeps_its_log": 0xA,
    "locks_are_not_updated": 0x0,
    "locks_are_forgotten_at_a_hand_over": 0x0,
    "feed_skips_a_batch": 0x8,
    "fates_before_the_quorum": 0x12,
    "older_pending_are_not_failed": 0x5,
    "fates_decided_at_a_lost_connection": 0x4,
    "own_mount_skips_what_is_pending": 0xC,
    "sequence_numbers_come_again": 0x0,
    "acknowledge_before_sync": 0x7,
    "fence_is_forgotten_at_restart": 0x2E,
    "fence_is_not_checked": 0xA,
    "old_connections_may_change_the_log": 0xB7,
    "sync_errors_are_ignored": 0x10,
    "torn_tail_is_not_cut": 0x3,
    "damaged_records_are_served": 0x3,
    "empty_disk_is_taken_for_a_new_one": 0x2E,
    "cut_in_memory_only": 0x15,
}
