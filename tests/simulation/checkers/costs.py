"""Costs: a fault makes a server take a session or two, not dozens.

A log that is never wrong but always between two sessions is of no use. Each session that is taken must have a cause: a
partition begins with one, a checkpoint takes one, a fault and an act of the operator a few: over 500 histories half
of the partitions took less than 0.3 for each fault, one in a hundred more than 1.2. Most is taken by twins: two live
processes of one server fence each other off until one hears that the other has registered. (The other half of the
rule, that no order misses a replica's log, is watched while the history runs: ``History.refused``.)
"""

from __future__ import annotations

from tests.simulation.checkers.outcome import Outcome
from tests.simulation.history import RosterWrite, Violation

__all__ = ["check", "sessions_taken"]

_AT_FIRST = 6
_PER_FAULT = 2
_TWINS = 5  # more causes: they take the partition from each other several times a second, for a second or two


def check(outcome: Outcome) -> None:
    history = outcome.history
    causes = sum(history.faults.values()) + history.counts["acts of the operator"]
    causes += _TWINS * sum(history.faults[name] for name in ("twins take at once", "server taken for dead"))
    for partition_id, writes in enumerate(history.roster_writes):
        taken = sessions_taken(writes)
        checkpoints = len(history.committed[partition_id]) // history.checkpoint_interval
        moves = sum(write.who.startswith("manager") for write in writes)  # changes of its set
        allowed = _AT_FIRST + checkpoints + _PER_FAULT * (causes + moves)
        if taken > allowed:
            raise Violation(
                "costs",
                f"partition {partition_id}: {taken} sessions were taken for {causes} faults and acts of the operator, "
                f"{checkpoints} checkpoints: {allowed:.0f} would be much",
            )


def sessions_taken(writes: list[RosterWrite]) -> int:
    """How many of the writes of a partition's record take a further session."""
    highest = taken = 0
    for write in writes:
        if write.session_id > highest:
            highest = write.session_id
            taken += 1
    return taken
