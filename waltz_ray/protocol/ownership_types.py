"""What is said to and by an ``OwnershipMachine``: units, the table of who should have which, events, effects.

A *unit* is what one actor serves at a time: a bucket of a key/value space, a slot of topics. Units may have *levels*:
a unit of one level becomes several finer ones of the next (``Splitting``). A *level* is a number that rises.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from waltz_ray.protocol.value import value

__all__ = [
    "UnitClaim",
    "ConfirmMembers",
    "Drained",
    "FoldCaughtUp",
    "LeaseConfirmed",
    "MembersConfirmed",
    "MembersSeen",
    "OwnershipEffect",
    "OwnersFolded",
    "OwnershipEvent",
    "RegisteredAs",
    "ReleaseDone",
    "ReleaseLost",
    "ReleaseRefused",
    "ReleaseUnit",
    "Serve",
    "Splitting",
    "StopServing",
    "TableSeen",
    "Take",
    "TakeDone",
    "TakeRefused",
    "UnitPlace",
    "UnitTable",
    "Unregistered",
]

U = TypeVar("U", bound=Hashable)


class Splitting(Protocol[U]):
    """How units are split, of one space."""

    def level(self, unit: U) -> int:
        """Of this unit."""
        ...

    def coarser(self, unit: U) -> U | None:
        """The unit that this one was a part of; None under the first level."""
        ...

    def finer(self, unit: U) -> Sequence[U]:
        """What it becomes under the next level; nothing under the last."""
        ...

    def units(self, level: int) -> Sequence[U]:
        """All of that level, in a fixed order."""
        ...

    def first(self) -> int:
        """The level a space begins with."""
        ...

    def next(self, level: int) -> int | None:
        """The level behind this one; None: it is the last."""
        ...


class UnitClaim(Protocol):
    """What the log says of a unit: ``kv.model.Ownership`` is one."""

    @property
    def actor(self) -> int: ...
    @property
    def incarnation(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def released(self) -> bool:
        """It has let go of the unit, and has nothing of it under way."""
        ...


class UnitPlace(NamedTuple):
    """Who should have a unit. ``epoch`` rises whenever ``primary`` changes; None: nobody can."""

    primary: int | None
    epoch: int
    secondary: int | None = None


@value()
class UnitTable(Generic[U]):
    """Who should have which unit, of all units of one level. Do not change the mapping in place."""

    level: int
    places: Mapping[U, UnitPlace]


# ---- events


@value()
class TableSeen(Generic[U]):
    """The table as of some time, which never goes back within one session of ZooKeeper."""

    table: UnitTable[U]


@value()
class MembersSeen:
    """The registered actors and their incarnations, as a watch tells them: as of some time, which never goes back."""

    members: Mapping[int, str]


@value()
class MembersConfirmed:
    """Answer to ConfirmMembers: the registered actors, read after it was asked."""

    members: Mapping[int, str]


@value()
class RegisteredAs:
    """Our own registration is there, under a new incarnation."""

    incarnation: str


@value()
class Unregistered:
    """Our registration may be gone."""


@value()
class LeaseConfirmed:
    """Our write to our own node, sent at ``sent_at_s``, succeeded while ``incarnation`` was registered there."""

    incarnation: str
    sent_at_s: float


@value()
class OwnersFolded(Generic[U]):
    """What our fold says now of the units that it has something new of; at the start, of all it knows.

    All that one step of the fold has changed is told at once, before the fold's mark is used: a decision that knows
    only some of it would be appended with the mark of all.
    """

    claims: tuple[tuple[U, UnitClaim], ...]


@value()
class FoldCaughtUp:
    """Our folds have once been at the end of their partitions: the OwnersFolded until then are what there was."""


@value()
class TakeDone(Generic[U]):
    """The OWN of a Take is in the log. It counts when it is folded."""

    unit: U
    transaction_id: int


@value()
class TakeRefused(Generic[U]):
    """The OWN of a Take is not in the log. If a lock was in its way, the fold has that by now.

    Also where nobody can say whether it is: another one does no harm, whichever comes first.
    """

    unit: U


@value()
class Drained(Generic[U]):
    """Nothing of the unit is under way any more: answer to StopServing."""

    unit: U


@value()
class ReleaseDone(Generic[U]):
    """The RELEASE is in the log. It counts when it is folded."""

    unit: U


@value()
class ReleaseRefused(Generic[U]):
    """The RELEASE is not in the log and will never be. If a lock was in its way, the fold has that by now."""

    unit: U


@value()
class ReleaseLost(Generic[U]):
    """Nobody can say whether the RELEASE is in the log, or will be: the unit must not be served any more, whatever the
    table says; another RELEASE is sent."""

    unit: U


# ---- effects


@value()
class Take(Generic[U]):
    """Append OWN(unit, we, incarnation, epoch) under the *write* locks of ``unit`` and of each of ``coarser``, with the
    fold's mark of now. Ends in TakeDone or TakeRefused."""

    unit: U
    incarnation: str
    epoch: int
    coarser: tuple[U, ...]


@value()
class Serve(Generic[U]):
    """From now on the unit's commands are taken, under the unit's own read lock."""

    unit: U


@value()
class StopServing(Generic[U]):
    """From now on no command of the unit (or of one finer) is begun. Ends in Drained."""

    unit: U
    reason: str


@value()
class ReleaseUnit(Generic[U]):
    """Append RELEASE(unit, we, incarnation, epoch) under the read lock of ``held``, the unit or one coarser, with the
    fold's mark of now. Ends in ReleaseDone, ReleaseRefused or ReleaseLost."""

    unit: U
    incarnation: str
    epoch: int
    held: U


@value()
class ConfirmMembers:
    """Read the registered actors anew, by a read that sees all that was written before: after a write of our own.

    Ends in MembersConfirmed; where ZooKeeper does not answer, it is tried until it does. One at a time.
    """


OwnershipEvent = (
    TableSeen[U]
    | MembersSeen
    | MembersConfirmed
    | RegisteredAs
    | Unregistered
    | LeaseConfirmed
    | OwnersFolded[U]
    | FoldCaughtUp
    | TakeDone[U]
    | TakeRefused[U]
    | Drained[U]
    | ReleaseDone[U]
    | ReleaseRefused[U]
    | ReleaseLost[U]
)
OwnershipEffect = Take[U] | Serve[U] | StopServing[U] | ReleaseUnit[U] | ConfirmMembers
