"""The last steps of a machine, for the message when one fails."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

__all__ = ["Story"]

_KEPT = 300
_LONGEST = 200  # characters of one line

_END = object()  # of a step


class Story:
    """The last few hundred events of a machine and effects that they have led to.

    They are kept as they are, but of those that hold records only the class, so that a story never keeps alive what
    the machine has let go of. Nothing is made into text before it is asked for.
    """

    def __init__(self, heavy: frozenset[type]) -> None:
        """``heavy``: the classes of events and effects that hold records."""
        self._heavy = heavy
        self._told: deque[object] = deque(maxlen=_KEPT)  # event, effects, _END, event, ...

    def tell(self, event: object, effects: Sequence[object]) -> None:
        """``event`` has led to ``effects``."""
        told, heavy = self._told, self._heavy
        cls = event.__class__
        told.append(cls if cls in heavy else event)
        for effect in effects:
            cls = effect.__class__
            told.append(cls if cls in heavy else effect)
        told.append(_END)

    def text(self) -> str:
        """One line an event, the oldest first, its effects indented below it."""
        lines: list[str] = []
        indent = ""
        told = [*self._told]
        if len(told) == _KEPT and _END in told:
            del told[: told.index(_END) + 1]  # the rest of a step
        for one in told:
            if one is _END:
                indent = ""
                continue
            lines.append(indent + _line(one))
            indent = "    "
        return "\n".join(lines)


def _line(what: object) -> str:
    text = f"{what.__name__}(...)" if isinstance(what, type) else repr(what)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
