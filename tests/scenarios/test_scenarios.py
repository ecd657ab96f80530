"""Every transcript in this folder still reads as it did; ``pytest --rewrite`` writes what it reads like now."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from tests.scenarios.runner import COMMANDS, play

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


def test_a_change_of_what_happens_is_a_difference() -> None:
    """Teeth: the outcome is what is compared, not the commands."""
    text = next(path for path in FILES if path.stem == "open_and_append").read_text()
    assert play(text.replace("on disk up to 2", "on disk up to 1")) != text.replace("up to 2", "up to 1")


def test_an_unknown_command_is_named() -> None:
    with pytest.raises(ValueError, match="no such command: 'replica 0 sings'"):
        play("replica 0 sings\n")
    assert len(COMMANDS) > 10
