"""Replicas are added and removed: the next opening must find every record that the old set has committed.

Exhaustive over small clusters: every committing quorum of the last session, every order in which its members vote.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, permutations

import pytest

from tests.protocol.test_session import Bench
from waltz_ray.protocol.ids import NO_SESSION, quorum_of
from waltz_ray.protocol.roster import UNRESOLVED, ReplicaEntry, Roster
from waltz_ray.protocol.session_types import TruncateReplica

S, P = 7, 4  # as in test_session: the session that opens, the last published one
COMMITTED, BEHIND = 9, 5
NEVER_JOINED = ReplicaEntry(NO_SESSION, UNRESOLVED)


def published(assigned: int, members: tuple[int, ...]) -> Roster:
    """Session P with ``members`` of ``assigned`` replicas; the others' logs were known to be right up to 2."""
    member, other = ReplicaEntry(P, UNRESOLVED), ReplicaEntry(3, 2)
    return Roster(S, 2, {r: member if r in members else other for r in range(assigned)})


def member_sets(assigned: int) -> Iterator[tuple[int, ...]]:
    for size in range(quorum_of(assigned), assigned + 1):
        yield from combinations(range(assigned), size)


def check_every_opening(roster: Roster, old_members: tuple[int, ...], old_quorum: int) -> int:
    """For every quorum that may hold a commit and every order of votes: X covers it, and it was the last commit.

    Returns how many openings chose an X.
    """
    chosen = 0
    for holders in combinations(old_members, old_quorum):
        for order in permutations(sorted(roster.members)):
            bench = Bench(roster)
            for count, replica_id in enumerate(order, start=1):
                bench.opened(replica_id, COMMITTED if replica_id in holders else BEHIND, 2)
                if bench.session.low_water_mark is None:
                    continue
                chosen += 1
                unfenced = len(old_members) - count
                assert unfenced < old_quorum, f"members {order[:count]} have voted, the others could go on committing"
                assert bench.session.low_water_mark == COMMITTED, f"{holders} had it, {order[:count]} voted"
                break
    return chosen


CHANGES = [(3, 5), (5, 3), (3, 4), (4, 3), (5, 4), (4, 5), (3, 2), (1, 3), (3, 3)]


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_no_committed_record_is_lost_when_the_set_changes(before: int, after: int) -> None:
    openings = 0
    for members in member_sets(before):
        roster = published(before, members)
        kept_sets = [range(after)] if after >= before else combinations(range(before), after)
        for kept in kept_sets:
            try:
                changed = roster.with_replicas(kept)
            except ValueError:
                assert len(set(members) - set(kept)) >= quorum_of(before)
                continue
            openings += check_every_opening(changed, members, quorum_of(before))
    assert openings > 0


@pytest.mark.parametrize(
    ("before", "after", "voters", "votes_needed"), [(3, 5, (2, 1), 2), (5, 3, (0, 1, 2), 3)], ids=["3to5", "5to3"]
)
def test_counting_with_the_quorum_of_the_present_set_would_lose_records(
    before: int, after: int, voters: tuple[int, ...], votes_needed: int
) -> None:
    """Teeth, and what was wrong: 3 -> 5 took one vote of three for enough, 5 -> 3 two of three.

    The last record is on the ``quorum`` highest replicas of the old set or, 3 -> 5, on 0 and 1.
    """
    holders = (0, 1) if before == 3 else (2, 3, 4)
    changed = published(before, tuple(range(before))).with_replicas(range(after))
    lost, kept = Bench(replace(changed, published_quorum=quorum_of(after))), Bench(changed)
    for bench in (lost, kept):
        for replica_id in voters:
            bench.opened(replica_id, COMMITTED if replica_id in holders else BEHIND, 2)
    assert lost.session.low_water_mark == BEHIND, "the committed record would be cut everywhere"
    assert kept.session.low_water_mark == COMMITTED
    assert len(voters) == votes_needed


def test_a_replica_that_is_added_has_no_vote_and_is_filled_before_it_counts() -> None:
    bench = Bench(published(3, (0, 1, 2)).with_replicas(range(5)))
    for replica_id in (3, 4):
        bench.opened(replica_id, -1)
    bench.opened(0, COMMITTED)
    assert bench.session.low_water_mark is None
    bench.opened(1, COMMITTED)
    bench.lost(2)
    read = bench.last_read()
    assert (read.target_id, read.first_id, read.end_id) in [(3, 0, COMMITTED + 1), (4, 0, COMMITTED + 1)]
    bench.copied(read)
    bench.grace()
    assert sum(entry == (S, UNRESOLVED) for entry in bench.roster().values()) == 3 == bench.session.quorum


def test_a_published_session_counts_with_its_own_quorum_again() -> None:
    bench = Bench(published(5, (0, 1, 2, 3, 4)).with_replicas((0, 1, 2)))
    for replica_id in (0, 1, 2):
        bench.opened(replica_id, COMMITTED)
    assert bench.written_record().published_quorum == 2


def test_members_are_taken_away_only_while_those_that_stay_must_hold_everything() -> None:
    roster = published(3, (0, 1))
    assert roster.with_replicas((0, 1)).published_quorum == 2, "a non-member takes no vote along"
    assert roster.with_replicas((1, 2)).published_quorum == 1
    with pytest.raises(ValueError, match="may be the only ones"):
        roster.with_replicas((2,))
    with pytest.raises(ValueError, match="may be the only ones"):
        roster.with_replicas((1, 2)).with_replicas((2, 3))
    with pytest.raises(ValueError, match="at least one"):
        roster.with_replicas(())


def test_one_that_was_removed_and_added_again_is_no_member_any_more() -> None:
    roster = published(3, (0, 1, 2)).with_replicas((0, 1)).with_replicas((0, 1, 2))
    assert roster.replicas[2] == NEVER_JOINED
    assert roster.members == {0, 1}
    assert check_every_opening(roster, (0, 1, 2), 2) > 0


def test_before_any_session_the_set_may_change_freely() -> None:
    roster = replace(Roster.initial(range(3)), session_id=S)
    changed = roster.with_replicas(range(2, 9))
    assert changed == replace(Roster.initial(range(2, 9)), session_id=S)
    assert changed.published_quorum == 4


def test_the_quorum_is_kept_in_zookeeper_and_records_without_it_are_read() -> None:
    roster = published(3, (0, 1, 2)).with_replicas(range(5))
    assert roster.published_quorum == 2
    assert Roster.from_json(roster.to_json()) == roster
    fields = json.loads(roster.to_json())
    del fields["published_quorum"]
    assert Roster.from_json(json.dumps(fields)).published_quorum == quorum_of(5)
    fields["published_quorum"] = 0
    with pytest.raises(ValueError, match="published_quorum of the roster must be an integer from 1"):
        Roster.from_json(json.dumps(fields))


# ---- replicas that never joined and bring old files along -------------------------------------------------------


def published_without_the_old_one() -> Bench:
    """Session S is published by 0 and 1 at X = 9; 2 was replaced or added, and is not there yet."""
    bench = Bench(replace(published(3, (0, 1)).with_replicas((0, 1)).with_replicas((0, 1, 2)), session_id=S))
    for replica_id in (0, 1):
        bench.opened(replica_id, COMMITTED)
    bench.grace()
    bench.written()
    return bench


def test_nobody_vouches_for_files_of_a_replica_that_never_joined() -> None:
    """It was called right up to X once (seed 1289 of test_set_walks): its old records below X stayed, a fork."""
    bench = published_without_the_old_one()
    assert bench.session.roster.replicas[2] == NEVER_JOINED
    effects = bench.opened(2, 20, 3)
    assert effects == [TruncateReplica(S, 2, 3)]
    bench.truncated(2, 3)
    bench.copied(bench.last_read())
    assert bench.roster()[2] == (S, UNRESOLVED)


def test_once_it_has_been_cut_it_gets_a_closing_mark_like_the_others() -> None:
    bench = Bench(published(3, (0, 1)).with_replicas((0, 1)).with_replicas((0, 1, 2)))
    bench.opened(0, COMMITTED)
    bench.opened(2, 20, 3)
    bench.truncated(2, 3)
    bench.opened(1, COMMITTED)
    bench.grace()
    assert bench.roster() == {0: (S, UNRESOLVED), 1: (S, UNRESOLVED), 2: (NO_SESSION, COMMITTED)}


def test_one_that_never_joined_and_is_damaged_is_cut_to_its_own_low_water_mark() -> None:
    bench = published_without_the_old_one()
    assert TruncateReplica(S, 2, 3) in bench.opened(2, 7, 3, damaged=True)


def test_zookeeper_and_the_session_agree_on_what_was_written() -> None:
    """While the write is under way a replica is cut: that is not in the roster that was sent."""
    bench = Bench(published(3, (0, 1)).with_replicas((0, 1)).with_replicas((0, 1, 2)))
    bench.opened(0, COMMITTED)
    bench.opened(1, COMMITTED)
    bench.grace()
    sent = bench.written_record()
    bench.opened(2, -1)
    bench.written()
    assert bench.session.roster.replicas[2] == sent.replicas[2] == NEVER_JOINED
