"""When the table of a layer's units is written anew: what the leading manager decides about one space. Pure."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import TypeVar

from waltz_ray.protocol.arrangement import arrange, first_table
from waltz_ray.protocol.ownership_types import Splitting, UnitTable

__all__ = ["may_arrange", "rearranged"]

U = TypeVar("U", bound=Hashable)


def may_arrange(present: Collection[int], expected: int, waited_s: float, settle_s: float) -> bool:
    """Whether the first arrangement of this leader may be made: all are there, or have been waited for long enough.

    Else whoever of a starting cluster comes first would be given everything, only to give it away again.
    """
    return len(present) >= expected or waited_s >= settle_s


def rearranged(
    splitting: Splitting[U], table: UnitTable[U] | None, present: Collection[int], fewest: int, unix_s: int
) -> UnitTable[U] | None:
    """The table that should be written, None if the one there is is right. ``present``: who is there and stays.

    ``unix_s``: the first epoch of a space that has no table, or has lost it.
    """
    before = first_table(splitting, unix_s) if table is None else table
    wanted = arrange(splitting, before, present, fewest)
    return None if wanted == table or (table is None and not present) else wanted
