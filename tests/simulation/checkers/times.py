"""Times: whatever the clocks did, every replica tells when its records were appended, and what it tells rises."""

from __future__ import annotations

from itertools import pairwise

from tests.simulation.checkers.outcome import Outcome
from tests.simulation.history import Violation
from waltz_ray.storage.time_lookup import TimeLookup

__all__ = ["check"]

_AHEAD_MS = 60_000 + 999
"""A replica believes a server that is a minute ahead, and after a start has forgotten when in a second it was."""


def check(outcome: Outcome) -> None:
    """All records have a time; it does not fall, and is not in the future; questions about times agree with it."""
    for partition_id, replicas in enumerate(outcome.times):
        for replica_id, lookup in replicas.items():
            count = len(outcome.logs[partition_id][replica_id])
            problem = _problem(lookup, count, outcome.now_ms + _AHEAD_MS)
            if problem:
                raise Violation("times", f"partition {partition_id}, replica {replica_id}: {problem}")


def _problem(lookup: TimeLookup, count: int, latest_ms: int) -> str | None:
    first_id = lookup._segments[0] if lookup._segments else 0
    end_id, marks = lookup.marks(first_id, count)
    if count > first_id and (end_id != count or not marks or marks[0][0] != first_id):
        return f"of {count} records it knows the times of [{marks[:1]}, {end_id})"
    if any(before[0] >= after[0] or before[1] > after[1] for before, after in pairwise(marks)):
        return f"times fall: {marks}"
    if marks and marks[-1][1] > latest_ms:
        return f"record {marks[-1][0]} is of the future: {marks[-1][1]} > {latest_ms}"
    found = [lookup.first_id_at(time_ms) for _, time_ms in marks]
    if any(first_id > transaction_id for first_id, (transaction_id, _) in zip(found, marks, strict=True)):
        return f"records are in front of their time: {found}, {marks}"
    if found != sorted(found):
        return f"later times begin earlier: {found}"
    return None
