"""Lock safety: the log replayed with exact locks instead of the table of hashes."""

from __future__ import annotations

from tests.simulation.checkers.outcome import Outcome
from tests.simulation.history import Violation

__all__ = ["check"]


def check(outcome: Outcome) -> None:
    """No transaction is in the log that locks what was updated after its client's mark."""
    for partition_id, payloads in enumerate(outcome.payloads):
        updated: dict[int, int] = {}
        for transaction_id, payload in enumerate(payloads):
            for lock in (*payload.write, *payload.read):
                if updated.get(lock, -1) > payload.mark:
                    raise Violation(
                        "lock_safety",
                        f"partition {partition_id}: {transaction_id} ({payload.uid}) was built at mark {payload.mark}, "
                        f"but {updated[lock]} has updated lock {lock}",
                    )
            for lock in (*payload.write, *payload.append):
                updated[lock] = transaction_id
