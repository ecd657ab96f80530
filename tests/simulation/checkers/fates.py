"""Fates: what the applications were told is what the log says."""

from __future__ import annotations

from tests.simulation.checkers.outcome import Outcome
from tests.simulation.history import Violation

__all__ = ["check"]


def check(outcome: Outcome) -> None:
    """Committed ones are at the ID that was told, absent ones are not in the log."""
    for logical in outcome.history.logicals.values():
        places, fate = outcome.places.get(logical.uid, []), logical.fate
        if fate is None:
            raise Violation("fates", f"{logical.uid} was never told anything")
        if fate.kind == "committed" and (logical.partition_id, fate.transaction_id) not in places:
            raise Violation("fates", f"{logical.uid} was told {fate.transaction_id}, the log has it at {places}")
        if fate.kind == "absent" and places:
            raise Violation("fates", f"{logical.uid} was told it is not in the log, which has it at {places}")
