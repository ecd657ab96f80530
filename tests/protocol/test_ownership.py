"""One owner's decisions, one by one; the walks have them all at once (``test_ownership_walks.py``)."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.protocol.units import Halving, Slice
from waltz_ray.protocol.ownership import OwnershipMachine
from waltz_ray.protocol.ownership_types import (
    ConfirmMembers,
    Drained,
    FoldCaughtUp,
    LeaseConfirmed,
    MembersConfirmed,
    MembersSeen,
    OwnersFolded,
    OwnershipEffect,
    RegisteredAs,
    ReleaseDone,
    ReleaseLost,
    ReleaseUnit,
    Serve,
    StopServing,
    TableSeen,
    Take,
    TakeDone,
    TakeRefused,
    UnitPlace,
    UnitTable,
    Unregistered,
)

A, B = Slice(2, 0), Slice(2, 1)
A1, A2 = Slice(4, 0), Slice(4, 2)  # what A becomes


class Said(NamedTuple):
    """What the log says."""

    actor: int
    incarnation: str
    epoch: int
    released: bool = False


class Owner:
    """Actor 0, registered as "i", caught up, and what it orders."""

    def __init__(self) -> None:
        self.machine: OwnershipMachine[Slice] = OwnershipMachine(0, Halving(2, 8), 10.0, 2.0)
        self.machine.step(RegisteredAs("i"))
        self.machine.step(FoldCaughtUp())

    def table(self, *places: UnitPlace) -> list[OwnershipEffect[Slice]]:
        level = len(places)
        return self.machine.step(TableSeen(UnitTable(level, {Slice(level, n): p for n, p in enumerate(places)})))

    def fold(self, unit: Slice, *said: object) -> list[OwnershipEffect[Slice]]:
        return self.machine.step(OwnersFolded(((unit, Said(*said)),)))  # type: ignore[arg-type]

    def has(self, unit: Slice, epoch: int) -> None:
        """It has taken it."""
        self.machine.step(TakeDone(unit, 1))
        assert Serve(unit) in self.fold(unit, 0, "i", epoch)


OTHERS = UnitPlace(1, 1)


def owner_of_a() -> Owner:
    owner = Owner()
    assert owner.table(UnitPlace(0, 5), OTHERS) == [Take(A, "i", 5, ())]
    owner.has(A, 5)
    return owner


def test_a_unit_is_served_when_the_fold_says_so_and_read_under_a_lease() -> None:
    owner = Owner()
    owner.table(UnitPlace(0, 5, 1), OTHERS)
    assert owner.machine.step(TakeDone(A, 9)) == []
    assert not owner.machine.serving(A)
    assert owner.fold(A, 0, "i", 5) == [Serve(A)]
    assert owner.machine.held(A) == A
    assert not owner.machine.may_read(A, 0.0)
    owner.machine.step(LeaseConfirmed("i", 100.0))
    owner.machine.step(LeaseConfirmed("another", 200.0))
    assert [owner.machine.may_read(A, now) for now in (100.0, 107.9, 108.0)] == [True, True, False]
    assert (owner.machine.hosted(), owner.machine.secondary(A), owner.machine.holder(B)) == ([(A, 0)], 1, 1)
    owner.machine.step(Unregistered())
    assert (owner.machine.serving(A), owner.machine.may_read(A, 101.0)) == (True, False), "service goes on"


def test_what_the_table_takes_away_is_drained_and_released() -> None:
    owner = owner_of_a()
    (stop,) = owner.table(UnitPlace(1, 6), OTHERS)
    assert isinstance(stop, StopServing)
    assert not owner.machine.serving(A)
    assert owner.machine.step(Drained(A)) == [ReleaseUnit(A, "i", 5, A)]
    assert owner.machine.step(ReleaseDone(A)) == []
    assert owner.fold(A, 0, "i", 5, True) == []
    assert owner.machine.holder(A) == 1


def test_a_release_that_the_fold_tells_of_together_with_what_came_after_it_is_over() -> None:
    """A zombie of ours took it at once, in the same epoch."""
    owner = owner_of_a()
    owner.table(UnitPlace(1, 6), OTHERS)
    owner.machine.step(Drained(A))
    owner.machine.step(ReleaseDone(A))
    assert owner.fold(A, 0, "zombie", 5) == []
    assert owner.table(UnitPlace(0, 7), OTHERS) == [ConfirmMembers()]
    assert owner.machine.step(MembersConfirmed({0: "i"})) == [Take(A, "i", 7, ())]


def test_who_may_have_released_a_unit_does_not_serve_it_again() -> None:
    owner = owner_of_a()
    owner.table(UnitPlace(1, 6), OTHERS)
    owner.machine.step(Drained(A))
    owner.table(UnitPlace(0, 7), OTHERS)
    assert owner.machine.step(ReleaseLost(A)) == [ReleaseUnit(A, "i", 5, A)]
    owner.machine.step(ReleaseDone(A))
    assert owner.fold(A, 0, "i", 5, True) == [Take(A, "i", 7, ())]


def test_a_unit_that_comes_back_before_it_was_released_is_served_again() -> None:
    owner = owner_of_a()
    owner.table(UnitPlace(1, 6), OTHERS)
    owner.table(UnitPlace(0, 7), OTHERS)
    assert owner.machine.step(Drained(A)) == [Serve(A)]
    assert owner.machine.serving(A)


def test_an_old_table_takes_nothing_away_and_gives_nothing() -> None:
    """A new session of ZooKeeper may show one that is older than what we have acted on."""
    owner = owner_of_a()
    assert owner.table(UnitPlace(1, 4), OTHERS) == []
    assert owner.machine.serving(A)
    late = Owner()
    late.fold(A, 1, "j", 6, True)
    assert late.table(UnitPlace(0, 5), OTHERS) == []


def test_a_zombie_does_not_take_what_its_successor_has() -> None:
    """The same actor in another process is another: it may be the younger one."""
    owner = Owner()
    owner.machine.step(MembersSeen({0: "successor"}))
    owner.fold(A, 0, "successor", 5)
    assert owner.table(UnitPlace(0, 5), OTHERS) == []


def test_a_new_process_asks_whether_its_predecessors_registration_has_gone() -> None:
    owner = Owner()
    owner.fold(A, 0, "predecessor", 5)
    assert owner.table(UnitPlace(0, 5), OTHERS) == [ConfirmMembers()]
    assert owner.machine.step(MembersConfirmed({0: "i"})) == [Take(A, "i", 5, ())]


def test_who_was_there_when_we_asked_and_was_never_seen_is_asked_about_again() -> None:
    """A watch may skip him altogether."""
    owner = Owner()
    owner.fold(A, 1, "j", 4)
    assert owner.table(UnitPlace(0, 5), OTHERS) == [ConfirmMembers()]
    assert owner.machine.step(MembersConfirmed({0: "i", 1: "j"})) == []
    assert owner.machine.step(MembersSeen({0: "i"})) == []
    assert owner.machine.step(LeaseConfirmed("i", 1.0)) == [ConfirmMembers()]
    assert owner.machine.step(MembersConfirmed({0: "i"})) == [Take(A, "i", 5, ())]


def test_who_was_seen_and_is_no_more_has_gone() -> None:
    owner = Owner()
    owner.machine.step(MembersSeen({0: "i", 1: "j"}))
    owner.fold(A, 1, "j", 4)
    assert owner.table(UnitPlace(0, 5), OTHERS) == []
    assert owner.machine.step(MembersSeen({0: "i"})) == [Take(A, "i", 5, ())]


def test_a_coarser_unit_is_served_while_its_parts_are_released_and_then_taken() -> None:
    owner = owner_of_a()
    (stop,) = owner.table(UnitPlace(0, 6), OTHERS, UnitPlace(1, 7), OTHERS)
    assert isinstance(stop, StopServing)
    assert stop.unit == A2
    assert (owner.machine.held(A1), owner.machine.held(A2)) == (A, None)
    assert owner.machine.step(Drained(A2)) == [ReleaseUnit(A2, "i", 5, A)], "an OWN of A1 would have it refused"
    assert owner.machine.step(ReleaseDone(A2)) == []
    assert owner.fold(A2, 0, "i", 5, True) == [Take(A1, "i", 6, (A,))]
    owner.has(A1, 6)
    assert (owner.machine.held(A1), owner.machine.held(A2), owner.machine.level) == (A1, None, 4)


def test_a_part_that_was_to_go_and_is_to_stay_holds_nothing_up() -> None:
    """The table gives it back before it is drained."""
    owner = owner_of_a()
    owner.table(UnitPlace(0, 6), OTHERS, UnitPlace(1, 7), OTHERS)
    assert owner.table(UnitPlace(0, 6), OTHERS, UnitPlace(0, 8), OTHERS) == []
    assert owner.machine.step(Drained(A2)) == [Take(A2, "i", 8, (A,))]
    owner.machine.step(TakeDone(A2, 2))
    assert owner.fold(A2, 0, "i", 8) == [Serve(A2), Take(A1, "i", 6, (A,))]


def test_the_parts_of_a_unit_are_taken_one_after_the_other() -> None:
    """Each locks the coarser one: two at once would be in each other's way."""
    owner = owner_of_a()
    assert owner.table(UnitPlace(0, 6), OTHERS, UnitPlace(0, 6), OTHERS) == [Take(A1, "i", 6, (A,))]
    owner.machine.step(TakeDone(A1, 2))
    assert owner.fold(A1, 0, "i", 6) == [Serve(A1), Take(A2, "i", 6, (A,))]


def test_a_unit_of_which_a_part_was_owned_is_never_taken() -> None:
    """By an old table."""
    owner = Owner()
    owner.fold(A1, 1, "j", 9, True)
    assert owner.table(UnitPlace(0, 20), OTHERS) == []


def test_what_another_has_by_the_log_is_served_no_more() -> None:
    owner = owner_of_a()
    (stop,) = owner.fold(A, 1, "j", 6)
    assert isinstance(stop, StopServing)
    assert not owner.machine.serving(A)
    assert owner.machine.step(Drained(A)) == []


def test_a_refused_own_is_tried_again_while_it_is_called_for() -> None:
    owner = Owner()
    owner.table(UnitPlace(0, 5), OTHERS)
    assert owner.machine.step(TakeRefused(A)) == [Take(A, "i", 5, ())]


def test_a_new_registration_takes_everything_again_for_its_lease() -> None:
    owner = owner_of_a()
    owner.machine.step(Unregistered())
    assert owner.machine.step(RegisteredAs("k")) == [Take(A, "k", 5, ())]
    owner.machine.step(LeaseConfirmed("k", 1.0))
    assert (owner.machine.serving(A), owner.machine.may_read(A, 2.0)) == (True, False)
    owner.machine.step(TakeDone(A, 3))
    owner.fold(A, 0, "k", 5)
    assert owner.machine.may_read(A, 2.0)


@pytest.mark.parametrize("released", [False, True])
def test_nothing_is_taken_before_the_fold_has_caught_up_or_without_registration(released: bool) -> None:
    machine: OwnershipMachine[Slice] = OwnershipMachine(0, Halving(2, 8), 10.0, 2.0)
    table = UnitTable(2, {A: UnitPlace(0, 5), B: OTHERS})
    assert machine.step(TableSeen(table)) == []
    if released:
        machine.step(OwnersFolded(((A, Said(1, "j", 1, True)),)))
    assert machine.step(FoldCaughtUp()) == []
    assert machine.step(RegisteredAs("i")) == [Take(A, "i", 5, ())]


def test_a_table_whose_epochs_are_below_the_logs_is_told() -> None:
    """As one that was lost and made anew by a clock that is behind: its units would be nobody's, and nobody say why."""
    owner = Owner()
    owner.fold(A, 1, "gone", 7, True)
    owner.table(UnitPlace(0, 7), OTHERS)
    assert owner.machine.outrun() == (A, "the table gives it by epoch 7, and the log has epoch 7")
    assert owner.table(UnitPlace(0, 8), OTHERS) == [Take(A, "i", 8, ())]
    assert owner.machine.outrun() is None
    owner.has(A, 8)
    assert owner.machine.outrun() is None
    owner.table(UnitPlace(1, 3), UnitPlace(1, 3))
    assert owner.machine.outrun() is None, "others' are not ours to tell"
