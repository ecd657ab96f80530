"""Rules of topics, and of the order of appends on which they rest, broken (see ``mutations.py``). Only seeds with the
bit ``TOPICS`` notice."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict

import numpy as np
import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.client import outbox
from waltz_ray.protocol import mounting_rules, ownership_rules
from waltz_ray.protocol.ownership import OwnershipMachine
from waltz_ray.protocol.partition import intake
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.protocol.retained import joined
from waltz_ray.topics import delivery_rules
from waltz_ray.topics.client import held_partition
from waltz_ray.topics.client.held_partition import HeldPartition
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.groups import rules as group_rules
from waltz_ray.topics.serving import batch_reading, offsets, partition_fold, topic_log
from waltz_ray.topics.serving.partition_fold import PartitionFold

__all__ = [
    "anybody_may_confirm",
    "appends_go_on_before_all_refusals_are_known",
    "batches_of_an_older_lease_are_confirmed",
    "confirms_are_answered_and_not_stored",
    "groups_begin_at_the_end",
    "leases_of_consumers_never_end",
    "masters_begin_with_the_same_numbers",
    "messages_rest_on_no_lock",
    "offsets_are_stored_by_whoever_once_took_them",
    "offsets_are_taken_by_older_owners",
    "older_tables_take_slots",
    "owners_are_not_folded",
    "owners_are_told_one_by_one",
    "partitions_are_granted_before_they_are_free",
    "partitions_are_left_while_they_are_taken",
    "refused_appends_go_to_the_end",
    "requests_of_given_up_connections_are_done",
    "what_came_before_a_registration_is_confirmed",
    "what_follows_a_refused_append_is_taken",
    "what_is_not_consumed_counts_as_consumed",
    "what_was_remembered_counts_whoever_had_it",
    "wanted_headers_are_wrong",
]

Patch = pytest.MonkeyPatch

_LATE_S = 3.0


# ---- slots


def messages_rest_on_no_lock(patch: Patch) -> None:
    """Whoever believes to own a slot appends."""
    numbers = itertools.count(1)
    break_rule(patch, topic_log, "slot_lock", lambda slot: next(numbers))


def older_tables_take_slots(patch: Patch) -> None:
    """Who has read an old table takes what was given to somebody else since."""
    break_rule(patch, ownership_rules, "epoch_allows", lambda claim, actor, epoch: True)


def owners_are_not_folded(patch: Patch) -> None:
    """Nobody sees in the log who has a slot."""
    break_rule(patch, partition_fold, "ownership_in", lambda batch: iter(()))


def owners_are_told_one_by_one(patch: Patch) -> None:
    """Who hears of two owners at once acts on the first one, with the mark of both. That is rare, so he is slow."""
    fold, late = PartitionFold.fold, defaultdict[PartitionFold, list[RecordBatch]](list)

    def fold_late(self: PartitionFold, batch: RecordBatch) -> None:
        late[self].append(batch)
        if len(late[self]) == 1:
            asyncio.get_running_loop().call_later(_LATE_S, lambda: fold(self, joined(late.pop(self))))

    break_rule(patch, PartitionFold, "fold", fold_late)
    break_rule(patch, partition_fold, "news_in", lambda claims: claims)


def partitions_are_left_while_they_are_taken(patch: Patch) -> None:
    """An OWN comes into the log that nobody is there to release."""
    break_rule(patch, OwnershipMachine, "engaged", lambda self, unit: self.serving(unit))


# ---- where groups are


def offsets_are_stored_by_whoever_once_took_them(patch: Patch) -> None:
    """A slot's former owner moves the group."""
    break_rule(patch, offsets, "is_taken_last", lambda epoch, found: True)


def offsets_are_taken_by_older_owners(patch: Patch) -> None:
    break_rule(patch, offsets, "is_older_owner", lambda slot_epoch, found: False)


def what_was_remembered_counts_whoever_had_it(patch: Patch) -> None:
    """Somebody else has had the partition meanwhile, or an operator has set the group elsewhere."""
    break_rule(patch, delivery_rules, "memory_counts", lambda known_epoch, epoch: known_epoch is not None)


def groups_begin_at_the_end(patch: Patch) -> None:
    break_rule(patch, delivery_rules, "start_at", lambda read_status, asked, resumed, first, end: end)


# ---- deliveries


def anybody_may_confirm(patch: Patch) -> None:
    """Also who has lost the partition."""
    break_rule(patch, delivery_rules, "holder_code", lambda holder, consumer: TopicCode.OK)


def leases_of_consumers_never_end(patch: Patch) -> None:
    break_rule(patch, delivery_rules, "is_expired", lambda until_ms, now_ms: False)


def confirms_are_answered_and_not_stored(patch: Patch) -> None:
    break_rule(patch, delivery_rules, "has_to_store", lambda told, confirmed, stored, skipped: False)


def what_came_before_a_registration_is_confirmed(patch: Patch) -> None:
    """Who has registered again is told that the batch of before is confirmed, which comes again."""
    break_rule(patch, delivery_rules, "may_confirm", lambda delivered, term: True)


def what_is_not_consumed_counts_as_consumed(patch: Patch) -> None:
    """Who lets go of a partition, or asks for a batch again, has done with it."""
    break_rule(patch, delivery_rules, "says_consumed", lambda request: True)


def requests_of_given_up_connections_are_done(patch: Patch) -> None:
    break_rule(patch, delivery_rules, "is_present", lambda connection, newest: True)


# ---- masters


def partitions_are_granted_before_they_are_free(patch: Patch) -> None:
    break_rule(patch, group_rules, "may_be_granted", lambda owner, leaving: True)


def masters_begin_with_the_same_numbers(patch: Patch) -> None:
    break_rule(patch, group_rules, "first_id", lambda epoch: 0)


# ---- native clients


def batches_of_an_older_lease_are_confirmed(patch: Patch) -> None:
    """What the operator wanted to have again is passed over."""
    break_rule(patch, HeldPartition, "gave", lambda self, batch: True)


def wanted_headers_are_wrong(patch: Patch) -> None:
    """A filter passes over messages."""
    for module in (held_partition, batch_reading):
        break_rule(patch, module, "headers_of_types", lambda types: np.array([7], np.int32))


# ---- the order of appends


def what_follows_a_refused_append_is_taken(patch: Patch) -> None:
    break_rule(patch, intake, "is_unaware", lambda refused_end, batch: False)


def appends_go_on_before_all_refusals_are_known(patch: Patch) -> None:
    break_rule(patch, mounting_rules, "waits_for_fates", lambda pending: False)


def refused_appends_go_to_the_end(patch: Patch) -> None:
    """Those that are sent again, among themselves: what was refused last goes first."""
    numbers = itertools.count()
    break_rule(patch, outbox, "order_of", lambda one: (next(numbers), 0))
