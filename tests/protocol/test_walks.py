"""Random walks of a whole partition, and the proof that they would notice: every rule is broken once.

``WALKS=3000 pytest tests/protocol/test_walks.py`` walks further; a failure names its seed and tells its story, and
``run(seed)`` of ``tests.protocol.world`` repeats it.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.protocol.checkers import Violation
from tests.protocol.world import run
from tests.simulation.mutations import WALKED

WALKS = int(os.environ.get("WALKS", "150"))
TEETH_SEEDS = 1_100
CHUNKS = 5


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_walks(chunk: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(chunk, WALKS, CHUNKS):
        result = run(seed)
        seen.update(result.fates)
        seen["sessions"] += result.sessions
    # A world in which nothing happens would satisfy every checker.
    walks = WALKS // CHUNKS
    assert seen["sessions"] > 2 * walks, seen
    assert seen["committed"] > 10 * walks, seen
    assert min(seen["lock_failed"], seen["failed"], seen["rejected"]) > walks, seen


def test_without_faults_everything_commits_in_one_session_per_move() -> None:
    for seed in range(10):
        result = run(seed, faults=())
        assert result.committed > 0
        assert "failed" not in result.fates or result.sessions > 1


# ---- teeth ----------------------------------------------------------------------------------------------------

BROKEN = (
    "publish_before_copy",
    "unregistered_replicas_count",
    "non_members_vote",
    "non_members_are_not_cut",
    "shortest_vote",
    "one_vote_too_few",
    "late_joiners_are_entered_nowhere",
    "ready_without_what_is_in_flight",
    "superseded_connections_are_accepted",
    "locks_are_not_updated",
    "locks_are_forgotten_at_a_hand_over",
    "hand_over_keeps_its_log",
    "admissions_leave_before_what_is_in_flight",
    "any_write_of_this_session_is_taken_for_ones_own",
    "next_piece_before_the_last_is_there",
)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules that the simulation breaks, too (``tests/simulation/mutations.py``)."""
    WALKED[name](monkeypatch)
    with pytest.raises(Violation, match="seed"):
        _walk(TEETH_SEEDS)


def _walk(seeds: int) -> None:
    for seed in range(seeds):
        run(seed)
