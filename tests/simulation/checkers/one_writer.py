"""One writer per session: its number was taken by one server, which alone published it and wrote records in it.

What the records in ZooKeeper say is checked write by write: the session only rises, the generation never falls, and a
closing mark that is written stays until its replica joins a later session.
"""

from __future__ import annotations

from tests.simulation.checkers.outcome import Outcome
from tests.simulation.history import RosterWrite, Violation
from waltz_ray.protocol.ids import NO_SESSION

__all__ = ["check"]


def check(outcome: Outcome) -> None:
    for partition_id, writes in enumerate(outcome.history.roster_writes):
        takers: dict[int, str] = {}
        before: RosterWrite | None = None
        for write in writes:
            problem = _problem(before, write, takers)
            if problem:
                raise Violation("one_writer", f"partition {partition_id}: {write.who}: {problem}")
            if before is None or write.session_id > before.session_id:
                takers[write.session_id] = write.who
            before = write
        for (p, session_id), who in outcome.history.writers.items():
            if p == partition_id and takers.get(session_id) != who:
                taker = takers.get(session_id)
                raise Violation("one_writer", f"partition {p}: session {session_id} is {taker}'s, {who} wrote in it")


def _problem(before: RosterWrite | None, write: RosterWrite, takers: dict[int, str]) -> str:
    """What is wrong with a record, given the one before; empty if nothing is."""
    if before is None or write.who.startswith("operator"):
        return ""
    if write.session_id < before.session_id:
        return f"the session falls from {before.session_id} to {write.session_id}"
    if write.generation < before.generation:
        return f"the generation falls from {before.generation} to {write.generation}"
    for replica_id, (session_id, mark) in write.replicas.items():
        if replica_id not in before.replicas and write.who.startswith("manager"):
            if (session_id, mark) != (NO_SESSION, None):
                return f"replica {replica_id} is new, and of session {session_id} at once"
            continue
        old_session_id, old_mark = before.replicas[replica_id]
        if (session_id, mark) == (old_session_id, old_mark):
            continue
        if session_id == old_session_id and old_mark is not None:
            return f"the closing mark of replica {replica_id} changes from {old_mark} to {mark}"
        if mark is None and takers.get(session_id) != write.who:
            return f"replica {replica_id} joins session {session_id}, which {takers.get(session_id)} has taken"
    return ""
