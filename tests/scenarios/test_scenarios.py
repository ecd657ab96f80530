"""Every transcript in this folder still reads as it did; ``pytest --rewrite`` writes what it reads like now."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scenarios.runner import COMMANDS, play
from waltz_ray.protocol.session import Session
from waltz_ray.protocol.session_types import Committed

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.stem))
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    before = path.read_text()
    after = play(before)
    if request.config.getoption("--rewrite"):
        path.write_text(after)
        return
    diff = difflib.unified_diff(before.splitlines(), after.splitlines(), path.name, "now", lineterm="")
    assert before == after, "run `pytest tests/scenarios --rewrite` and read the diff:\n" + "\n".join(diff)


def test_the_same_transcript_every_time() -> None:
    assert FILES
    for path in FILES:
        assert play(path.read_text()) == play(path.read_text())


def _commit_at_one(self: Session) -> None:
    self.high_water_mark = max(last_id for _, last_id in self.phases().values())
    self._effects.append(Committed(self.session_id, self.high_water_mark))


def _never_register(self: Session, low_water_mark: int) -> None:
    pass


@pytest.mark.parametrize(
    ("rule", "broken", "told_in"),
    [("_commit", _commit_at_one, "open_and_append"), ("_register_late_joiners", _never_register, "late_joiner")],
)
def test_a_broken_rule_makes_a_difference(
    rule: str, broken: Callable[..., None], told_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Teeth: what happens is compared, not only what was commanded."""
    text = (HERE / f"{told_in}.txt").read_text()
    monkeypatch.setattr(Session, rule, broken)
    assert play(text) != text


def test_an_unknown_command_is_named() -> None:
    with pytest.raises(ValueError, match="no such command: 'replica 0 sings'"):
        play("replica 0 sings\n")
    assert len(COMMANDS) > 10
