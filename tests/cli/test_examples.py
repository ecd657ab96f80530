"""Every command's help ends with examples, and each of them is one that the command takes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from tests.cli.test_help import commands, said
from waltz_ray.cli import make_app
from waltz_ray.cli.examples import EXAMPLES

_OPERATORS = ("|", "<", ">", ">>")


def words_of_commands() -> list[str]:
    return [" ".join(words) for words, command in commands() if not getattr(command, "commands", None)]


def calls(line: str) -> Iterator[list[str]]:
    """What waltz is given in a line for a shell: once, or on both sides of a pipe."""
    words: list[str] = []
    for word in [*shlex.split(line), "|"]:
        if word == "|":
            if words and words[0] == "waltz":
                yield words[1:]
            words = []
        else:
            words.append(word)


def arguments_of(call: list[str]) -> list[str]:
    """Without what the shell keeps to itself: where input comes from, where output goes."""
    end = min([call.index(word) for word in _OPERATORS if word in call], default=len(call))
    return call[:end]


def parsed(arguments: list[str]) -> Any:
    """The context of the command that is called, all of its options read; typer's error if it does not take them."""
    command = typer.main.get_command(make_app(arguments[0]))
    context = command.make_context("waltz", list(arguments))
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    return context


def test_every_command_has_examples_and_nothing_else_has() -> None:
    assert set(words_of_commands()) == set(EXAMPLES)


@pytest.mark.parametrize("line", [line for lines in EXAMPLES.values() for line in lines])
def test_an_example_is_taken(line: str) -> None:
    found = list(calls(line))
    assert found, "it calls waltz"
    assert len(line) <= 76
    for call in found:
        assert parsed(arguments_of(call)).info_name


def test_an_example_that_is_wrong_is_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        parsed(["feed", "--bogus"])
    assert parsed(["backup", "./backups"]).info_name == "run"


def test_an_example_belongs_to_its_command() -> None:
    for words, lines in EXAMPLES.items():
        for line in lines:
            names = [_names(parsed(arguments_of(call))) for call in calls(line)]
            assert words in names, line


def _names(context: Any) -> str:
    """The words by which a command is called, as help has them."""
    found = []
    while context.parent is not None:
        found.append(context.info_name)
        context = context.parent
    return " ".join(reversed(found))


def test_the_help_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "feed", "--help")
    assert "Examples:" in text
    assert "$ waltz feed --follow --json" in text
