"""Mutations break rules by their public names: no refactoring of the code under test takes away their teeth."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.simulation import mutations
from tests.simulation.break_rule import break_rule
from waltz_ray.protocol import session_rules
from waltz_ray.protocol.session import Session

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("mutations*.py"))
PATCHING = ("setattr", "setitem", "delattr", "delitem", "patch")
"""Ways around ``break_rule``."""


def private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def faults(source: str) -> list[str]:
    """What in a file of mutations is not broken by a public name."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and private(node.attr):
            found.append(f"line {node.lineno}: .{node.attr} is private")
        elif isinstance(node, ast.Attribute) and node.attr in PATCHING:
            found.append(f"line {node.lineno}: .{node.attr} goes around break_rule")
        elif isinstance(node, ast.Name) and node.id in PATCHING[:-1]:  # ``patch`` is what break_rule is given
            found.append(f"line {node.lineno}: {node.id} goes around break_rule")
        elif isinstance(node, ast.ImportFrom) and any(private(alias.name) for alias in node.names):
            found.append(f"line {node.lineno}: a private name of {node.module} is imported")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.name))
def test_mutations_touch_public_names_only(path: Path) -> None:
    assert faults(path.read_text()) == []


def test_every_file_of_mutations_is_used() -> None:
    used = {Path(str(vars(module)["__file__"])).name for module in mutations.FILES}
    assert used == {path.name for path in FILES} - {"mutations.py"}


@pytest.mark.parametrize(
    "source",
    [
        "def one(patch):\n    original = Session._commit",
        "def one(self):\n    self._lock = None",
        "def one(patch):\n    patch.setattr(Session, 'append', None)",
        "setattr(Session, 'append', None)",
        "mock.patch.object(Session, 'append')",
        "from waltz_ray.protocol.mounting import _RULES",
    ],
)
def test_the_check_has_teeth(source: str) -> None:
    assert len(faults(source)) == 1
    assert faults("def one(patch):\n    self.__class__\n    break_rule(patch, Session, 'append', None)") == []


def test_what_is_no_rule_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="_advance is private: name the rule"):
        break_rule(monkeypatch, Session, "_advance", None)
    with pytest.raises(ValueError, match="session_rules has no rule votes_wanted"):
        break_rule(monkeypatch, session_rules, "votes_wanted", None)
    with pytest.MonkeyPatch.context() as patch:
        break_rule(patch, session_rules, "votes_needed", lambda session: 17)
        assert session_rules.votes_needed(None) == 17  # type: ignore[arg-type]
    assert session_rules.votes_needed.__name__ == "votes_needed"
