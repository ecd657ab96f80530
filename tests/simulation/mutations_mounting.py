"""Rules of one partition of a client, broken, that the simulation does not notice (see ``mutations.py``).

A cluster makes up for them: a server that is asked again answers again. Walks of ``Mounting`` alone, with a server that
is asked one thing at a time, do notice them (``tests/protocol/test_mounting.py``).
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.protocol import mounting_rules as rules
from waltz_ray.protocol.client_monitor import ClientMonitor
from waltz_ray.protocol.mounting import Mounting
from waltz_ray.protocol.mounting_types import FailAppends, LoseAppends

__all__ = [
    "the_rest_of_an_earlier_mount_fails_what_is_older",
    "answers_to_earlier_mounts_are_believed",
    "credit_of_earlier_mounts_is_kept",
    "a_mount_claims_all_credit",
    "moves_go_unnoticed",
    "what_became_of_appends_is_made_up",
    "what_is_gone_is_waited_for",
    "who_only_appends_is_given_up",
]

Patch = pytest.MonkeyPatch


def the_rest_of_an_earlier_mount_fails_what_is_older(patch: Patch) -> None:
    def committed(self: ClientMonitor[Any], wire: Any, transaction_ids: Any, gapless: bool = True) -> Any:
        return original(self, wire, transaction_ids)

    original = ClientMonitor.committed
    break_rule(patch, ClientMonitor, "committed", committed)


def answers_to_earlier_mounts_are_believed(patch: Patch) -> None:
    break_rule(patch, rules, "answers_newest_mount", lambda message, client_id, mount_number: True)


def credit_of_earlier_mounts_is_kept(patch: Patch) -> None:
    break_rule(patch, rules, "begins_newest_feed", lambda first_id, mount_mark: False)


def a_mount_claims_all_credit(patch: Patch) -> None:
    break_rule(patch, rules, "mount_credit_bytes", lambda limit_bytes, held_bytes: limit_bytes)


def moves_go_unnoticed(patch: Patch) -> None:
    break_rule(patch, rules, "has_moved", lambda mounted_at, location: False)


def what_became_of_appends_is_made_up(patch: Patch) -> None:
    """Appends whose fate was trimmed away are said not to be in the log."""

    def step(self: Mounting[Any], event: Any) -> Any:
        effects = original(self, event)
        return [FailAppends(each.pieces, "?") if isinstance(each, LoseAppends) else each for each in effects]

    original = Mounting.step
    break_rule(patch, Mounting, "step", step)


def what_is_gone_is_waited_for(patch: Patch) -> None:
    """Who wants the earliest there is, or has had what is gone meanwhile, is given up."""
    break_rule(patch, rules, "may_begin_further_on", lambda earliest, lowest_mark, position: False)


def who_only_appends_is_given_up(patch: Patch) -> None:
    break_rule(patch, rules, "needs_no_past", lambda mode: False)
