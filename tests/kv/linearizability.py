"""What one copy of an item, or of a lock, could show to its callers: models for ``tests/linearizability/search.py``.

Time passes for items with a deadline. When it was reckoned is known only to lie within the call, and other clocks may
be wrong by the model's slack, so an item may be missing from (invocation + life - slack) on, and may still be there
until (return + life + slack). A lock's lease is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.linearizability.search import Model

__all__ = [
    "ANYTHING",
    "Asked",
    "MISSING",
    "Obtain",
    "Denied",
    "Erase",
    "Erased",
    "Granted",
    "KvCall",
    "Peek",
    "Extend",
    "Retime",
    "Shown",
    "Store",
    "Stored",
    "Unlatch",
    "Unmet",
    "item_model",
    "lock_model",
]

ANYTHING, MISSING = -2, -3
"""Of ``expected``: whatever is there; no item."""

# ---- what is asked of an item, and the results


class Peek(NamedTuple):
    """A read. Result: Shown."""


class Store(NamedTuple):
    """A set. ``expected``: the item's version, MISSING or ANYTHING. Result: Stored or Unmet."""

    value: Hashable
    life_s: float = math.inf
    expected: int = ANYTHING


class Retime(NamedTuple):
    """A touch: only the deadline changes. Result: Stored, Unmet or, where there is nothing, Shown(None)."""

    life_s: float = math.inf
    expected: int = ANYTHING


class Erase(NamedTuple):
    """Result: Erased or Unmet."""

    expected: int = ANYTHING


class Shown(NamedTuple):
    """None: there is no such item. A ``version`` of None is not known to the caller."""

    value: Hashable | None
    version: int | None = None


class Stored(NamedTuple):
    version: int | None = None


class Unmet(NamedTuple):
    """Nothing was changed: it is not at the expected version but at this one (-1: there is none; None: not told)."""

    version: int | None = None


class Erased(NamedTuple):
    """``existed`` None: not told."""

    existed: bool | None = None


# ---- of a lock


class Obtain(NamedTuple):
    """Result: Granted, or Denied because somebody had it."""

    lease_s: float


class Extend(NamedTuple):
    """The lease begins anew. Result: Granted with the same code, or Denied."""

    code: int
    lease_s: float


class Unlatch(NamedTuple):
    """Result: Granted with the code it had, or Denied."""

    code: int


class Granted(NamedTuple):
    code: int


class Denied(NamedTuple):
    pass


Asked = Peek | Store | Retime | Erase | Obtain | Extend | Unlatch
Result = Shown | Stored | Unmet | Erased | Granted | Denied


@dataclass(frozen=True)
class KvCall:
    """One call, as its caller saw it. Times in seconds of one clock."""

    key: Hashable
    asked: Asked
    result: Result | None
    invoked: float
    returned: float = math.inf
    who: Any = None
    """For the text of an error."""

    @property
    def end(self) -> float:
        """The last moment at which it can have happened."""
        return self.returned if self.result is not None else math.inf


# ---- items


class ItemState(NamedTuple):
    """``value`` None: missing. ``version`` None: that of a write nobody was told of, which is at least ``floor``. What
    is written later is above that. It may be missing from ``earliest`` on and is missing after ``latest``."""

    value: Hashable | None = None
    version: int | None = -1
    floor: int = -1
    earliest: float = math.inf
    latest: float = math.inf


def item_model(slack_s: float = 0.0) -> Model:
    """Set, get, delete, touch, with versions that rise and deadlines."""

    def gone(state: ItemState, call: KvCall) -> ItemState | None:
        """The state in which it is missing, if it can be."""
        if state.value is None:
            return state
        if call.end >= state.earliest - slack_s:
            return ItemState(floor=state.floor)
        return None

    def there(state: ItemState, call: KvCall, version: int | None) -> ItemState | None:
        """The state in which it is there, at ``version`` if that is known."""
        if state.value is None or call.invoked > state.latest + slack_s:
            return None
        if version is None or version == state.version:
            return state
        if state.version is None and version >= state.floor:
            return state._replace(version=version, floor=version)
        return None

    def met(state: ItemState, call: KvCall, expected: int) -> ItemState | None:
        if expected == ANYTHING:
            return state
        return gone(state, call) if expected == MISSING else there(state, call, expected)

    def unmet(state: ItemState, call: KvCall, expected: int, found: int | None) -> ItemState | None:
        if expected == ANYTHING or found == expected or (found == -1 and expected == MISSING):
            return None
        if found is not None:
            return gone(state, call) if found == -1 else there(state, call, found)
        if expected == MISSING:
            return there(state, call, None)
        if state.value is not None and state.version != expected and call.invoked <= state.latest + slack_s:
            return state
        return gone(state, call)

    def changed(state: ItemState, call: KvCall, value: Hashable, life_s: float) -> ItemState | None:
        version = call.result.version if isinstance(call.result, Stored) else None
        if version is not None and version <= state.floor:
            return None
        floor = state.floor + 1 if version is None else version  # so that no write of which no version is known is none
        return ItemState(value, version, floor, call.invoked + life_s, call.end + life_s)

    def step(state: ItemState, call: KvCall) -> ItemState | None:
        asked, result = call.asked, call.result
        if isinstance(asked, Peek):
            if result is None:
                return state
            assert isinstance(result, Shown)
            if result.value is None:
                return gone(state, call)
            return there(state, call, result.version) if state.value == result.value else None
        assert isinstance(asked, Store | Retime | Erase)
        if isinstance(result, Unmet):
            return unmet(state, call, asked.expected, result.version)
        before = met(state, call, asked.expected)
        if before is None:
            return None
        if isinstance(asked, Store):
            return changed(before, call, asked.value, asked.life_s)
        if isinstance(asked, Retime):
            if isinstance(result, Shown):
                return gone(before, call)
            present = there(before, call, None)
            return None if present is None else changed(present, call, present.value, asked.life_s)
        if isinstance(result, Erased) and result.existed is not None:
            found = there(before, call, None) if result.existed else gone(before, call)
            if found is None:
                return None
        return ItemState(floor=before.floor)

    def left_a_trace(results: Collection[Result]) -> Callable[[KvCall], bool]:
        """A value that nobody was shown need not have been there."""
        shown = {result.value for result in results if isinstance(result, Shown)}
        return lambda call: not isinstance(call.asked, Store) or call.asked.value in shown

    return Model(ItemState(), step, left_a_trace)


# ---- locks


class LockState(NamedTuple):
    """``code`` 0: free; None: had under a code nobody was told of. Otherwise as an ItemState."""

    code: int | None = 0
    floor: int = 0
    earliest: float = math.inf
    latest: float = math.inf


def lock_model(slack_s: float = 0.0) -> Model:
    """A lock with a lease; its codes rise."""

    def free(state: LockState, call: KvCall) -> LockState | None:
        if state.code == 0:
            return state
        return LockState(floor=state.floor) if call.end >= state.earliest - slack_s else None

    def had(state: LockState, call: KvCall, code: int | None) -> LockState | None:
        if state.code == 0 or call.invoked > state.latest + slack_s:
            return None
        if code is None or code == state.code:
            return state
        return state._replace(code=code, floor=code) if state.code is None and code > state.floor else None

    def acquire(state: LockState, call: KvCall, lease_s: float) -> LockState | None:
        if isinstance(call.result, Denied):
            return had(state, call, None)
        before = free(state, call)
        if before is None:
            return None
        code = call.result.code if isinstance(call.result, Granted) else None
        if code is not None and code <= before.floor:
            return None
        floor = before.floor if code is None else code
        return LockState(code, floor, call.invoked + lease_s, call.end + lease_s)

    def step(state: LockState, call: KvCall) -> LockState | None:
        asked = call.asked
        if isinstance(asked, Obtain):
            return acquire(state, call, asked.lease_s)
        assert isinstance(asked, Extend | Unlatch)
        if isinstance(call.result, Denied):
            certain = state.code == asked.code and call.invoked <= state.latest + slack_s
            return free(state, call) if certain else state
        held = had(state, call, asked.code)
        if held is None or isinstance(asked, Unlatch):
            return None if held is None else LockState(floor=held.floor)
        return held._replace(earliest=call.invoked + asked.lease_s, latest=call.end + asked.lease_s)

    return Model(LockState(), step)
