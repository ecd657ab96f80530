"""What the shell is told while a word is typed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from waltz_ray.cli.contexts import Context, Contexts, config_file, write


def completed(words: str, directory: Path) -> list[str]:
    environment = os.environ | {
        "XDG_CONFIG_HOME": str(directory),
        "_WALTZ_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - (not words.endswith(" "))),
    }
    command = [sys.executable, "-m", "waltz_ray"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [("waltz prod", ["produce"]), ("waltz space de", ["describe", "delete"]), ("waltz context use p", ["prod"])],
)
def test_commands_options_and_contexts(words: str, found: list[str], tmp_path: Path) -> None:
    write(config_file({"XDG_CONFIG_HOME": str(tmp_path)}), Contexts("", {"prod": Context("a"), "lab": Context("b")}))
    assert completed(words, tmp_path) == found


def test_a_damaged_file_of_contexts_upsets_no_prompt(tmp_path: Path) -> None:
    (tmp_path / "waltz").mkdir()
    (tmp_path / "waltz" / "contexts.json").write_text("{")
    assert completed("waltz context use p", tmp_path) == []
    assert completed("waltz prod", tmp_path) == ["produce"]
