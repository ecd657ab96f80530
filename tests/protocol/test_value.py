"""``@value()`` is how the words of the protocol are declared, and the only way."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import waltz_ray
from waltz_ray.protocol.roster import ReplicaEntry, Roster
from waltz_ray.wire.framing import Hello

ROOT = Path(waltz_ray.__file__).parent
FROZEN = {"LockId"}  # made by applications, which mypy may not look at


def frozen_classes() -> Iterator[str]:
    for package in ("protocol", "wire"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef) and any("frozen=True" in ast.unparse(d) for d in node.decorator_list):
                    yield node.name


def test_nothing_else_declares_a_value() -> None:
    assert set(frozen_classes()) == FROZEN


def test_values_are_compared_hashed_and_replaced_by_their_fields() -> None:
    one, other = Hello((4, 5), "me"), Hello((4, 5), "me")
    assert one == other
    assert len({one, other, Hello((5,), "me")}) == 2
    taken = dataclasses.replace(Roster(1, 1, {0: ReplicaEntry(1, None)}), session_id=2)
    assert taken == Roster(2, 1, {0: ReplicaEntry(1, None)}, published_quorum=1)
    assert not hasattr(one, "__dict__"), "it has slots"
