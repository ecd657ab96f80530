"""Callbacks: what an application is told comes in the order that ``waltz_ray.client.application`` promises.

Of a context or a single append of its own it hears first that it is committed, then it applies it. Transactions are
applied in the order of their IDs, none skipped and none twice, and again from its mark on if it went back. A context
that was refused a lock runs again only when the transaction in its way has been applied. After ``close`` nothing comes.
"""

from __future__ import annotations

from tests.simulation.checkers.outcome import Outcome
from tests.simulation.history import Trace, Violation

__all__ = ["check"]


def check(outcome: Outcome) -> None:
    for trace in outcome.history.traces:
        _check(outcome, trace)


def _check(outcome: Outcome, trace: Trace) -> None:
    marks, furthest = dict(trace.marks), dict(trace.marks)
    proposed: set[int | str] = set()
    completed: set[int | str] = set()
    closed = False
    for partition_id, what, about in trace.events:
        where = f"{trace.client}, partition {partition_id}"
        if closed:
            raise Violation("callbacks", f"{where}: {what} {about} after the client was closed")
        if what == "proposed":
            proposed.add(about)
        elif what == "completed":
            completed.add(about)
        elif what == "lock refused":
            if int(about) > furthest[partition_id]:
                raise Violation("callbacks", f"{where}: a context runs again before {about} has been applied")
        elif what == "went back":
            marks[partition_id] = int(about)
            furthest[partition_id] = max(furthest[partition_id], int(about))  # somebody else's database
        elif what == "closed":
            closed = True
        else:
            if about != marks[partition_id] + 1:
                raise Violation("callbacks", f"{where}: {about} is applied after {marks[partition_id]}")
            marks[partition_id] = about
            furthest[partition_id] = max(furthest[partition_id], about)
            uid = outcome.payloads[partition_id][about].uid
            if uid in proposed and uid not in completed:
                raise Violation("callbacks", f"{where}: {uid} is applied as {about} and was not told to be committed")
