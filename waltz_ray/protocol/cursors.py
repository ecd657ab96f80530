"""Cursors: named positions in the partitions of a space, with one owner at a time. What they are, and the rules. Pure.

Whoever opens a cursor raises its *epoch*, and writes nothing but what follows the node that has this epoch. So an
owner that was paused, and has been replaced meanwhile, moves nothing any more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.value import value

__all__ = ["CursorRecord", "advanced", "checked_cursor_name", "deleted", "hold_name", "taken"]

_NAME = re.compile("[a-z0-9_-]{1,64}")


@value()
class CursorRecord:
    """Where a cursor stands: of each of its partitions, as its space numbers them, the ID that comes next.

    ``epoch``: one more with each owner; ``owner``: of this epoch, "" = it never had one. ``changed_ms``: when it was
    written last, Unix time in milliseconds. Without positions it was deleted: what is left is the epoch, which goes on
    if a cursor of that name is made again, so that no two owners ever have the same.
    """

    positions: Mapping[int, int]
    holds_retention: bool = False
    epoch: int = 0
    owner: str = ""
    changed_ms: int = 0

    @property
    def deleted(self) -> bool:
        """There is no cursor of that name."""
        return not self.positions


def checked_cursor_name(name: object) -> str:
    """InvalidInput if it cannot be the name of a cursor."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInput(f"{name!r:.60} cannot name a cursor: take 1 to 64 of a-z, 0-9, _ and -")
    return name


def hold_name(space: str, name: str) -> str:
    """The hold of a cursor that holds retention. No two cursors have the same: neither name has a dot in it."""
    return f"cursor.{space}.{name}"


def taken(record: CursorRecord, owner: str, hold: bool | None, now_ms: int) -> CursorRecord:
    """``record`` in the hands of its next owner; ``hold`` None: it holds retention if it did."""
    holds = record.holds_retention if hold is None else hold
    return replace(record, holds_retention=holds, epoch=record.epoch + 1, owner=owner, changed_ms=now_ms)


def deleted(record: CursorRecord, now_ms: int) -> CursorRecord:
    """What stays of it."""
    return replace(record, positions={}, holds_retention=False, changed_ms=now_ms)


def advanced(record: CursorRecord, positions: Mapping[int, int], now_ms: int) -> CursorRecord:
    """``record`` with the positions of some of its partitions moved on: never back."""
    moved = {p: max(position, positions.get(p, position)) for p, position in record.positions.items()}
    return replace(record, positions=moved, changed_ms=now_ms)
