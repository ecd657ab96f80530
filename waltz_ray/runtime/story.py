"""The last steps of a machine, for the message when one fails."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum

__all__ = ["Story"]

_STEPS = 100
_PLAIN = (int, str, float, bool, type(None), Enum)
_LONGEST = 200  # characters of one value


class Story:
    """The last hundred events of a machine, each with the effects it led to.

    Events and effects are kept as they are, but those that hold records: of these only what is small, so that a story
    never keeps alive what the machine has let go of.
    """

    def __init__(self, heavy: frozenset[type]) -> None:
        """``heavy``: the classes of events and effects that hold records."""
        self._heavy = heavy
        self._steps: deque[tuple[object, list[object]]] = deque(maxlen=_STEPS)

    def begin(self, event: object) -> list[object]:
        """A step has begun; its effects are to be put into the list with ``tell``."""
        heavy = self._heavy
        effects: list[object] = []
        self._steps.append((_brief(event) if event.__class__ in heavy else event, effects))
        return effects

    def tell(self, effects: list[object], led_to: Sequence[object]) -> None:
        """The step is done."""
        heavy = self._heavy
        effects += [_brief(effect) if effect.__class__ in heavy else effect for effect in led_to]

    def text(self) -> str:
        """One line an event, the oldest first, its effects indented below it."""
        lines: list[str] = []
        for event, effects in self._steps:
            lines.append(_line(event))
            lines += [f"    {_line(effect)}" for effect in effects]
        return "\n".join(lines)


def _line(what: object) -> str:
    text = what if isinstance(what, str) else repr(what)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _brief(value: object) -> str:
    parts = []
    for name in value.__slots__:  # type: ignore[attr-defined]
        field = getattr(value, name)
        if isinstance(field, _PLAIN) or (isinstance(field, tuple) and len(field) < 10):
            parts.append(f"{name}={field!r}")
        else:
            size = f" of {len(field)}" if hasattr(field, "__len__") else ""
            parts.append(f"{name}=<{type(field).__name__}{size}>")
    return f"{type(value).__name__}({', '.join(parts)})"
