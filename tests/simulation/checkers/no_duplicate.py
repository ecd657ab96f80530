"""No duplicate: a ReqId, and an application's logical transaction, is in the log at most once."""

from __future__ import annotations

from tests.simulation.checkers.outcome import Outcome
from tests.simulation.history import Violation

__all__ = ["check"]


def check(outcome: Outcome) -> None:
    for partition_id, req_ids in enumerate(outcome.req_ids):
        seen: dict[object, int] = {}
        for transaction_id, req_id in enumerate(req_ids):
            if req_id in seen:
                where = f"{seen[req_id]} and {transaction_id}"
                raise Violation("no_duplicate", f"partition {partition_id}: {req_id} is at {where}")
            seen[req_id] = transaction_id
    for uid, places in outcome.places.items():
        if len(places) > 1:
            raise Violation("no_duplicate", f"{uid} is in the log {len(places)} times: {places}")
