"""Small units for tests: numbers under a level, split in two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Slice(NamedTuple):
    """All numbers whose remainder by ``level`` is ``rest``."""

    level: int
    rest: int


class Halving:
    """``Splitting`` with the levels ``first``, twice that, ... up to ``last``."""

    def __init__(self, first: int = 2, last: int = 8) -> None:
        self._first, self._last = first, last

    def level(self, unit: Slice) -> int:
        return unit.level

    def coarser(self, unit: Slice) -> Slice | None:
        if unit.level == self._first:
            return None
        return Slice(unit.level // 2, unit.rest % (unit.level // 2))

    def finer(self, unit: Slice) -> Sequence[Slice]:
        if unit.level == self._last:
            return []
        return [Slice(2 * unit.level, unit.rest), Slice(2 * unit.level, unit.rest + unit.level)]

    def units(self, level: int) -> Sequence[Slice]:
        return [Slice(level, rest) for rest in range(level)]

    def next(self, level: int) -> int | None:
        return None if level == self._last else 2 * level

    def first(self) -> int:
        return self._first
