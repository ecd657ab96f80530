"""What a partition's log is, told from the disks alone, when ZooKeeper has lost everything.

ZooKeeper knew who was a member of the last session, and so whose log counts. Without it there are the logs, with their
marks, and what the replicas have remembered of the sets. From these follows what *may* have been committed: a record
is, if a quorum of a set has it, and a disk that is not here may have anything. So:

- A record counts, if those that have it here are a quorum together with those that are not here, or if it lies at or
  below the low-water mark of one that has it. X is the highest such ID. Nothing that may have been committed is above.
- What is above X was never committed and is cut: its clients may have been told so, and may have appended it again.
- Where two logs differ, at most one can be right. If both may, and no mark says which, nobody decides but a person.

Sessions begin above all that any disk remembers, so that no server of before is ever heard again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations

from waltz_ray.protocol.ids import NO_SESSION, NO_TRANSACTION, quorum_of
from waltz_ray.protocol.roster import UNRESOLVED, ReplicaEntry, Roster
from waltz_ray.protocol.value import value

__all__ = [
    "SESSION_MARGIN",
    "Belief",
    "CopyFacts",
    "GivenUp",
    "Undecided",
    "decide",
    "first_given_up",
    "may_be_committed",
    "possible_sets",
]

SESSION_MARGIN = 1000
"""A disk that is not here may remember a higher session than all that are: by far less than this."""


@value()
class CopyFacts:
    """One replica's copy: the session that it has accepted last, its marks, and which records it has."""

    replica: int
    session_id: int
    low_water_mark: int
    local_low_water_mark: int
    last_id: int

    @property
    def opened(self) -> bool:
        """One that never opened a session has nothing to tell: its files may have been lost."""
        return self.session_id != NO_SESSION


@value()
class Belief:
    """``x``: where the log ends. ``keep``: replica -> the last ID of its log that is right; ``roster``: what ZooKeeper
    is to have. ``lost``: the first and last IDs of records that were, or may have been, committed and are lost; last
    None = nobody can tell how many. ``cut_with_loss``: some of them are here, and are cut: who looks again finds
    nothing of them."""

    x: int
    keep: Mapping[int, int]
    roster: Roster
    why: str
    lost: tuple[tuple[int, int | None], ...] = ()
    cut_with_loss: bool = False

    @property
    def given_up(self) -> GivenUp | None:
        """None: nothing is lost."""
        first_id = min((first for first, _ in self.lost), default=None)
        return None if first_id is None else GivenUp(first_id, self.roster.session_id)


@value()
class GivenUp:
    """What a person has given up of a partition: the records from ``first_id`` on that were there before its session
    ``session_id``. The IDs are given again, and a disk that was not here has the old ones."""

    first_id: int
    session_id: int

    def is_on(self, session_id: int, local_low_water_mark: int) -> bool:
        """Whether a copy that has accepted this session last, and vouches for what is up to its mark, has them."""
        return session_id < self.session_id and local_low_water_mark >= self.first_id


def first_given_up(given_up: Iterable[GivenUp], session_id: int, local_low_water_mark: int) -> int | None:
    """From which record on such a copy (``GivenUp.is_on``) has what was given up; None: it has nothing of it."""
    return min((each.first_id for each in given_up if each.is_on(session_id, local_low_water_mark)), default=None)


@value()
class Undecided:
    """Why nobody but a person can say what the log is."""

    why: str


Differences = Mapping[tuple[int, int], int]
"""(replica, replica), the lower one first -> the first ID at which their copies differ."""


def possible_sets(seen: Collection[int], wanted: Collection[int]) -> list[frozenset[int]]:
    """The sets that a partition may have by now, if it was on ``seen`` and on its way to ``wanted``; ``seen`` first."""
    first, last = frozenset(seen), frozenset(wanted)
    found = {first: None, last: None}
    loose = sorted(first ^ last)
    for count in range(len(loose) + 1):
        for some in combinations(loose, count):
            one = first & last | set(some)
            if min(len(first), len(last)) <= len(one) <= max(len(first), len(last)) + 1:
                found[one] = None
    return list(found)


def may_be_committed(holders: frozenset[int], here: frozenset[int], sets: Sequence[frozenset[int]]) -> bool:
    """Of a record that these have, of those that are here: whether a quorum of some set may have it."""
    return any(len((holders | one - here) & one) >= quorum_of(len(one)) for one in sets)


def decide(
    copies: Sequence[CopyFacts], differences: Differences, sets: Sequence[frozenset[int]], accept_loss: bool = False
) -> Belief | Undecided:
    """``sets``: those that the partition may be on, the most likely one first. ``accept_loss``: a person has said that
    records may be lost."""
    of_sets = frozenset().union(*sets)
    known = {copy.replica: copy for copy in copies if copy.replica in of_sets}
    here = {r: copy for r, copy in known.items() if copy.opened}
    if not here and len(known) >= quorum_of(len(sets[0])):
        return Belief(NO_TRANSACTION, {}, Roster.initial(sets[0]), "no session was ever opened")
    without = [one for one in sets if len(one & here.keys()) < quorum_of(len(one))]
    if without and not accept_loss:
        return Undecided(_no_quorum(without[0], here))
    return _Disks(here, differences, sets).verdict(accept_loss, bool(without))


def _no_quorum(one: frozenset[int], here: Mapping[int, CopyFacts]) -> str:
    there = sorted(one & here.keys())
    return (
        f"it is on replicas {_listed(one)}, and only {_listed(there)} of them "
        f"{'is' if len(there) == 1 else 'are'} here with what a session has left; {quorum_of(len(one))} are needed"
    )


class _Disks:
    """The disks that are here, of one partition."""

    def __init__(self, here: Mapping[int, CopyFacts], differences: Differences, sets: Sequence[frozenset[int]]) -> None:
        self._here, self._differences, self._sets = here, differences, sets
        self._replicas = frozenset(here)

    def verdict(self, accept_loss: bool, without_quorum: bool) -> Belief | Undecided:
        ends = {r: self._end(r) for r in sorted(self._here)}
        lost: list[tuple[int, int | None]] = []
        while dispute := self._dispute(ends):
            one, other, at = dispute
            if not accept_loss:
                return Undecided(
                    f"replicas {one} and {other} differ from transaction {at} on, and each may be right; bring the "
                    "disks that are not here"
                )
            worse = min(one, other, key=lambda r: (self._here[r].session_id, ends[r], -r))
            lost.append((at, ends[worse]))
            ends[worse] = at - 1
        disputed = bool(lost)
        best = max(ends, key=lambda r: (ends[r], self._here[r].session_id, -r), default=None)
        x = NO_TRANSACTION if best is None else ends[best]
        marked = max((copy.low_water_mark for copy in self._here.values()), default=NO_TRANSACTION)
        if marked > x and not accept_loss:
            return Undecided(f"transactions up to {marked} were committed, and no log here goes on behind {x}")
        if without_quorum or marked > x:
            lost.append((x + 1, None if without_quorum else marked))
        keep = {r: min(copy.last_id, self._agrees(best, r), x) for r, copy in self._here.items()}
        return Belief(x, keep, self._roster(keep, x), self._why(x, keep), tuple(lost), disputed)

    def _dispute(self, ends: dict[int, int]) -> tuple[int, int, int] | None:
        """Two that differ where both may be right, and where. Where a mark vouches for one of them, it is settled."""
        for (one, other), at in sorted(self._differences.items()):
            if one in ends and other in ends and min(ends[one], ends[other]) >= at:
                if self._vouched(one, at) == self._vouched(other, at):
                    return one, other, at
                ends[other if self._vouched(one, at) else one] = at - 1
        return None

    def _end(self, r: int) -> int:
        """The highest ID of this copy's records that may have been committed."""
        last = self._here[r].last_id
        bounds = {
            last,
            *(self._here[o].last_id for o in self._here),
            *(self._here[o].local_low_water_mark for o in self._here),
        }
        bounds |= {at - 1 for pair, at in self._differences.items() if r in pair}
        for end in sorted((bound for bound in bounds if bound <= last), reverse=True):
            if end < 0 or self._vouched(r, end) or may_be_committed(self._holders(r, end), self._replicas, self._sets):
                return end
        return NO_TRANSACTION

    def _holders(self, r: int, transaction_id: int) -> frozenset[int]:
        """Who has that record as this copy has it."""
        return frozenset(
            o
            for o, copy in self._here.items()
            if copy.last_id >= transaction_id and self._agrees(r, o) >= transaction_id
        )

    def _vouched(self, r: int, transaction_id: int) -> bool:
        holders = self._holders(r, transaction_id)
        return any(self._here[o].local_low_water_mark >= transaction_id for o in holders)

    def _agrees(self, r: int | None, other: int) -> int:
        """The last ID up to which both have the same, as far as both go."""
        at = None if r is None or r == other else self._differences.get((min(r, other), max(r, other)))
        last = self._here[other].last_id
        return last if at is None else at - 1

    def _roster(self, keep: Mapping[int, int], x: int) -> Roster:
        """All that are here have remembered the session number; who has X is a member of it, and decides next time."""
        session_id = max((copy.session_id for copy in self._here.values()), default=0) + SESSION_MARGIN
        members = {r for r, end in keep.items() if end == x}
        one = max(self._sets, key=lambda each: (len(members & each), -self._sets.index(each)))
        entries = {r: ReplicaEntry(NO_SESSION, UNRESOLVED) for r in sorted(one)}
        entries |= {
            r: ReplicaEntry(session_id, UNRESOLVED if r in members else end) for r, end in keep.items() if r in one
        }
        return Roster(session_id, 0, dict(sorted(entries.items())), max(1, len(members & one)))

    def _why(self, x: int, keep: Mapping[int, int]) -> str:
        have = sorted(r for r, end in keep.items() if end == x)
        behind = [f"replica {r} has it up to {end}" for r, end in sorted(keep.items()) if end < x]
        cut = [
            f"replica {r} is cut from {copy.last_id}"
            for r, copy in sorted(self._here.items())
            if copy.last_id > keep[r]
        ]
        return "; ".join([f"replicas {_listed(have)} have it up to {x}", *behind, *cut])


def _listed(replicas: Collection[int]) -> str:
    return ", ".join(map(str, sorted(replicas))) or "none"
