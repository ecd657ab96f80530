"""The last steps of a machine, for the message when one fails."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

__all__ = ["Story"]

_STEPS = 100
_LONGEST = 200  # characters of one line


class Story:
    """The last hundred events of a machine, each with the effects it led to.

    Events and effects are kept as they are, but those that hold records: of these only the class and the first field,
    so that a story never keeps alive what the machine has let go of. Nothing is made into text before it is asked for.
    """

    def __init__(self, heavy: frozenset[type]) -> None:
        """``heavy``: the classes of events and effects that hold records, declared with ``@value``."""
        self._heavy: dict[type, Callable[[Any], object]] = {
            cls: attrgetter(cls.__slots__[0])  # type: ignore[attr-defined]
            for cls in heavy
        }
        self._steps: deque[tuple[object, list[object]]] = deque(maxlen=_STEPS)

    def begin(self, event: object) -> list[object]:
        """A step has begun; its effects are to be put into the list with ``tell``."""
        first = self._heavy.get(event.__class__)
        effects: list[object] = []
        self._steps.append((event if first is None else (event.__class__, first(event)), effects))
        return effects

    def tell(self, effects: list[object], led_to: Sequence[object]) -> None:
        """The step is done."""
        heavy = self._heavy
        for effect in led_to:
            first = heavy.get(effect.__class__)
            effects.append(effect if first is None else (effect.__class__, first(effect)))

    def text(self) -> str:
        """One line an event, the oldest first, its effects indented below it."""
        lines: list[str] = []
        for event, effects in self._steps:
            lines.append(_line(event))
            lines += [f"    {_line(effect)}" for effect in effects]
        return "\n".join(lines)


def _line(what: object) -> str:
    if isinstance(what, tuple):
        cls, first = what
        text = f"{cls.__name__}({cls.__slots__[0]}={first!r}, ...)"
    else:
        text = repr(what)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
