"""Who should have which unit: a pure function from the table that is to the table that should be.

- Primaries, and secondaries, differ by one at the most from actor to actor; a secondary is never its unit's primary.
- As few primaries move as balance allows. Where one has to, its secondary takes it if balance allows: it is warm.
- The same input gives the same output, and the output is a fixed point.
- Who is leaving, or not there, gets nothing; if nobody else is there, the table stays as it is.
- When the actors are so many that one would have fewer than ``fewest`` units, primaries and secondaries counted, all
  units are split, at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from waltz_ray.protocol.ownership_types import Splitting, UnitPlace, UnitTable

__all__ = ["FEWEST_UNITS", "arrange", "first_table", "level_for", "split"]

FEWEST_UNITS = 4
"""Units that an actor has at the least, where they can be split so far."""

U = TypeVar("U", bound=Hashable)


def first_table(splitting: Splitting[U], first_epoch: int) -> UnitTable[U]:
    """Of a space that has none: nobody has anything.

    ``first_epoch``: higher than any that the space's log may have from before its table was lost: the Unix time.
    """
    level = splitting.first()
    return UnitTable(level, {unit: UnitPlace(None, first_epoch) for unit in splitting.units(level)})


def level_for(splitting: Splitting[U], level: int, actors: int, fewest: int) -> int:
    """The level at which each of so many actors has ``fewest`` units, or the last one; never lower than ``level``."""
    copies = 2 if actors > 1 else 1
    while copies * len(splitting.units(level)) // max(1, actors) < fewest:
        following = splitting.next(level)
        if following is None:
            break
        level = following
    return level


def split(splitting: Splitting[U], table: UnitTable[U]) -> UnitTable[U]:
    """The same under the next level: who had a unit has all that it becomes, in the epoch behind its own."""
    places: dict[U, UnitPlace] = {}
    for unit, place in table.places.items():
        for finer in splitting.finer(unit):
            places[finer] = place._replace(epoch=place.epoch + 1)
    level = splitting.next(table.level)
    assert level is not None, "the last level is not split"
    return UnitTable(level, {unit: places[unit] for unit in splitting.units(level)})


def arrange(
    splitting: Splitting[U], table: UnitTable[U], actors: Collection[int], fewest: int = FEWEST_UNITS
) -> UnitTable[U]:
    """The table for these ``actors``: those that are there and stay."""
    if not actors:
        return table
    wanted = level_for(splitting, table.level, len(actors), fewest)
    while table.level != wanted:
        table = split(splitting, table)
    work = _Arranging(table, sorted(actors))
    work.place_primaries()
    work.place_secondaries()
    places = {unit: work.place(unit) for unit in table.places}
    return UnitTable(table.level, places)


class _Pile(NamedTuple):
    """Units that differ in nothing that matters to who gives one away: their primary (or secondary), whether the
    table before had it so, and their secondary (or primary)."""

    holder: int | None
    stays: bool
    other: int | None


class _Piles:
    """Units, by their numbers, in piles: thousands are looked at as a few. In ``tops`` the lowest of each is first."""

    def __init__(self) -> None:
        self.tops: dict[_Pile, list[int]] = {}

    def put(self, pile: _Pile, number: int) -> None:
        heappush(self.tops.setdefault(pile, []), number)

    def take(self, pile: _Pile) -> int:
        """The lowest number of it."""
        numbers = self.tops[pile]
        number = heappop(numbers)
        if not numbers:
            del self.tops[pile]
        return number


class _Arranging(Generic[U]):
    """``table`` under change."""

    def __init__(self, table: UnitTable[U], actors: list[int]) -> None:
        self.before = table.places
        self.units = list(table.places)
        self.numbers = {unit: number for number, unit in enumerate(self.units)}
        self.actors = actors
        there = set(actors)
        self.primary: dict[U, int | None] = {}
        self.secondary: dict[U, int | None] = {}
        for unit, place in self.before.items():
            self.primary[unit] = place.primary if place.primary in there else None
            self.secondary[unit] = place.secondary if place.secondary in there - {place.primary} else None

    def place(self, unit: U) -> UnitPlace:
        before, primary = self.before[unit], self.primary[unit]
        epoch = before.epoch if before.primary == primary else before.epoch + 1
        return UnitPlace(primary, epoch, self.secondary[unit])

    # ---- primaries

    def place_primaries(self) -> None:
        for unit in self.units:
            if self.primary[unit] is None and self.secondary[unit] is not None:
                self._give(unit, self.secondary[unit])
        load = self._loads(self.primary)
        for unit in self.units:
            if self.primary[unit] is None:
                self._give(unit, min(self.actors, key=lambda actor: load[actor]))
                load[self.primary[unit]] += 1
        piles = _Piles()
        for number, unit in enumerate(self.units):
            piles.put(self._pile_of_primary(unit), number)
        while True:
            light, heaviest = self._ends(load)
            if load[heaviest] - load[light] <= 1:
                return
            unit = self.units[piles.take(self._to_be_moved(piles, light, load))]
            load[self.primary[unit]] -= 1
            load[light] += 1
            self._give(unit, light)
            piles.put(self._pile_of_primary(unit), self.numbers[unit])

    def _pile_of_primary(self, unit: U) -> _Pile:
        primary = self.primary[unit]
        return _Pile(primary, self.before[unit].primary == primary, self.secondary[unit])

    def _to_be_moved(self, piles: _Piles, light: int, load: Counter[int | None]) -> _Pile:
        """The primaries that cost the least to move: one that stayed until now is one more that moves; who has more
        should give before who has less; and one may be cold."""
        movable = [pile for pile in piles.tops if load[pile.holder] - load[light] > 1]
        return min(movable, key=lambda pile: (pile.stays, -load[pile.holder], pile.other != light, piles.tops[pile][0]))

    def _give(self, unit: U, actor: int | None) -> None:
        """A new primary; if that was the secondary, the old primary is warm, and takes its place."""
        old, self.primary[unit] = self.primary[unit], actor
        if self.secondary[unit] == actor:
            self.secondary[unit] = old

    # ---- secondaries

    def place_secondaries(self) -> None:
        if len(self.actors) < 2:
            self.secondary = dict.fromkeys(self.units)
            return
        load = self._loads(self.secondary)
        pairs = Counter((self.primary[unit], self.secondary[unit]) for unit in self.units)
        for unit in self.units:
            if self.secondary[unit] is None:
                primary = self.primary[unit]
                others = [actor for actor in self.actors if actor != primary]
                found = min(others, key=lambda actor: (load[actor], pairs[primary, actor]))
                self.secondary[unit] = found
                load[found] += 1
                pairs[primary, found] += 1
        piles = _Piles()
        for number, unit in enumerate(self.units):
            piles.put(self._pile_of_secondary(unit), number)
        while True:
            light, heavy = self._ends(load)
            if load[heavy] - load[light] <= 1:
                return
            self._shift(piles, heavy, light)
            load[heavy], load[light] = load[heavy] - 1, load[light] + 1

    def _pile_of_secondary(self, unit: U) -> _Pile:
        secondary = self.secondary[unit]
        return _Pile(secondary, self.before[unit].secondary == secondary, self.primary[unit])

    def _shift(self, piles: _Piles, heavy: int, light: int) -> None:
        """One secondary less for ``heavy`` and one more for ``light``: by way of a third where it cannot be its."""
        if self._move_secondary(piles, heavy, light):
            return
        for third in self.actors:
            passes_on = third not in (heavy, light) and self._movable(piles, third, light)
            if passes_on and self._move_secondary(piles, heavy, third):
                moved = self._move_secondary(piles, third, light)
                assert moved
                return
        raise AssertionError(f"no secondary can go from actor {heavy} to {light}")

    def _movable(self, piles: _Piles, source: int, target: int) -> list[_Pile]:
        return [pile for pile in piles.tops if pile.holder == source and pile.other != target]

    def _move_secondary(self, piles: _Piles, source: int, target: int) -> bool:
        movable = self._movable(piles, source, target)
        if movable:
            number = piles.take(min(movable, key=lambda pile: (pile.stays, piles.tops[pile][0])))
            unit = self.units[number]
            self.secondary[unit] = target
            piles.put(self._pile_of_secondary(unit), number)
        return bool(movable)

    # ----

    def _loads(self, of: dict[U, int | None]) -> Counter[int | None]:
        load: Counter[int | None] = Counter(dict.fromkeys(self.actors, 0))
        load.update(actor for actor in of.values() if actor is not None)
        return load

    def _ends(self, load: Counter[int | None]) -> tuple[int, int]:
        """Who has the fewest and who has the most; of equals the first, and the last."""
        return min(self.actors, key=lambda a: (load[a], a)), max(self.actors, key=lambda a: (load[a], a))
