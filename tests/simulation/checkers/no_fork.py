"""No fork: all replicas, all servers and all readers agree on every committed ID."""

from __future__ import annotations

from tests.protocol import checkers as shared
from tests.simulation.checkers.outcome import Outcome
from tests.simulation.history import Violation

__all__ = ["check"]


def check(outcome: Outcome) -> None:
    """The replicas' logs are alike, and like what any server ever committed or answered to a read."""
    for partition_id, logs in enumerate(outcome.logs):
        try:
            shared.check_same_logs(logs)
        except shared.Violation as error:
            raise Violation("no_fork", f"partition {partition_id}: {error}") from error
        log = outcome.log[partition_id]
        for transaction_id, record in outcome.history.committed[partition_id].items():
            if transaction_id < len(log) and log[transaction_id] != record:
                who = outcome.history.committed_by[partition_id][transaction_id]
                raise Violation("no_fork", f"partition {partition_id}: {who} committed another {transaction_id}")
    for partition_id, transaction_id, record in outcome.history.reads:
        log = outcome.log[partition_id]
        if transaction_id >= len(log) or log[transaction_id] != record:
            raise Violation("no_fork", f"partition {partition_id}: a read brought another {transaction_id}")
