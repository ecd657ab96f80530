"""What the log is, told from the disks alone: never less than what was committed, whatever the disks went through.

The walks are those of ``world.py``: real machines of servers and sessions, with replicas that crash, are cut off and
come back. They end anywhere, everything dies, and ZooKeeper is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import combinations
from random import Random

import pytest

from tests.protocol.world import World
from tests.simulation.break_rule import break_rule
from waltz_ray.protocol import disaster as rules
from waltz_ray.protocol.disaster import SESSION_MARGIN, Belief, CopyFacts, Undecided, decide, possible_sets
from waltz_ray.protocol.ids import NO_SESSION, quorum_of
from waltz_ray.protocol.roster import UNRESOLVED, ReplicaEntry, Roster

FAULTS = ("cut", "replica_crash", "server_crash", "move", "twin", "zookeeper", "lost_ack", "client_cut", "ambiguous")
SEEDS = 250


def differences(logs: dict[int, list[bytes]]) -> dict[tuple[int, int], int]:
    found = {}
    for one, other in combinations(sorted(logs), 2):
        pairs = enumerate(zip(logs[one], logs[other], strict=False))
        at = next((n for n, (mine, its) in pairs if mine != its), None)
        if at is not None:
            found[one, other] = at
    return found


def after_a_walk(seed: int) -> tuple[list[bytes], dict[int, list[bytes]], list[CopyFacts]]:
    """(what was committed, the logs that the disks have, what they say of themselves)."""
    world = World(seed, faults=FAULTS)
    for _ in range(150 + seed % 300):
        world.step()
    logs, facts = {}, []
    for r, replica in world.replicas.items():
        log = replica.log[: replica.durable]
        mark = min(replica.low_water_mark, len(log) - 1)
        logs[r] = log
        facts.append(CopyFacts(r, replica.fence, mark, mark, len(log) - 1))
    return world.committed, logs, facts


def check(seed: int, here: Collection[int] | None = None) -> str:
    """Of the disks that are ``here`` (None: all): what came of it."""
    committed, logs, facts = after_a_walk(seed)
    there = set(logs) if here is None else set(here)
    logs = {r: log for r, log in logs.items() if r in there}
    verdict = decide(
        [each for each in facts if each.replica in there], differences(logs), [frozenset(range(len(facts)))]
    )
    if isinstance(verdict, Undecided):
        return "undecided"
    assert verdict.x >= len(committed) - 1, f"seed {seed}: {verdict.x} of {len(committed)} committed"
    for r, end in verdict.keep.items():
        if verdict.roster.replicas[r] == ReplicaEntry(verdict.roster.session_id, UNRESOLVED):
            assert logs[r][: len(committed)] == committed, f"seed {seed}: replica {r} has other records"
            assert end == verdict.x < len(logs[r])
        else:
            assert logs[r][: end + 1] == committed[: end + 1] or end >= len(committed)
    assert verdict.roster.session_id > max(each.session_id for each in facts), "also of disks that are not here"
    assert verdict.lost == ()
    return "decided"


def test_with_all_disks_everything_that_was_committed_is_found() -> None:
    assert {check(seed) for seed in range(SEEDS)} == {"decided"}


def test_with_a_quorum_of_the_disks_nothing_that_was_committed_is_missing() -> None:
    came: list[str] = []
    for seed in range(SEEDS):
        random, count = Random(seed), len(after_a_walk(seed)[2])
        came.append(check(seed, random.sample(range(count), quorum_of(count))))
    assert came.count("decided") > 0.9 * SEEDS, came.count("decided")


@pytest.mark.parametrize(
    "broken",
    [lambda holders, here, sets: len(holders) == len(here), lambda holders, here, sets: False],
    ids=["all must have it", "only marks count"],
)
def test_a_rule_that_takes_too_little_for_committed_is_noticed(
    monkeypatch: pytest.MonkeyPatch, broken: Callable[..., bool]
) -> None:
    break_rule(monkeypatch, rules, "may_be_committed", broken)
    with pytest.raises(AssertionError, match="seed"):
        test_with_a_quorum_of_the_disks_nothing_that_was_committed_is_missing()


# ---- by table -------------------------------------------------------------------------------------------------------


def copy(replica: int, last_id: int, mark: int = -1, session: int = 5, low: int | None = None) -> CopyFacts:
    return CopyFacts(replica, session, mark if low is None else low, mark, last_id)


THREE = [frozenset((0, 1, 2))]


def test_what_only_one_of_three_has_was_never_committed() -> None:
    verdict = decide([copy(0, 12), copy(1, 9), copy(2, 9)], {}, THREE)
    assert isinstance(verdict, Belief)
    assert (verdict.x, verdict.keep) == (9, {0: 9, 1: 9, 2: 9})
    assert verdict.roster.members == {0, 1, 2}
    assert "replica 0 is cut from 12" in verdict.why


def test_what_one_of_two_has_may_be_on_the_third() -> None:
    verdict = decide([copy(0, 12), copy(1, 9)], {}, THREE)
    assert isinstance(verdict, Belief)
    assert (verdict.x, verdict.keep) == (12, {0: 12, 1: 9})
    session = 5 + SESSION_MARGIN
    entries = {
        0: ReplicaEntry(session, UNRESOLVED),
        1: ReplicaEntry(session, 9),
        2: ReplicaEntry(NO_SESSION, UNRESOLVED),
    }
    assert verdict.roster == Roster(session, 0, entries, 1)


def test_two_that_differ_are_settled_by_a_mark_or_by_the_third_or_by_a_person() -> None:
    apart = {(0, 1): 7}
    undecided = decide([copy(0, 12), copy(1, 9)], apart, THREE)
    assert isinstance(undecided, Undecided)
    assert "differ from transaction 7 on" in undecided.why
    by_mark = decide([copy(0, 12), copy(1, 9, mark=8)], apart, THREE)
    assert isinstance(by_mark, Belief)
    assert (by_mark.x, by_mark.keep) == (9, {0: 6, 1: 9})
    by_third = decide([copy(0, 12), copy(1, 9), copy(2, 9)], {**apart, (0, 2): 7}, THREE)
    assert isinstance(by_third, Belief)
    assert by_third.keep == {0: 6, 1: 9, 2: 9}
    by_person = decide([copy(0, 12), copy(1, 9, session=6)], apart, THREE, accept_loss=True)
    assert isinstance(by_person, Belief)
    assert (by_person.x, by_person.lost) == (9, ((7, 12),))


def test_without_a_quorum_only_a_person_can_go_on() -> None:
    undecided = decide([copy(0, 12), CopyFacts(1, NO_SESSION, -1, -1, -1)], {}, THREE)
    assert isinstance(undecided, Undecided)
    assert "on replicas 0, 1, 2, and only 0 of them is here" in undecided.why
    accepted = decide([copy(0, 12)], {}, THREE, accept_loss=True)
    assert isinstance(accepted, Belief)
    assert (accepted.x, accepted.lost) == (12, ((13, None),))


def test_a_mark_above_all_logs_is_a_loss_that_is_named() -> None:
    undecided = decide([copy(0, 12, low=20), copy(1, 12)], {}, THREE)
    assert isinstance(undecided, Undecided)
    assert "up to 20 were committed" in undecided.why
    accepted = decide([copy(0, 12, low=20), copy(1, 12)], {}, THREE, accept_loss=True)
    assert isinstance(accepted, Belief)
    assert accepted.lost == ((13, 20),)


def test_a_partition_that_no_session_was_opened_on_begins_anew() -> None:
    verdict = decide([CopyFacts(r, NO_SESSION, -1, -1, -1) for r in (0, 1)], {}, THREE)
    assert isinstance(verdict, Belief)
    assert (verdict.x, verdict.roster) == (-1, Roster.initial((0, 1, 2)))


def test_what_it_has_left_where_it_was_is_no_voice() -> None:
    verdict = decide([copy(0, 9), copy(1, 9), copy(4, 30)], {}, THREE)
    assert isinstance(verdict, Belief)
    assert (verdict.x, sorted(verdict.keep)) == (9, [0, 1])


def test_one_that_is_on_its_way_needs_a_quorum_of_each_set_that_it_may_have() -> None:
    sets = possible_sets((0, 1, 2), (0, 1, 4))
    assert sets[0] == {0, 1, 2}
    assert {0, 1, 2, 4} in sets
    assert {0, 1, 4} in sets
    undecided = decide([copy(0, 9), copy(2, 9)], {}, sets)
    assert isinstance(undecided, Undecided), "of the new set only one is here"
    verdict = decide([copy(0, 9), copy(1, 9), copy(4, 5)], {}, sets)
    assert isinstance(verdict, Belief)
    assert verdict.x == 9
    assert possible_sets((0, 1, 2), (0, 1, 2)) == [{0, 1, 2}]
