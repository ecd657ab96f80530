"""Rules of a kv partition's fold, broken: each must be noticed by the walks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.kv import fold, fold_clients, state
from waltz_ray.kv.model import LockHeld, Ownership, Release
from waltz_ray.kv.tables import FoldMarks, Table, Tables, changed_at

__all__ = ["MUTATIONS"]

Patch = pytest.MonkeyPatch


def tombstones_are_not_kept(patch: Patch) -> None:
    """What was deleted while a snapshot was written comes back with it."""
    break_rule(patch, fold, "keeps_tombstones", lambda marks: False)


def tombstones_are_not_looked_at(patch: Patch) -> None:
    """The same, in another place."""

    def is_news(stored: bytes | None, tombstone: bytes | None, version: int) -> bool:
        return stored is None or changed_at(stored) < version

    break_rule(patch, fold, "is_news", is_news)


def snapshots_overwrite_what_is_newer(patch: Patch) -> None:
    """A chunk is believed, however old what it says."""

    def is_news(stored: bytes | None, tombstone: bytes | None, version: int) -> bool:
        return tombstone is None or changed_at(tombstone) < version

    break_rule(patch, fold, "is_news", is_news)


def chunks_of_abandoned_snapshots_count(patch: Patch) -> None:
    """Whichever snapshot is open, they say how something was."""

    def chunk_counts(marks: FoldMarks, snapshot: int) -> bool:
        return marks.begun >= 0

    break_rule(patch, fold, "chunk_counts", chunk_counts)


def chunks_count_after_the_end(patch: Patch) -> None:
    """A late owner goes on with his snapshot when there is none."""

    def chunk_counts(marks: FoldMarks, snapshot: int) -> bool:
        return marks.begun in (-1, snapshot)

    break_rule(patch, fold, "chunk_counts", chunk_counts)


def one_section_is_taken_for_all(patch: Patch) -> None:
    """A fold that began in the midst of the log believes that it knows everything."""
    break_rule(patch, fold, "is_whole", lambda marks: True)


def the_log_is_given_up_from_the_newest_section_on(patch: Patch) -> None:
    """And the others with it."""
    for module in (fold, state):
        break_rule(patch, module, "needed_from", lambda marks: max(marks.ended))


def tombstones_are_kept_while_a_snapshot_is_open(patch: Patch) -> None:
    """Also by a fold that is not whole, between two of them."""
    break_rule(patch, fold, "keeps_tombstones", lambda marks: marks.begun >= 0)


def nothing_is_deferred(patch: Patch) -> None:
    """What is about an entry that has not come yet is about nothing."""

    def is_deferred(tables: Tables, table: Table, key: bytes, stored: bytes | None) -> bool:
        return False

    break_rule(patch, fold, "is_deferred", is_deferred)


def whatever_is_said_to_expire_expires(patch: Patch) -> None:
    """Also what was written since the owner looked."""
    break_rule(patch, fold, "has_expired", lambda stored, version: True)


def locks_are_freed_under_any_code(patch: Patch) -> None:
    """Also when somebody else has it."""

    def is_had_under(held: LockHeld, code: int) -> bool:
        return True

    break_rule(patch, fold, "is_had_under", is_had_under)


def anybody_releases(patch: Patch) -> None:
    """An owner who was deposed lets go of what is another's."""

    def lets_go(owner: Ownership, release: Release) -> bool:
        return True

    break_rule(patch, fold, "lets_go", lets_go)


def releases_of_an_earlier_epoch_count(patch: Patch) -> None:
    """The same actor has taken it again since."""

    def lets_go(owner: Ownership, release: Release) -> bool:
        return (owner.actor, owner.incarnation) == (release.actor, release.incarnation)

    break_rule(patch, fold, "lets_go", lets_go)


def requests_are_forgotten_one_too_early(patch: Patch) -> None:
    """The first that is not settled is taken for settled."""
    break_rule(patch, fold_clients, "is_settled", lambda sequence, settled: sequence <= settled)


def clients_are_forgotten_after_five_minutes(patch: Patch) -> None:
    """Before they have given up."""
    break_rule(patch, fold_clients, "is_forgotten", lambda minute, now_minute: minute + 5 < now_minute)


def clients_are_never_forgotten(patch: Patch) -> None:
    """What they have not settled stays for ever."""
    break_rule(patch, fold_clients, "is_forgotten", lambda minute, now_minute: False)


MUTATIONS: list[Callable[[Patch], None]] = [
    tombstones_are_not_kept,
    tombstones_are_not_looked_at,
    snapshots_overwrite_what_is_newer,
    chunks_of_abandoned_snapshots_count,
    chunks_count_after_the_end,
    one_section_is_taken_for_all,
    the_log_is_given_up_from_the_newest_section_on,
    tombstones_are_kept_while_a_snapshot_is_open,
    nothing_is_deferred,
    whatever_is_said_to_expire_expires,
    locks_are_freed_under_any_code,
    anybody_releases,
    releases_of_an_earlier_epoch_count,
    requests_are_forgotten_one_too_early,
    clients_are_forgotten_after_five_minutes,
    clients_are_never_forgotten,
]
