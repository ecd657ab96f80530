"""What `waltz` says of itself: quickly, with its defaults, and whole on a terminal of 80 columns."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

import waltz_ray
from waltz_ray.cli import COMMANDS, main, make_app


@cache
def commands() -> Sequence[tuple[list[str], Any]]:
    """Every command and group: the words to call it by, and what typer made of it; that takes half a second."""

    def below(words: list[str], command: Any) -> Iterator[tuple[list[str], Any]]:
        yield words, command
        for name, child in getattr(command, "commands", {}).items():
            yield from below([*words, name], child)

    return list(below([], typer.main.get_command(make_app())))


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


def test_no_option_may_be_empty() -> None:
    """A variable of the shell without a value must not mean another cluster, this directory, or no TLS."""
    refused: set[tuple[str, ...]] = set()
    taken: set[tuple[str, ...]] = set()
    for words, command in commands():
        if hasattr(command, "commands"):
            continue
        command.callback = lambda **given: None
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.is_flag and parameter.name != "help":
                option = parameter.opts[0]
                try:
                    command.main(args=[option, ""], standalone_mode=False)
                except typer.BadParameter as error:
                    (taken if "Missing parameter" in str(error) else refused).add((*words, option))
                else:
                    taken.add((*words, option))
    assert {("up", "--dir"), ("down", "--cluster"), ("up", "--rights"), ("restore", "--into")} <= refused
    assert {each[-1] for each in taken} == {"--config", "--stream"}  # files to read: "." is none


def test_what_is_empty_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["down", "--cluster", ""],
        ["up", "--dir="],
        ["up", "--dir", "x", "--rights", ""],
        ["verify", ""],
        ["recover", "--from-replicas", ""],
    ):
        with pytest.raises(SystemExit) as leaving:
            main(arguments)
        assert leaving.value.code == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "it is empty; does a variable of your shell have no value?" in error


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e10"])
def test_a_number_that_never_comes_is_said_in_one_line(number: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["up", "--dir", "x", f"--timeout={number}"],
        ["server", "drain", "0", f"--timeout={number}"],
        ["kv", "lock", f"--wait={number}", "x", "true"],
        ["space", "create", "x", f"--timeout={number}"],
    ):
        with pytest.raises(SystemExit) as leaving:
            main(arguments)
        assert leaving.value.code == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "Invalid value for '--" in error


@pytest.mark.parametrize(
    "arguments",
    [
        ["feed", "--from", "9" * 4301],
        ["feed", "-p", "0," + "9" * 4301],
        ["cursor", "reset", "audit", "--to", "9" * 4301],
        ["topic", "reset", "group", "topic", "--to", "9" * 4301],
        ["trim", "0", "--before", "9" * 4301],
        ["move", "-p", "0", "--to", "server/" + "9" * 4301],
        ["space", "set", "orders", "retention_ms=" + "9" * 4301],
        ["backup", "run", "x", "--piece-size", "9" * 400],
        ["restore", "x", "--into", "y", "--until", "0=" + "9" * 4301],
    ],
)
def test_a_number_of_too_many_digits_is_said_in_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python makes no integer of 4,301 digits, and of 400 no float that is a size."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as leaving:
        main(arguments)
    assert leaving.value.code in (1, 2)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search("no number is that long|a setting is given as|must be a size such as", error)
