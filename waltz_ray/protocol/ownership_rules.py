"""The rules of ownership, each by its name: who may take a unit, who must let go, until when it may be read.

Each answers one question and changes nothing. When it is asked, and what follows, is ``ownership.py``'s.
``tests/protocol/test_ownership_walks.py`` breaks them, and something must notice it.
"""

from __future__ import annotations

from collections.abc import Container, Hashable
from typing import TypeVar

from waltz_ray.protocol.ownership_types import Splitting, UnitClaim, UnitPlace

__all__ = [
    "chain",
    "epoch_allows",
    "gone_by_view",
    "has_let_go",
    "is_ours",
    "lease_ends",
    "locked_with",
    "must_let_go",
    "readable_under",
]

U = TypeVar("U", bound=Hashable)


def chain(splitting: Splitting[U], unit: U) -> list[U]:
    """The unit and all that it was ever a part of, the finest first."""
    found = [unit]
    while (above := splitting.coarser(found[-1])) is not None:
        found.append(above)
    return found


def epoch_allows(claim: UnitClaim | None, actor: int, epoch: int) -> bool:
    """Whether the table that gives ``actor`` the unit in ``epoch`` is newer than what the log says.

    Else somebody who has read a newer table was here: ours is old.
    """
    if claim is None or epoch > claim.epoch:
        return True
    return claim.actor == actor and epoch == claim.epoch


def has_let_go(claim: UnitClaim | None, own: Container[str], gone: Container[str]) -> bool:
    """Whether nobody but this process serves the unit.

    Its owner has released it; or his registration is gone, and with it his lease; or it was this process itself.
    Another process under the same number is another: it may be our successor, and we a zombie.
    """
    return claim is None or claim.released or claim.incarnation in own or claim.incarnation in gone


def gone_by_view(seen: Container[str], before: frozenset[str]) -> frozenset[str]:
    """Of the incarnations that were registered in the view ``before``, those that are not now: they never come back.

    One that was never seen may just be younger than the view.
    """
    return frozenset(incarnation for incarnation in before if incarnation not in seen)


def locked_with(splitting: Splitting[U], unit: U, claimed: U | None) -> tuple[U, ...]:
    """Which coarser units an OWN of ``unit`` locks, too: up to the one that the log says something of.

    So the owner of the coarser one writes no more under its lock, nor is it taken anew, without knowing of this OWN.
    """
    above = chain(splitting, unit)[1:]
    return tuple(above if claimed is None else above[: above.index(claimed) + 1] if claimed in above else ())


def is_ours(claim: UnitClaim, actor: int, own: Container[str]) -> bool:
    """Whether this process has the unit: it took it, under one of its own registrations, and has not released it."""
    return claim.actor == actor and claim.incarnation in own and not claim.released


def must_let_go(place: UnitPlace, claim: UnitClaim, actor: int) -> bool:
    """Whether the owner of a unit has to release it: a table newer than its OWN names another, or nobody."""
    return place.primary != actor and place.epoch > claim.epoch


def readable_under(claim: UnitClaim, incarnation: str | None) -> bool:
    """Whether the lease of a registration covers a unit: only one that was taken under this very registration.

    Since an older one was gone somebody may have taken the unit, which our fold has not come to yet.
    """
    return incarnation is not None and claim.incarnation == incarnation


def lease_ends(sent_at_s: float, session_s: float, margin_s: float) -> float:
    """Until when what was confirmed by a write sent at ``sent_at_s`` may be read: ZooKeeper keeps the session for
    ``session_s`` from when that write came there, which was later; ``margin_s``: if our clock is slower than its."""
    return sent_at_s + session_s - margin_s
