"""Rules of the key/value layer, broken (see ``mutations.py``). Only seeds with the bit ``KV`` notice."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest

from tests.kv.mutations_kv import tombstones_are_not_kept
from tests.simulation.break_rule import break_rule
from waltz_ray.client.append_fates import AppendFates
from waltz_ray.kv import fold, fold_clients, keeper, lines, rules
from waltz_ray.kv.lines import Line
from waltz_ray.kv.model import Record
from waltz_ray.kv.orders import Orders
from waltz_ray.kv.routing import Unit
from waltz_ray.kv.serving.space_log import SpaceLog
from waltz_ray.protocol import ownership_rules

__all__ = [
    "deadlines_come_at_once",
    "expected_versions_are_not_compared",
    "finer_units_are_taken_without_the_coarser",
    "leases_have_no_margin",
    "leases_never_end",
    "lock_codes_do_not_rise",
    "locks_are_given_to_everybody",
    "repeated_writes_are_not_recognised",
    "refusals_are_told_by_anybody",
    "refusals_of_repeated_writes_are_not_kept",
    "requests_are_forgotten_at_once",
    "settled_writes_are_done_again",
    "snapshots_overwrite_what_is_newer",
    "tombstones_are_not_kept",
    "what_has_expired_is_gone_by_the_clock_alone",
    "what_has_no_room_is_forgotten",
    "what_is_not_folded_yet_is_forgotten",
    "writes_are_acknowledged_before_they_are_committed",
    "writes_do_not_rest_on_their_unit",
    "writes_of_one_item_do_not_wait_for_each_other",
]

Patch = pytest.MonkeyPatch


def leases_never_end(patch: Patch) -> None:
    """Whoever once had a lease reads for ever."""
    break_rule(patch, ownership_rules, "lease_ends", lambda sent_at_s, session_s, margin_s: math.inf)


def what_has_expired_is_gone_by_the_clock_alone(patch: Patch) -> None:
    """Also before the log says so: the next owner's clock may be behind."""
    break_rule(patch, rules, "is_to_be_said", lambda item, now_ms: False)


def writes_are_acknowledged_before_they_are_committed(patch: Patch) -> None:
    """As soon as they have been sent."""

    def append(
        self: SpaceLog,
        partition: int,
        record: Record,
        mark: int,
        fates: AppendFates,
        read: Sequence[Unit] = (),
        write: Sequence[Unit] = (),
    ) -> None:
        if write:
            original(self, partition, record, mark, fates, read, write)
            return
        nobody = AppendFates(lambda version: None, lambda conflict: None, lambda reason: None)
        original(self, partition, record, mark, nobody, read, write)
        asyncio.get_running_loop().call_soon(fates.set_result, mark + 1)

    original = SpaceLog.append
    break_rule(patch, SpaceLog, "append", append)


def writes_of_one_item_do_not_wait_for_each_other(patch: Patch) -> None:
    """A write is decided by what is there without what is on its way."""

    def nothing(self: Line) -> None:
        return None

    def ignored(self: Line, write: Any) -> None:
        pass

    break_rule(patch, Line, "flying", property(nothing, ignored))
    break_rule(patch, Line, "idle", property(lambda self: False))  # it is not forgotten meanwhile


def what_is_not_folded_yet_is_forgotten(patch: Patch) -> None:
    """Only what the feed has brought is known."""
    break_rule(patch, Line, "committed", lambda self, record, version: None)


def repeated_writes_are_not_recognised(patch: Patch) -> None:
    """Each is done again."""
    break_rule(patch, Line, "request", lambda self, client, sequence: None)


def requests_are_forgotten_at_once(patch: Patch) -> None:
    """As if every client had every answer."""
    break_rule(patch, fold_clients, "is_settled", lambda sequence, settled: True)


def expected_versions_are_not_compared(patch: Patch) -> None:
    break_rule(patch, rules, "expected", lambda op, version: True)


def locks_are_given_to_everybody(patch: Patch) -> None:
    break_rule(patch, rules, "is_free", lambda lock, now_ms: True)


def lock_codes_do_not_rise(patch: Patch) -> None:
    """They are chance alone."""
    for module in (lines, keeper):
        break_rule(patch, module, "lock_code", lambda version, random: 1 + (random & 0xFFFF))


def deadlines_come_at_once(patch: Patch) -> None:
    """What may ever expire has expired."""
    break_rule(patch, rules, "is_over", lambda deadline_ms, now_ms: deadline_ms > 0)


def snapshots_overwrite_what_is_newer(patch: Patch) -> None:
    break_rule(patch, fold, "is_news", lambda stored, tombstone, version: True)


def refusals_are_told_by_anybody(patch: Patch) -> None:
    """Also by an actor that has lost the bucket and does not know it."""
    break_rule(patch, keeper, "reveals", lambda outcome: False)


def refusals_of_repeated_writes_are_not_kept(patch: Patch) -> None:
    """A copy that was held up is done when its client has long been told that it was not."""
    break_rule(patch, keeper, "must_be_kept", lambda outcome, request, repeated, settled: False)


def leases_have_no_margin(patch: Patch) -> None:
    """As if every clock went like ZooKeeper's."""
    break_rule(patch, ownership_rules, "lease_ends", lambda sent_at_s, session_s, margin_s: sent_at_s + session_s)


def writes_do_not_rest_on_their_unit(patch: Patch) -> None:
    """Nothing is appended under a read lock: whoever believes to own a unit writes."""

    def append(
        self: SpaceLog,
        partition: int,
        record: Record,
        mark: int,
        fates: AppendFates,
        read: Sequence[Unit] = (),
        write: Sequence[Unit] = (),
    ) -> None:
        original(self, partition, record, mark, fates, (), write)

    original = SpaceLog.append
    break_rule(patch, SpaceLog, "append", append)


def finer_units_are_taken_without_the_coarser(patch: Patch) -> None:
    """Whoever has the coarse one writes on under its lock."""
    break_rule(patch, ownership_rules, "locked_with", lambda splitting, unit, claimed: ())


def settled_writes_are_done_again(patch: Patch) -> None:
    """A copy that arrives when its client has gone on."""
    break_rule(patch, rules, "is_stale", lambda request, settled: False)


def what_has_no_room_is_forgotten(patch: Patch) -> None:
    """Nobody hears of it again."""
    break_rule(patch, Orders, "decide_again", lambda self, partition: None)
