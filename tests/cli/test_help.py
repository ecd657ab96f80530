"""What `waltz` says of itself: quickly, with its defaults, and whole on a terminal of 80 columns."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import waltz_ray
from waltz_ray.cli import COMMANDS, main, make_app


def commands() -> Iterator[tuple[list[str], Any]]:
    """Every command and group: the words to call it by, and what typer made of it."""

    def below(words: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:
        yield words, command
        for name, child in getattr(command, "commands", {}).items():
            yield from below([*words, name], child)

    return below([], typer.main.get_command(make_app()))


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as leaving:
        main(list(arguments))
    assert leaving.value.code == 0
    return capsys.readouterr().out


def test_the_table_of_commands_is_what_the_modules_register() -> None:
    assert {words[0] for words, _ in commands() if len(words) == 1} == set(COMMANDS)


@pytest.mark.parametrize("words", [words for words, _ in commands()], ids=" ".join)
def test_help_is_whole_at_80_columns_and_has_the_defaults(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    text = said(capsys, *words, "--help")
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    command = next(command for each, command in commands() if each == words)
    options = [option for option in command.params if option.param_type_name == "option"]
    said_by_us = sum(option.help.count("[default: ") for option in options)
    by_typer = sum(option.default not in (None, "") and not (option.is_flag or option.required) for option in options)
    assert re.sub(r"[\s│]+", " ", text).count("[default: ") == said_by_us + by_typer


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "--version") == f"waltz {waltz_ray.__version__}\n"


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["status", "--help"], ["load", "--help"]])
def test_nobody_waits_for_what_he_does_not_use(arguments: list[str]) -> None:
    heavy = ["ray", "numpy", "kazoo", "asyncio", "pyarrow", "pyspark", "psutil"]
    text = f"""
import sys
from waltz_ray.cli import main
try:
    main({arguments!r})
finally:
    print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
