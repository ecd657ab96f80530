"""No gap: the IDs of every replica's log are 0, 1, 2, ..."""

from __future__ import annotations

from tests.protocol import checkers as shared
from tests.simulation.checkers.outcome import Outcome
from tests.simulation.history import Violation

__all__ = ["check"]


def check(outcome: Outcome) -> None:
    for partition_id, logs in enumerate(outcome.logs):
        for replica_id, log in logs.items():
            try:
                shared.check_ids(log)
            except shared.Violation as error:
                raise Violation("no_gap", f"replica {replica_id}, partition {partition_id}: {error}") from error
    for partition_id, committed in enumerate(outcome.history.committed):
        for transaction_id, record in committed.items():
            if int.from_bytes(record[:8], "big") != transaction_id:
                raise Violation("no_gap", f"partition {partition_id}: a record of another ID at {transaction_id}")
