"""Every transcript in this folder still reads as it did; ``pytest --rewrite`` writes what it reads like now."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from tests.scenarios.runner import COMMANDS, play
from tests.simulation.mutations import WALKED

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


@pytest.mark.parametrize(
    ("broken", "told_in"),
    [("quorum_too_small", "open_and_append"), ("late_joiners_are_entered_nowhere", "late_joiner")],
)
def test_a_broken_rule_makes_a_difference(broken: str, told_in: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Teeth: what happens is compared, not only what was commanded."""
    text = (HERE / f"{told_in}.txt").read_text()
    WALKED[broken](monkeypatch)
    assert play(text) != text


def test_an_unknown_command_is_named() -> None:
    with pytest.raises(ValueError, match="no such command: 'replica 0 sings'"):
        play("replica 0 sings\n")
    assert len(COMMANDS) > 10
