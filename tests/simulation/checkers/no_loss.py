"""No loss: what any server counted as committed, or any application was told is committed, is in the log."""

from __future__ import annotations

from tests.simulation.checkers.outcome import Outcome
from tests.simulation.history import Violation

__all__ = ["check"]


def check(outcome: Outcome) -> None:
    for partition_id, committed in enumerate(outcome.history.committed):
        length = len(outcome.log[partition_id])
        lost = [transaction_id for transaction_id in committed if transaction_id >= length]
        if lost:
            who = outcome.history.committed_by[partition_id][lost[0]]
            raise Violation(
                "no_loss", f"partition {partition_id}: {who} committed {lost[0]}, the log ends at {length - 1}"
            )
    for logical in outcome.history.logicals.values():
        told = logical.fate is not None and logical.fate.kind in ("committed", "in the log")
        if told and logical.uid not in outcome.places:
            raise Violation("no_loss", f"{logical.uid} was told {logical.fate} and is not in the log")
