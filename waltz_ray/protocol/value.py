"""How the small classes of the protocol are declared: events, effects, messages, batches.

They are frozen dataclasses to mypy, which refuses an assignment to a field. At run time they are plain ones with
slots: a frozen one sets every field through ``object.__setattr__``, which was a tenth of the server's time for an
append (seventy fields are set on its way).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from typing_extensions import dataclass_transform

__all__ = ["value"]

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(*, eq: bool = True, slots: bool = True) -> Callable[[type[T]], type[T]]:
    """Declare a class of immutable values. ``eq=False``: compared by identity, for those that hold arrays."""
    options: dict[str, Any] = {"slots": slots, "eq": eq, "unsafe_hash": eq}

    def declare(cls: type[T]) -> type[T]:
        return dataclass(**options)(cls)

    return declare
