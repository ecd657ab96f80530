"""How a rule is broken: the code under test gets another one under the same public name."""

from __future__ import annotations

from types import ModuleType

import pytest

__all__ = ["break_rule"]


def break_rule(patch: pytest.MonkeyPatch, where: ModuleType | type, name: str, replacement: object) -> None:
    """Replace the rule ``name`` of a module or class until ``patch`` is undone.

    ValueError unless it is there and public: a rule has a name that stays, whatever becomes of the code around it.
    """
    if name.startswith("_"):
        raise ValueError(f"{where.__name__}.{name} is private: name the rule in the code under test, and break that")
    if not hasattr(where, name):
        raise ValueError(f"{where.__name__} has no rule {name}")
    patch.setattr(where, name, replacement)
