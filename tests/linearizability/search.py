"""Whether calls, as their callers saw them, could have been done one at a time (linearizability).

A history of a key is linearizable if each call can be given one moment between its invocation and its return, so that
done in the order of these moments, one at a time, each gives the result that was seen. It is compositional: a history
is linearizable if that of each key is, so each key is looked at alone. The search is Wing and Gong's with Lowe's
memory: a set of calls done and the state they led to need not be tried twice.

A call without a result (``result`` None) may have happened at any moment after its invocation, or never. What has
certainly not happened is left out of the history by who records it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeAlias

__all__ = ["STEPS", "Model", "NotLinearizable", "SeenCall", "Undecided", "check"]

STEPS = 2_000_000


class NotLinearizable(Exception):
    """``key``'s history; the text has the longest order found, and what could not follow."""

    def __init__(self, key: Hashable, text: str) -> None:
        super().__init__(f"{key!r}: {text}")
        self.key = key


class Undecided(Exception):
    """The search was given up; it may be linearizable or not."""


class SeenCall(Protocol):
    """One call, as its caller saw it. Times in seconds of one clock; ``who`` is for the text of an error. ``asked`` is
    hashable: two calls that ask for the same can stand for each other."""

    @property
    def key(self) -> Hashable: ...
    @property
    def asked(self) -> Any: ...
    @property
    def result(self) -> Any: ...
    @property
    def invoked(self) -> float: ...
    @property
    def returned(self) -> float: ...
    @property
    def who(self) -> Any: ...


Step: TypeAlias = "Callable[[Any, Any], Any]"
"""(state, call) -> the state after it, or None if it cannot have this result then."""


def _any_may(results: Collection[Any]) -> Callable[[Any], bool]:
    return lambda call: True


class Model(NamedTuple):
    """``begin`` is the state before all calls; a state is hashable and never None. ``left_a_trace(results)``: whether
    one of these results may come from a call of which no result is known."""

    begin: Any
    step: Step
    left_a_trace: Callable[[Collection[Any]], Callable[[Any], bool]] = _any_may


def check(calls: Iterable[SeenCall], model: Model, steps: int = STEPS) -> int:
    """The steps it took. NotLinearizable with the first key that is not, or Undecided after so many for one key."""
    keys: defaultdict[Hashable, list[SeenCall]] = defaultdict(list)
    for call in calls:
        keys[call.key].append(call)
    return sum(_steps_for(key, found, model, steps) for key, found in keys.items())


def _steps_for(key: Hashable, calls: list[SeenCall], model: Model, steps: int) -> int:
    """First without what has left no trace: it may never have happened, and where there is much of it, each subset and
    order of it would be tried before an earlier choice is looked at once more."""
    left_a_trace = model.left_a_trace([call.result for call in calls if call.result is not None])
    likely = [call for call in calls if call.result is not None or left_a_trace(call)]
    if len(likely) < len(calls):
        with suppress(NotLinearizable, Undecided):
            return _Search(key, likely, model, steps).run()
    return _Search(key, calls, model, steps).run()


class _Entry:
    """An invocation (``ends`` False) or a return, in a doubly linked list in the order of time."""

    __slots__ = ("call", "ends", "match", "next", "number", "previous")

    def __init__(self, call: SeenCall | None, number: int, ends: bool) -> None:
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
    others: Iterator[tuple[SeenCall, int, _Entry | None]] | None


class _Search:
    """The history of one key."""

    def __init__(self, key: Hashable, calls: list[SeenCall], model: Model, steps: int) -> None:
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

    def _candidates(self) -> Iterator[tuple[SeenCall, int, _Entry | None]]:
        """What was invoked before the first return of what is not done yet; what has no result comes last."""
        found: list[tuple[SeenCall, int, _Entry | None]] = []
        entry = self._head.next
        while entry is not None and not entry.ends:
            assert entry.call is not None
            found.append((entry.call, entry.number, entry))
            entry = entry.next
        if entry is not None and entry.call is not None:
            end = entry.call.returned
            asked: set[Any] = set()
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

    def _back(self, deepest: tuple[int, Any, list[int]]) -> tuple[Any, Iterator[tuple[SeenCall, int, _Entry | None]]]:
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


def _linked(calls: list[tuple[int, SeenCall]]) -> _Entry:
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


def _shown(call: SeenCall) -> str:
    end = "..." if call.result is None else f"{call.returned:.4f}"
    return f"{call.invoked:.4f} to {end} {call.who or ''} {call.asked} -> {call.result}"
