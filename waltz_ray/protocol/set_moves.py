"""How a partition gets from the replicas that it is on to those that it shall be on: one replica at a time.

What is wanted is recorded, and what is, is the partition's roster; so whoever leads asks ``next_step`` again and again,
and it makes no difference who has done the steps before, or where they died. The order of the steps:

1. One that is to go and is no member of the last session (its node is lost) is exchanged for one that is to come, at
   once: nothing is lost with it, and the quorum stays what it is.
2. One that is to come is added, when all the others are members: the session that follows is published by these, and
   copies the log to the new one. Until that has it, one more replica must answer for a commit than before; if a
   member dies in this time and no session can be published any more (*stuck*), the new one is taken out again. So is
   one that is not wanted any more before it has been copied; one that is to come takes its place at once where the set
   would else be smaller than it is to be, and the next member that dies one too many.
3. When all that is to come has been copied, what is to go is taken away, one after the other, and between two of them
   the server opens a session.

No step is made after which a session could not be published with what is there, or fewer than all of the replicas that
remain would have the log. Why no committed record can be lost by any of it: ``Roster.with_replicas``.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import field, replace

from waltz_ray.protocol.ids import NO_SESSION, quorum_of
from waltz_ray.protocol.roster import Roster
from waltz_ray.protocol.value import value

__all__ = [
    "MOST_AT_ONCE",
    "ChangeSet",
    "Moves",
    "SetReached",
    "Wait",
    "can_be_published",
    "has_noticed",
    "newcomers",
    "next_step",
]

MOST_AT_ONCE = 4
"""So many partitions are on the way at a time: what is copied is read from disks that serve, too."""


@value()
class Moves:
    """What is recorded of partitions that are to be on other replicas. ``wanted``: partition -> its replicas then.
    ``changed``: of those that are on the way, the number of the last change of the set (``change`` counts them all: it
    tells servers that there was one) and the session that was the last published one at that time."""

    change: int = 0
    wanted: Mapping[int, frozenset[int]] = field(default_factory=dict)
    changed: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def with_wanted(self, sets: Mapping[int, Iterable[int]]) -> Moves:
        """These partitions are to be there, whatever was wanted of them before."""
        more = {p: frozenset(one) for p, one in sets.items()}
        return replace(self, wanted=dict(sorted({**self.wanted, **more}.items())))

    def with_change(self, partition: int, session_id: int) -> Moves:
        """The partition's set is changed, or its server is to look once more; ``session_id`` was published last."""
        number = self.change + 1
        return replace(self, change=number, changed={**self.changed, partition: (number, session_id)})

    def without(self, partition: int, reached: frozenset[int]) -> Moves:
        """The partition is where it should be, unless something else is wanted by now."""
        if self.wanted.get(partition, reached) != reached:
            return self
        return replace(
            self,
            wanted={p: one for p, one in self.wanted.items() if p != partition},
            changed={p: last for p, last in self.changed.items() if p != partition},
        )

    def without_any(self, partitions: Container[int]) -> Moves:
        """Nothing is wanted of these any more, wherever they are."""
        return replace(
            self,
            wanted={p: one for p, one in self.wanted.items() if p not in partitions},
            changed={p: last for p, last in self.changed.items() if p not in partitions},
        )

    def changed_in(self, partition: int) -> int | None:
        """The session that was the last published one when the set was changed last, None if it was not."""
        last = self.changed.get(partition)
        return None if last is None else last[1]


@value()
class ChangeSet:
    """Let the roster be of these, by compare-and-set, and the server know."""

    replicas: tuple[int, ...]
    why: str


@value()
class Wait:
    """For what, in words for people."""

    why: str


@value()
class SetReached:
    """Nothing is left to do."""


def next_step(
    roster: Roster, wanted: Iterable[int], changed_in: int | None = None, stuck: bool = False
) -> ChangeSet | Wait | SetReached:
    """``changed_in``: the session that was the last published one when the set was changed last, None if it was not.
    ``stuck``: no session could be published for a while."""
    current, target = frozenset(roster.replicas), frozenset(wanted)
    if roster.last_published_session == NO_SESSION:
        return SetReached() if current == target else _change(target, "it has no records yet")
    copied_to = newcomers(roster)
    if stuck and copied_to and quorum_of(len(current - copied_to)) < quorum_of(len(current)):
        return _change(current - copied_to, f"a member was lost: without {_named(copied_to)} there is a quorum again")
    if strangers := copied_to - target:
        left, coming = current - strangers, sorted(target - current)
        others = coming[:1] if len(left) < len(target) else ()
        return _if_possible(roster, left.union(others), f"{_named(strangers)} is not to have it any more")
    if not has_noticed(roster, changed_in):
        return Wait("its server opens a session with the changed set")
    if copied_to:
        return Wait(f"{_named(copied_to)} {'is' if len(copied_to) == 1 else 'are'} being copied")
    return SetReached() if current == target else _towards(roster, current, target)


def newcomers(roster: Roster) -> frozenset[int]:
    """The replicas that have not joined a session since they were added."""
    return frozenset(r for r, entry in roster.replicas.items() if entry.session_id == NO_SESSION)


def has_noticed(roster: Roster, changed_in: int | None) -> bool:
    """Whether a session was published since the set was changed: its server goes by the new set."""
    return changed_in is None or roster.last_published_session > changed_in


def can_be_published(roster: Roster, replicas: frozenset[int]) -> bool:
    """Whether the members that are left are a quorum of these replicas, and must hold all that was committed."""
    left = roster.members & replicas
    return len(left) >= quorum_of(len(replicas)) and len(roster.members - replicas) < roster.published_quorum


def _towards(roster: Roster, current: frozenset[int], target: frozenset[int]) -> ChangeSet | Wait:
    leaving, coming, away = current - target, sorted(target - current), current - roster.members
    if leaving & away:
        lost = min(leaving & away)
        return _if_possible(roster, current - {lost} | set(coming[:1]), f"{_named({lost})} is lost")
    if away:
        return Wait(f"{_named(away)} must be a member again")
    if coming:
        return _if_possible(roster, current | {coming[0]}, f"{_named({coming[0]})} is to have it")
    goes = min(leaving)
    return _if_possible(roster, current - {goes}, f"{_named({goes})} is to have it no more")


def _if_possible(roster: Roster, replicas: frozenset[int], why: str) -> ChangeSet | Wait:
    if can_be_published(roster, replicas):
        return _change(replicas, why)
    return Wait(f"only {_named(roster.members & replicas)} of {sorted(replicas)} would be there, which is no quorum")


def _change(replicas: frozenset[int], why: str) -> ChangeSet:
    return ChangeSet(tuple(sorted(replicas)), why)


def _named(replicas: Iterable[int]) -> str:
    numbers = sorted(replicas)
    listed = ", ".join(map(str, numbers)) or "none"
    return f"replica{'' if len(numbers) == 1 else 's'} {listed}"
