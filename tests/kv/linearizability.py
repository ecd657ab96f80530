"""Whether what callers have seen of items and locks is what one copy of each could have shown (linearizability).

A history of a key is linearizable if each call can be given one moment between its invocation and its return, so that
done in the order of these moments, one at a time, each gives the result that was seen. It is compositional: a history
is linearizable if that of each key is, so each key is looked at alone. The search is Wing and Gong's with Lowe's
memory: a set of calls done and the state they led to need not be tried twice.

A call without a result (``result`` None) may have happened at any moment after its invocation, or never. What has
certainly not happened is left out of the history by who records it.

Time passes for items with a deadline. When it was reckoned is known only to lie within the call, and other clocks may
be wrong by the model's slack, so an item may be missing from (invocation + life - slack) on, and may still be there
until (return + life + slack). A lock's lease is the same.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

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
    "NotLinearizable",
    "Peek",
    "Extend",
    "Retime",
    "Shown",
    "Store",
    "Stored",
    "Undecided",
    "Unlatch",
    "Unmet",
    "check",
    "item_model",
    "lock_model",
]

ANYTHING, MISSING = -2, -3
"""Of ``expected``: whatever is there; no item."""

STEPS = 2_000_000


class NotLinearizable(Exception):
    """``key``'s history; the text has the longest order found, and what could not follow."""

    def __init__(self, key: Hashable, text: str) -> None:
        super().__init__(f"{key!r}: {text}")
        self.key = key


class Undecided(Exception):
    """The search was given up; it may be linearizable or not."""


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


Step: TypeAlias = "Callable[[Any, KvCall], Any]"
"""(state, call) -> the state after it, or None if it cannot have this result then."""


class Model(NamedTuple):
    """``begin`` is the state before all calls; a state is hashable and never None."""

    begin: Any
    step: Step


# ---- items


class ItemState(NamedTuple):
    """``value`` None: missing. ``version`` None: that of a write nobody was told of. ``floor``: all versions so far are
    known to be at most this. It may be missing from ``earliest`` on and is missing after ``latest``."""

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
        if state.version is None and version > state.floor:
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
        floor = state.floor if version is None else version
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

    return Model(ItemState(), step)


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


# ---- the search


def check(calls: Iterable[KvCall], model: Model, steps: int = STEPS) -> int:
    """The steps it took. NotLinearizable with the first key that is not, or Undecided after so many for one key."""
    keys: defaultdict[Hashable, list[KvCall]] = defaultdict(list)
    for call in calls:
        keys[call.key].append(call)
    return sum(_Search(key, found, model, steps).run() for key, found in keys.items())


class _Entry:
    """An invocation (``ends`` False) or a return, in a doubly linked list in the order of time."""

    __slots__ = ("call", "ends", "match", "next", "number", "previous")

    def __init__(self, call: KvCall | None, number: int, ends: bool) -> None:
        self.call, self.number, self.ends = call, number, ends
        self.match: _Entry = self
        self.next: _Entry | None = None
        self.previous: _Entry = self

    def leave(self) -> None:
        self.previous.next = self.next
        if self.next is not None:
            self.next.previous = self.previous

    def come_back(self) -> None:
        self.previous.next = self
        if self.next is not None:
            self.next.previous = self


class _Choice(NamedTuple):
    """What was done, from which state on; ``others``: what else could have been. None: nothing else need be tried."""

    number: int
    entry: _Entry | None
    state: Any
    others: Iterator[tuple[KvCall, int, _Entry | None]] | None


class _Search:
    """The history of one key."""

    def __init__(self, key: Hashable, calls: list[KvCall], model: Model, steps: int) -> None:
        self._key, self._model, self._bound = key, model, steps
        ordered = sorted(calls, key=lambda call: call.invoked)
        self._pending = [(n, call) for n, call in enumerate(ordered) if call.result is None]
        self._head = _linked([(n, call) for n, call in enumerate(ordered) if call.result is not None])
        self._done = 0  # a bit of every call
        self._order: list[_Choice] = []
        self._calls = ordered

    def run(self) -> int:
        state, steps, seen = self._model.begin, 0, set()
        deepest: tuple[int, Any, list[int]] = (-1, state, [])
        candidates = self._candidates()
        while self._head.next is not None:
            for call, number, entry in candidates:
                steps += 1
                after = self._model.step(state, call)
                if after is None:
                    continue
                if entry is None and after == state:
                    continue  # it is as if it had not happened
                known = (self._done | 1 << number, after)
                if known in seen:
                    continue
                seen.add(known)
                # What has its result and changes nothing may come first in any order that there is.
                harmless = entry is not None and after == state
                self._do(_Choice(number, entry, state, None if harmless else candidates))
                state, candidates = after, self._candidates()
                break
            else:
                if len(self._order) > deepest[0]:
                    deepest = len(self._order), state, [choice.number for choice in self._order]
                state, candidates = self._back(deepest)
            if steps > self._bound:
                raise Undecided(f"{self._key!r}: {len(self._calls)} calls, given up after {steps} steps")
        return steps

    def _candidates(self) -> Iterator[tuple[KvCall, int, _Entry | None]]:
        """What was invoked before the first return of what is not done yet; what has no result comes last."""
        found: list[tuple[KvCall, int, _Entry | None]] = []
        entry = self._head.next
        while entry is not None and not entry.ends:
            assert entry.call is not None
            found.append((entry.call, entry.number, entry))
            entry = entry.next
        if entry is not None and entry.call is not None:
            end = entry.call.returned
            asked: set[Asked] = set()
            for number, call in self._pending:
                if call.invoked > end:
                    break
                # Of several that ask for the same the first one may stand for any: it may have happened earliest.
                if not self._done >> number & 1 and call.asked not in asked:
                    asked.add(call.asked)
                    found.append((call, number, None))
        return iter(found)

    def _do(self, choice: _Choice) -> None:
        self._order.append(choice)
        self._done |= 1 << choice.number
        if choice.entry is not None:
            choice.entry.leave()
            choice.entry.match.leave()

    def _back(self, deepest: tuple[int, Any, list[int]]) -> tuple[Any, Iterator[tuple[KvCall, int, _Entry | None]]]:
        """To the last choice that could have been another."""
        while self._order:
            choice = self._order.pop()
            self._done &= ~(1 << choice.number)
            if choice.entry is not None:
                choice.entry.match.come_back()
                choice.entry.come_back()
            if choice.others is not None:
                return choice.state, choice.others
        raise NotLinearizable(self._key, self._story(deepest))

    def _story(self, deepest: tuple[int, Any, list[int]]) -> str:
        _, state, order = deepest
        left = [call for number, call in enumerate(self._calls) if number not in set(order)]
        lines = [f"not linearizable; {len(order)} of {len(self._calls)} calls can be put in order, the last of them:"]
        lines += [f"    {_shown(self._calls[number])}" for number in order[-8:]]
        lines += [f"  after that the state is {state}, and there are still:"]
        lines += [f"    {_shown(call)}" for call in left[:8]]
        return "\n".join(lines)


def _linked(calls: list[tuple[int, KvCall]]) -> _Entry:
    """Invocations and returns in the order of time; of one moment the invocations come first: they may overlap."""
    events: list[tuple[float, bool, int, _Entry]] = []
    for number, call in calls:
        begin, end = _Entry(call, number, False), _Entry(call, number, True)
        begin.match = end
        events += [(call.invoked, False, number, begin), (call.returned, True, number, end)]
    head = last = _Entry(None, -1, False)
    for _, _, _, entry in sorted(events, key=lambda event: event[:3]):
        last.next, entry.previous = entry, last
        last = entry
    return head


def _shown(call: KvCall) -> str:
    end = "..." if call.result is None else f"{call.returned:.4f}"
    return f"{call.invoked:.4f} to {end} {call.who or ''} {call.asked} -> {call.result}"
