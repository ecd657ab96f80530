"""How a partition gets to other replicas: each step by a table, and walks in which replicas die on the way.

The walks' server is as simple as can be: it opens a session as soon as the votes and a quorum are there. That no record
is lost while sets change, whatever their order, is what ``test_replica_sets.py`` and ``test_set_walks.py`` show; here:
that a step never takes away a quorum that there was, and that in the end everything is where it was wanted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.protocol import set_moves as rules
from waltz_ray.protocol.ids import NO_SESSION, quorum_of
from waltz_ray.protocol.roster import UNRESOLVED, ReplicaEntry, Roster
from waltz_ray.protocol.set_moves import ChangeSet, Moves, SetReached, Wait, next_step

S = 7


def roster(members: Iterable[int], away: Iterable[int] = (), added: Iterable[int] = (), taken: int = S) -> Roster:
    """Session S was published last, by ``members``; ``added`` never joined."""
    entries = dict.fromkeys(members, ReplicaEntry(S, UNRESOLVED))
    entries |= dict.fromkeys(away, ReplicaEntry(S - 1, 5))
    entries |= dict.fromkeys(added, ReplicaEntry(NO_SESSION, UNRESOLVED))
    there = len(entries) - len(set(added))
    return Roster(taken, 1, entries, quorum_of(there))


def step(now: Roster, wanted: Iterable[int], changed_in: int | None = None, stuck: bool = False) -> object:
    found = next_step(now, wanted, changed_in, stuck)
    return found.replicas if isinstance(found, ChangeSet) else type(found)


@pytest.mark.parametrize(
    ("now", "wanted", "expected"),
    [
        (roster((0, 1, 2)), (0, 1, 2), SetReached),
        (roster((0, 1, 2)), (0, 1, 4), (0, 1, 2, 4)),  # added first
        (roster((0, 1, 2), added=[4]), (0, 1, 4), Wait),  # is being copied
        (roster((0, 1, 2, 4)), (0, 1, 4), (0, 1, 4)),  # then taken away
        (roster((0, 1), away=[2]), (0, 1, 4), (0, 1, 4)),  # a lost one is exchanged at once
        (roster((0, 2), away=[1]), (0, 1, 4), Wait),  # one that is to stay is away: there would be two of four
        (roster((0, 1, 4), away=[2]), (0, 1, 4), (0, 1, 4)),  # it died just before
        (roster((0, 2, 4), away=[1]), (0, 1, 4), Wait),  # the records would be on two of three
        (roster((0, 1, 2), added=[3]), (0, 1, 4), (0, 1, 2)),  # another one is wanted by now
        (roster((0, 1), added=[3]), (0, 1, 4), (0, 1, 4)),  # it had come for a lost one: the set stays as large
        (roster((0, 1, 2)), (0, 1, 2, 3, 4), (0, 1, 2, 3)),
        (roster((0, 1, 2, 3, 4)), (0, 1, 2), (0, 1, 2, 4)),
        (roster((0,), away=[1, 2]), (0, 3, 4), Wait),  # no quorum of what would be there
        (roster((0, 1, 2)), (3, 4, 5), (0, 1, 2, 3)),
    ],
)
def test_the_next_step(now: Roster, wanted: tuple[int, ...], expected: object) -> None:
    assert step(now, wanted) == expected


def test_before_any_session_a_set_is_changed_at_once() -> None:
    assert step(Roster.initial((0, 1, 2)), (3, 4, 5)) == (3, 4, 5)
    assert step(Roster.initial((3, 4, 5)), (3, 4, 5)) is SetReached


def test_between_two_steps_the_server_opens_a_session() -> None:
    now = roster((0, 1, 2, 4))
    assert step(now, (0, 1, 4), changed_in=S - 1) == (0, 1, 4)
    assert step(now, (0, 1, 4), changed_in=S) is Wait
    reached = roster((0, 1, 4))
    assert step(reached, (0, 1, 4), changed_in=S) is Wait, "whoever leaves has a part in its session until then"
    assert step(reached, (0, 1, 4), changed_in=S - 1) is SetReached


def test_what_is_added_is_taken_out_again_where_a_member_dies_before_it_has_the_log() -> None:
    now = roster((0, 1, 2), added=[4], taken=S + 1)
    assert step(now, (0, 1, 4), changed_in=S) is Wait
    assert step(now, (0, 1, 4), changed_in=S, stuck=True) == (0, 1, 2)
    exchanged = roster((0, 1), added=[4], taken=S + 1)
    assert step(exchanged, (0, 1, 4), changed_in=S, stuck=True) is Wait, "two of three or two of two: it would not help"


def test_what_is_wanted_can_be_changed_and_is_not_forgotten_meanwhile() -> None:
    moves = Moves().with_wanted({3: (0, 1, 4), 1: (0, 1, 2)}).with_change(3, S)
    assert (list(moves.wanted), moves.changed_in(3), moves.changed_in(1)) == ([1, 3], S, None)
    assert moves.without(3, frozenset((0, 1, 2))) == moves, "something else is wanted by now"
    done = moves.without(3, frozenset((0, 1, 4)))
    assert (dict(done.wanted), dict(done.changed), done.change) == ({1: frozenset((0, 1, 2))}, {}, 1)
    assert done.with_change(1, S).changed == {1: (2, S)}, "the number of a change never comes twice"


# ---- walks ----------------------------------------------------------------------------------------------------------

REPLICAS = range(6)
WALKS = 400


def added(now: Roster) -> set[int]:
    return {r for r, entry in now.replicas.items() if entry.session_id == NO_SESSION}


class Walk:
    """One partition, its server, and a mover that asks for one step at a time. ``down``: at most one at a time."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.roster = Roster.initial((0, 1, 2))
        self.wanted = frozenset((0, 1, 2))
        self.changed_in: int | None = None
        self.down: set[int] = set()
        self.changes = 0
        self.story: list[str] = []

    def serve(self, copied: bool = True) -> None:
        """A session is taken, and published if it can be; who never joined is copied before that, or is not yet."""
        now = replace(self.roster, session_id=self.roster.session_id + 1)
        members, up = now.members, now.replicas.keys() - self.down
        new = added(now) if now.last_published_session != NO_SESSION else set()
        holding = up if copied else up - new
        votes = len(members - self.down)
        may_vote = not members or votes > len(members) - now.published_quorum
        source = bool(members - self.down) or not members
        if may_vote and source and len(holding) >= quorum_of(len(now.replicas)):
            entries = {
                r: ReplicaEntry(now.session_id, UNRESOLVED)
                if r in holding
                else (entry if r in new or entry.closing_mark is not None else replace(entry, closing_mark=1))
                for r, entry in now.replicas.items()
            }
            now = replace(now, replicas=entries, published_quorum=quorum_of(len(entries)))
        self.roster = now

    def move(self) -> None:
        """Its record is asked for one step, and changed."""
        published = self.roster.last_published_session
        stuck = self.roster.session_id > published
        found = next_step(self.roster, self.wanted, self.changed_in, stuck)
        self.story.append(f"{found} of {self.roster}, down {self.down}")
        if isinstance(found, ChangeSet):
            before, self.changed_in = self.roster, published
            self.roster = before.with_replicas(found.replicas)
            self.changes += 1
            self._check(before, frozenset(found.replicas))

    def _check(self, before: Roster, now: frozenset[int]) -> None:
        if before.last_published_session == NO_SESSION:
            return
        gone, come = before.replicas.keys() - now, now - before.replicas.keys()
        assert len(gone) <= 1 or gone <= added(before), "one at a time"
        assert len(come) <= 1
        assert len(before.members & now) >= quorum_of(len(now)), "members alone can publish"
        if gone & before.members:
            assert now <= before.members, "all that stay have the log"

    def _lose_one(self) -> None:
        """One is lost, and nothing can be copied for a while: who has the log goes on alone, if that is a quorum."""
        self.down = {self.random.choice(REPLICAS)}
        self.wanted |= frozenset(self.roster.replicas) - self.roster.members  # what is on its way is still wanted
        self.serve(copied=False)
        for _ in range(3):
            self.move()
            self.serve(copied=False)
        new = added(self.roster)
        left = self.roster.members - self.down
        if self.roster.last_published_session != NO_SESSION and len(left) >= quorum_of(
            len(self.roster.replicas.keys() - new)
        ):
            assert self.roster.last_published_session == self.roster.session_id, "no session without what is copied"

    def run(self, steps: int = 200) -> None:
        for _ in range(steps):
            roll = self.random.random()
            if roll < 0.1 and not self.down:
                self.down = {self.random.choice(REPLICAS)}
            elif roll < 0.3:
                self.down = set()
            elif roll < 0.35:
                self.wanted = frozenset(self.random.sample(REPLICAS, self.random.choice([3, 3, 5])))
            elif roll < 0.65:
                self.serve(copied=self.random.random() < 0.5)
            else:
                self.move()
        self._lose_one()
        self.down = set()
        for _ in range(40):
            self.move()
            self.serve()
        assert frozenset(self.roster.replicas) == self.wanted, self.story[-5:]
        assert self.roster.members == self.wanted


def walks() -> int:
    changes = 0
    for seed in range(WALKS):
        walk = Walk(seed)
        try:
            walk.run()
        except (AssertionError, ValueError) as error:
            raise AssertionError(f"seed {seed}: {error}\n" + "\n".join(walk.story[-6:])) from error
        changes += walk.changes
    return changes


def test_a_partition_always_gets_where_it_is_wanted_and_never_without_a_quorum() -> None:
    assert walks() > 10 * WALKS


@pytest.mark.parametrize("rule", ["can_be_published", "has_noticed", "newcomers"])
def test_a_rule_that_is_broken_is_noticed(monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    broken = {
        "can_be_published": lambda roster, replicas: True,
        "has_noticed": lambda roster, changed_in: True,
        "newcomers": lambda roster: frozenset(),
    }
    break_rule(monkeypatch, rules, rule, broken[rule])
    with pytest.raises(AssertionError):
        walks_and_steps()


def walks_and_steps() -> None:
    """All that a broken rule may be noticed by."""
    walks()
    assert step(roster((0,), away=[1, 2]), (0, 3, 4)) is Wait
    assert step(roster((0, 1, 2, 4)), (0, 1, 4), changed_in=S) is Wait
