"""Who serves a unit: the part of one actor in one space, as a pure machine. Topics and the key/value layer use it.

Who *should* have a unit says the table in ZooKeeper, which the cluster manager writes. Who *has* it says the log: its
last OWN. Three things keep two actors from serving one unit at a time:

- *Writes* carry the read lock of the unit that we hold, with the mark of our fold. An OWN of the unit, or of a finer
  one in it, updates that lock: what a deposed owner still writes fails, whatever it believes.
- *OWN* write-locks the unit and the coarser ones up to the one that the log speaks of, with the mark of the fold by
  which it was decided. So every OWN is made in knowledge of all before it that concern the same unit; and never of a
  unit of which a finer one was owned already.
- *Reads* need a lease: our last write to our own registration was sent less than the session's time-out (less a margin)
  ago, and the unit was taken under this very registration. A successor takes a unit only from one who has released it,
  or whose registration is gone: it was seen and is no more, or a read that was begun after we folded its OWN does not
  have it. ZooKeeper removes it no earlier than the lease ends. Somebody else may remove it only if he knows that the
  process is dead.

Losing ZooKeeper stops moves, not service: writes go on, and reads can ask the log with a BARRIER under the unit's read
lock. Who reads so must look at ``held`` again after the barrier is folded.

A *split* is a table of the next level. Who has a coarser unit goes on serving it, and takes the finer ones that stay
its own one after the other; those that go to others it drains and releases one by one.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from waltz_ray.protocol import ownership_rules as rules
from waltz_ray.protocol.ownership_types import (
    ConfirmMembers,
    Drained,
    FoldCaughtUp,
    LeaseConfirmed,
    MembersConfirmed,
    MembersSeen,
    OwnersFolded,
    OwnershipEffect,
    OwnershipEvent,
    RegisteredAs,
    ReleaseDone,
    ReleaseLost,
    ReleaseRefused,
    ReleaseUnit,
    Serve,
    Splitting,
    StopServing,
    TableSeen,
    Take,
    TakeDone,
    TakeRefused,
    UnitClaim,
    UnitPlace,
    UnitTable,
    Unregistered,
)

__all__ = ["OwnershipMachine"]

U = TypeVar("U", bound=Hashable)


class _Phase(enum.Enum):
    """How far an OWN or a RELEASE of ours is."""

    TAKING = "its OWN is appended"
    TAKEN = "its OWN is in the log, and not folded yet"
    RELEASING = "its RELEASE is appended"
    RELEASED = "its RELEASE is in the log, and not folded yet"


@dataclass
class _Work(Generic[U]):
    """An OWN or a RELEASE that is under way. ``locked``: the coarser units that an OWN locks."""

    phase: _Phase
    incarnation: str
    epoch: int
    locked: tuple[U, ...] = ()

    @property
    def releases(self) -> bool:
        return self.phase in (_Phase.RELEASING, _Phase.RELEASED)

    def is_folded(self, claim: UnitClaim | None) -> bool:
        """Whether the fold has come to it, or to what is after it. ``claim``: of the unit itself."""
        if claim is None:
            return False
        ours = claim.incarnation == self.incarnation and claim.epoch == self.epoch
        if self.releases:
            return claim.released or not ours
        return ours or claim.epoch > self.epoch


class _View:
    """Which registrations are gone, by what we were told of those there are."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self._members: frozenset[str] = frozenset()  # as last seen
        self._doubted: set[str] = set()  # to be asked about
        self._asked: frozenset[str] | None = None  # what ConfirmMembers is about
        self._there: set[str] = set()  # were there when we asked, and have not been seen yet

    def seen(self, members: Mapping[int, str]) -> None:
        now = frozenset(members.values())
        self.gone |= rules.gone_by_view(now, self._members)
        self._members = now

    def confirmed(self, members: Mapping[int, str]) -> None:
        asked, self._asked = self._asked or frozenset(), None
        self.gone |= asked - set(members.values())
        self._there |= asked & set(members.values())

    def doubt(self, claim: UnitClaim | None) -> None:
        """Somebody has a unit: is he registered?"""
        if claim is not None and claim.incarnation not in self._members | self._there:
            self._doubted.add(claim.incarnation)

    def ask_again(self) -> None:
        """Who has come and gone without being seen is found out so."""
        self._doubted |= self._there - self._members
        self._there.clear()

    def asks(self) -> bool:
        """Whether ConfirmMembers is called for."""
        if self._asked is not None or not self._doubted:
            return False
        self._asked, self._doubted = frozenset(self._doubted), set()
        return True


class OwnershipMachine(Generic[U]):
    """``actor``'s part in one space. Whether a command may be begun says ``held``, at any time."""

    def __init__(self, actor: int, splitting: Splitting[U], session_s: float, margin_s: float) -> None:
        """``session_s``: the time-out of our ZooKeeper session, as it was agreed; ``margin_s``: how much earlier a
        lease ends."""
        self.actor = actor
        self.table: UnitTable[U] | None = None
        """The newest that was seen."""
        self.incarnation: str | None = None
        """Of our present registration; None while there may be none."""
        self.claims: dict[U, UnitClaim] = {}
        """What the fold says, of each unit it says something of."""
        self._splitting = splitting
        self._session_s, self._margin_s = session_s, margin_s
        self._own: set[str] = set()  # every incarnation that this process had
        self._sent_at_s: float | None = None  # of the write that the lease is from
        self._view = _View()
        self._caught_up = False
        self._served: set[U] = set()
        self._draining: dict[U, U | None] = {}  # -> the unit it is to be released under, None: it is lost
        self._work: dict[U, _Work[U]] = {}
        self._locked: set[U] = set()  # coarser units that OWNs under way lock
        self._waiting: dict[U, set[U]] = {}  # locked unit -> those that are to be taken when it is free
        self._split: set[U] = set()  # of which a finer one was owned
        self._level = splitting.first()
        self._touched: list[U] = []  # whose claims the last step has changed
        self._chains: dict[U, list[U]] = {}  # what ``rules.chain`` has said: a table has thousands of units

    # ---- questions

    @property
    def level(self) -> int:
        """The finest that is known of: that of the table, or of an OWN that was made by a newer one."""
        return self._level

    def held(self, unit: U) -> U | None:
        """The unit whose read lock our writes to ``unit`` carry: itself or a coarser one. None: it is not ours, no
        command of it may be begun. ``unit`` is of ``level``, or finer."""
        for each in self._chain(unit):
            if self._is_stopped(each):
                return None
            if each in self.claims:
                return each if each in self._served else None
        return None

    def _is_stopped(self, unit: U) -> bool:
        work = self._work.get(unit)
        return unit in self._draining or (work is not None and work.releases)

    def serving(self, unit: U) -> bool:
        """Whether commands of the unit may be begun."""
        return self.held(unit) is not None

    def engaged(self, unit: U) -> bool:
        """Whether the log may say, now or later, that the unit is ours: it does, or an OWN or RELEASE is under way."""
        claim = self.claims.get(unit)
        ours = claim is not None and rules.is_ours(claim, self.actor, self._own)
        return ours or unit in self._work or unit in self._draining

    def lease_until_s(self) -> float | None:
        """When the lease ends, by the clock of LeaseConfirmed; None: there is none."""
        if self._sent_at_s is None:
            return None
        return rules.lease_ends(self._sent_at_s, self._session_s, self._margin_s)

    def may_read(self, unit: U, now_s: float) -> bool:
        """Whether our fold may be read for ``unit`` without asking the log, at the moment ``now_s``."""
        held, until = self.held(unit), self.lease_until_s()
        if held is None or until is None or now_s >= until:
            return False
        return rules.readable_under(self.claims[held], self.incarnation)

    def holder(self, unit: U) -> int | None:
        """Who else is to be asked for a unit: who serves it, or will soon. None: nobody that we know of."""
        _, claim = self._claimed(unit)
        if claim is not None and claim.actor != self.actor and not rules.has_let_go(claim, self._own, self._view.gone):
            return claim.actor
        place = self.place(unit)
        return place.primary if place is not None and place.primary != self.actor else None

    def place(self, unit: U) -> UnitPlace | None:
        """What the table says of a unit of its level, or finer."""
        places = {} if self.table is None else self.table.places
        return next((places[each] for each in self._chain(unit) if each in places), None)

    def secondary(self, unit: U) -> int | None:
        """Who should keep a warm copy of the unit."""
        place = self.place(unit)
        return None if place is None else place.secondary

    def hosted(self) -> list[tuple[U, int]]:
        """(unit, instance) of the table's level: 0 of what we serve, 1 of what we keep warm."""
        places = {} if self.table is None else self.table.places
        primaries = [(unit, 0) for unit in places if self.serving(unit)]
        return primaries + [(unit, 1) for unit, place in places.items() if place.secondary == self.actor]

    def outrun(self) -> tuple[U, str] | None:
        """A unit that is ours by the table, and not to be taken, because the log is further than the table, and how
        far. For a moment that is so until we see the newer table. It lasts where ZooKeeper has lost the table, and the
        clock of who made it anew is behind."""
        places = {} if self.table is None else self.table.places
        for unit, place in places.items():
            claim = self._claimed(unit)[1]
            if claim is None or place.primary != self.actor or unit in self._split:
                continue
            if not rules.epoch_allows(claim, self.actor, place.epoch):
                return unit, f"the table gives it by epoch {place.epoch}, and the log has epoch {claim.epoch}"
        return None

    def broken(self) -> str | None:
        """Which invariant does not hold."""
        for unit in self._touched:
            if unit in self._served and not rules.is_ours(self.claims[unit], self.actor, self._own):
                return f"{unit} is served, and the log has {self.claims[unit]}"
        return None

    # ---- events

    def step(self, event: OwnershipEvent[U]) -> list[OwnershipEffect[U]]:
        """Take in one fact; the orders that follow from it."""
        effects: list[OwnershipEffect[U]] = []
        look: Iterable[U] = ()
        self._touched.clear()
        match event:
            case TableSeen(table):
                self.table, self._level = table, max(self._level, table.level)
                look = table.places
            case MembersSeen(members):
                self._view.seen(members)
                look = self._all()
            case MembersConfirmed(members):
                self._view.confirmed(members)
                look = self._all()
            case RegisteredAs(incarnation):
                self.incarnation, self._sent_at_s = incarnation, None
                self._own.add(incarnation)
                look = self._all()
            case Unregistered():
                self.incarnation = self._sent_at_s = None
            case LeaseConfirmed(incarnation, sent_at_s):
                self._view.ask_again()
                if incarnation == self.incarnation:
                    self._sent_at_s = max(sent_at_s, self._sent_at_s or sent_at_s)
            case FoldCaughtUp():
                self._caught_up = True
                look = self._all()
            case OwnersFolded(claims):
                effects, look = self._all_folded(claims)
            case TakeDone(unit, _) | ReleaseDone(unit):
                look = self._appended(unit)
            case TakeRefused(unit):
                look = self._ended(unit)
            case ReleaseRefused(unit):
                del self._work[unit]
                effects, look = self._release(unit), self._near(unit)
            case ReleaseLost(unit):
                del self._work[unit]
                effects, look = self._release(unit, gone_for_good=True), self._near(unit)
            case Drained(unit):
                if unit in self._draining:
                    effects, look = self._release(unit), self._near(unit)
        for unit in sorted(look, key=self._may_be_kept):  # others wait for what goes: see _take
            effects += self._look_at(unit)
        return [*effects, ConfirmMembers()] if self._view.asks() else effects

    def _all_folded(self, claims: Sequence[tuple[U, UnitClaim]]) -> tuple[list[OwnershipEffect[U]], Iterable[U]]:
        effects: list[OwnershipEffect[U]] = []
        look: dict[U, None] = {}
        for unit, claim in claims:
            found, near = self._folded(unit, claim)
            effects += found
            look.update(dict.fromkeys(near))
        return effects, look

    def _folded(self, unit: U, claim: UnitClaim) -> tuple[list[OwnershipEffect[U]], Iterable[U]]:
        before = self.held(unit)
        self.claims[unit] = claim
        self._touched.append(unit)
        self._split.update(self._chain(unit)[1:])
        self._level = max(self._level, self._splitting.level(unit))
        effects: list[OwnershipEffect[U]] = []
        if rules.is_ours(claim, self.actor, self._own):
            if unit not in self._served:
                effects.append(Serve(unit))
            self._served.add(unit)
        else:
            self._served.discard(unit)
            if before is not None:
                self._draining[unit] = None
                effects.append(StopServing(unit, f"actor {claim.actor} has it by epoch {claim.epoch} of the log"))
        work = self._work.get(unit)
        if work is not None and work.phase in (_Phase.TAKEN, _Phase.RELEASED) and work.is_folded(claim):
            return effects, self._ended(unit)
        return effects, self._under(unit)

    def _appended(self, unit: U) -> Iterable[U]:
        work = self._work[unit]
        if work.is_folded(self.claims.get(unit)):
            return self._ended(unit)
        work.phase = _Phase.RELEASED if work.releases else _Phase.TAKEN
        return ()

    def _ended(self, unit: U) -> list[U]:
        """An OWN or a RELEASE is not under way any more: what is to be looked at, now."""
        locked = self._work.pop(unit).locked
        self._locked.difference_update(locked)
        return self._near(unit)

    # ---- what follows

    def _look_at(self, unit: U) -> list[OwnershipEffect[U]]:
        """What is to be done with a unit of the table, if nothing is under way with it."""
        place = None if self.table is None else self.table.places.get(unit)
        if place is None or unit in self._split or not self._caught_up:
            return []
        if any(each in self._work or each in self._draining for each in self._chain(unit)):
            return []
        claimed, claim = self._claimed(unit)
        if place.primary == self.actor:
            return self._take(unit, place.epoch, claimed, claim)
        if claim is None or claimed not in self._served or not rules.must_let_go(place, claim, self.actor):
            return []
        self._draining[unit] = claimed
        whose = "nobody" if place.primary is None else f"actor {place.primary}"
        return [StopServing(unit, f"the table gives it to {whose}")]

    def _take(self, unit: U, epoch: int, claimed: U | None, claim: UnitClaim | None) -> list[OwnershipEffect[U]]:
        if self.incarnation is None or not rules.epoch_allows(claim, self.actor, epoch):
            return []
        if claimed == unit and unit in self._served and rules.readable_under(self.claims[unit], self.incarnation):
            return []  # we have it
        if not rules.has_let_go(claim, self._own, self._view.gone):
            self._view.doubt(claim)
            return []
        coarser = rules.locked_with(self._splitting, unit, claimed)
        in_the_way = [each for each in coarser if each in self._locked]
        if not in_the_way:
            in_the_way = [each for each in coarser[-1:] if each == claimed and self._parts_go(each)]
        if in_the_way:
            # An OWN of ours: only one of the two could be done. Or RELEASEs: each OWN would have them all refused, and
            # nobody serves their units meanwhile; this one is served as it was.
            self._waiting.setdefault(in_the_way[0], set()).add(unit)
            return []
        self._locked.update(coarser)
        self._work[unit] = _Work(_Phase.TAKING, self.incarnation, epoch, coarser)
        return [Take(unit, self.incarnation, epoch, coarser)]

    def _release(self, unit: U, gone_for_good: bool = False) -> list[OwnershipEffect[U]]:
        """Nothing of the unit is under way: it is released, unless that is not called for any more. ``gone_for_good``:
        it may be released already."""
        self._draining.pop(unit, None)
        claimed, claim = self._claimed(unit)
        if claim is None or claimed is None or claimed not in self._served:
            return []
        place = self.place(unit)
        if not gone_for_good and (place is None or not rules.must_let_go(place, claim, self.actor)):
            return [Serve(unit)] if claimed == unit else []
        self._work[unit] = _Work(_Phase.RELEASING, claim.incarnation, claim.epoch)
        return [ReleaseUnit(unit, claim.incarnation, claim.epoch, claimed)]

    def _claimed(self, unit: U) -> tuple[U | None, UnitClaim | None]:
        """What the log says last of a unit, and of which: itself or a coarser one."""
        for each in self._chain(unit):
            claim = self.claims.get(each)
            if claim is not None:
                return each, claim
        return None, None

    # ---- which units are looked at again

    def _all(self) -> Iterable[U]:
        return () if self.table is None else self.table.places

    def _chain(self, unit: U) -> list[U]:
        found = self._chains.get(unit)
        if found is None:
            found = self._chains[unit] = rules.chain(self._splitting, unit)
        return found

    def _may_be_kept(self, unit: U) -> bool:
        place = None if self.table is None else self.table.places.get(unit)
        return place is not None and place.primary == self.actor

    def _parts_go(self, coarse: U) -> bool:
        """Whether units in it are being released."""
        return any(self._is_stopped(each) for each in self._under(coarse))

    def _near(self, unit: U) -> list[U]:
        """What may go on when nothing of the unit is under way any more: itself, and what has waited for that."""
        found = self._under(unit)
        for coarse in self._chain(unit)[1:]:
            if coarse in self._waiting and coarse not in self._locked and not self._parts_go(coarse):
                found += sorted(self._waiting.pop(coarse), key=self._order)
        return found

    def _under(self, unit: U) -> list[U]:
        """The unit, if it is of the table's level, or those in it that are."""
        found = [unit]
        while self.table is not None and found and self._splitting.level(found[0]) < self.table.level:
            found = [each for coarse in found for each in self._splitting.finer(coarse)]
        return found

    def _order(self, unit: U) -> tuple[int, str]:
        """Sets have none; the same events lead to the same effects."""
        return self._splitting.level(unit), str(unit)
