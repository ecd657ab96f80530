"""``--output``, of every command with a result; without colours and boxes in a pipe; asked before something is lost."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer
import yaml
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkRuntimeError
from ray.exceptions import ActorDiedError
from rich.console import Console

from tests.cli.test_commands import cluster_directory, run
from tests.cli.test_fence import Terminal
from tests.cli.test_help import commands
from waltz_ray import cli
from waltz_ray.cli.common import (
    Output,
    choose_output,
    confirmed,
    console,
    plain,
    print_data,
    print_item,
    progress_line,
    table_of,
)
from waltz_ray.cli.load_progress import LoadProgress
from waltz_ray.errors import InvalidInput

__all__ = ["cluster_directory"]

ASKS = """
    access remove, backup holds, cursor delete, cursor reset, fence reset, holds release, recover, replace-replica,
    replica remove, replica replace, server remove, space delete, streams quarantine drop, topic reset, trim
"""
"""What cannot be undone by the opposite command."""

PLANS = """
    apply, cursor delete, cursor reset, holds release, rebalance, replica drain, replica remove, server remove,
    space delete, topic reset, trim, upgrade
"""
"""What can be asked what it would do. (recover does only that without --apply.)"""


def having(option: str) -> set[str]:
    return {" ".join(words) for words, command in commands() if option in [o for p in command.params for o in p.opts]}


def test_what_destroys_asks_and_what_plans_can_show_it() -> None:
    assert having("--yes") == {words.strip() for words in ASKS.split(",")}
    assert having("--dry-run") == {words.strip() for words in PLANS.split(",")}


def test_whoever_has_json_has_all_forms_and_no_callback_has_both_by_itself() -> None:
    files = {"demo", "pipeline"}  # their --json names a file
    assert having("--json") - files - {"feed"} == having("--output")
    assert having("--format") >= {"feed"}


@pytest.mark.parametrize("form", [["--json"], ["--output", "json"], ["-o", "json"], ["--json", "--output", "json"]])
def test_json(form: list[str], cluster_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fence", "show", str(cluster_directory), *form) == 0
    assert [each["session_id"] for each in json.loads(capsys.readouterr().out)] == [2, 3, 2, 3]


def test_yaml_says_the_same_as_json(cluster_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for form, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        assert run("inspect", str(cluster_directory), "--output", form) == 0
        told.append(read(capsys.readouterr().out))
    assert told[0] == told[1]
    assert len(told[0]) == 2
    assert run("inspect", str(cluster_directory), "--json") == 0
    assert capsys.readouterr().out.startswith("["), "the form is not that of the command before"


def test_contradictions_and_unknown_forms(cluster_directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("inspect", str(cluster_directory), "--json", "-o", "yaml") == 1
    assert capsys.readouterr().err == "waltz: --json and --output yaml contradict each other; leave one out\n"
    assert run("inspect", str(cluster_directory), "--output", "xml") == 2
    assert "'table', 'json', 'yaml'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("output", "as_json", "program"),
    [(None, False, False), (Output.TABLE, False, False), (None, True, True), (Output.YAML, False, True)],
)
def test_what_is_meant(output: Output | None, as_json: bool, program: bool) -> None:
    assert choose_output(output, as_json) is program


def test_items_are_lines_or_documents(capsys: pytest.CaptureFixture[str]) -> None:
    items: list[Any] = [{"a": 1}, {"b": ["ü", None]}]
    choose_output(Output.YAML, False)
    for item in items:
        print_item(item)
    assert list(yaml.safe_load_all(capsys.readouterr().out)) == items
    choose_output(None, True)
    for item in items:
        print_item(item)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == items
    print_data(items)
    assert json.loads(capsys.readouterr().out) == items


def test_no_boxes_and_no_folds_in_a_pipe(
    cluster_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert run("inspect", str(cluster_directory)) == 0
    text = capsys.readouterr().out
    assert text.isascii()
    assert "\x1b" not in text
    heads = [line for line in text.splitlines() if line.startswith("partition")]
    assert [head.split("  ")[0] for head in heads] == ["partition", "partition"]
    assert [line.split()[0] for line in text.splitlines() if line[:1].isdigit()] == ["0", "1", "0", "1"]


@pytest.mark.parametrize(
    ("terminal", "no_color", "is_plain"), [(True, "", False), (True, "1", True), (False, "", True)]
)
def test_a_box_is_for_a_terminal_with_colours(
    terminal: bool, no_color: str, is_plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    out = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    assert plain() is is_plain
    table = table_of("a", "b")
    table.add_row("1", "2")
    Console(file=out, width=40, force_terminal=terminal).print(table)
    assert out.getvalue().isascii() is is_plain


def test_what_anybody_has_named_is_no_markup(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    table = table_of("name", "value")
    names = ["[/closed]", "[bold]loud", ":smile:", "[red]"]
    for name in names:
        table.add_row(name, "[/]")
    console().print(table)
    assert [line.split() for line in capsys.readouterr().out.splitlines()[1:]] == [[name, "[/]"] for name in names]


@pytest.mark.parametrize("encoding", ["utf-8:strict", "ascii:strict"])
def test_what_stdout_has_no_letter_for_is_no_error(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    directory = os.fsencode(tmp_path) + b"/\xe9 \xe6\x97\xa5"
    waltz = [sys.executable, "-m", "waltz_ray", "context"]
    subprocess.run([*waltz, "create", "lab", "--dir", directory], capture_output=True, timeout=60, check=True)
    for options in ([], ["--output", "yaml"], ["--json"]):
        done = subprocess.run([*waltz, "show", "lab", *options], capture_output=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, b"")
        if options:
            assert yaml.safe_load(done.stdout)["dir"] == os.fsdecode(directory)
    assert json.loads(done.stdout)["dir"] == os.fsdecode(directory)


@pytest.mark.parametrize("command", ["demo", "pipeline"])
def test_a_result_that_cannot_be_written_is_told_before_the_work(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("waltz_ray.demo.runner.run_demo", unwanted)
    monkeypatch.setattr("waltz_spark.pipeline.run.run_pipeline", unwanted)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    file = tmp_path / "result.json"
    file.touch()
    assert run(command, "--json", str(tmp_path)) == 1
    assert capsys.readouterr().err == f"waltz: --json {tmp_path} is a folder; give a file in it\n"
    assert run(command, "--json", str(tmp_path / "none" / "a")) == 1
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    assert run(command, "--json", str(file)) == 1
    assert run(command, "--json", str(tmp_path / "new.json")) == 1
    assert capsys.readouterr().err.count("you may not write there") == 2
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("command", ["demo", "pipeline"])
@pytest.mark.parametrize(
    "error", [ActorDiedError(), Py4JNetworkError("Answer from Java side is empty"), PySparkRuntimeError("no Java")]
)
def test_a_process_that_was_killed_under_a_command_is_told_in_a_line(
    command: str, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(*_: object) -> None:
        raise error

    monkeypatch.setattr("waltz_ray.demo.runner.run_demo", killed)
    monkeypatch.setattr("waltz_spark.pipeline.run.run_pipeline", killed)
    assert run(command, "--dir", str(tmp_path)) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("waltz: one of the processes that do the work has ended or failed: ")
    assert line.endswith(f"; see {tmp_path / command}.log")


@pytest.mark.parametrize("command", ["demo", "pipeline"])
def test_where_everything_is_is_told_before_it_is_there(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray ends the process where its head was killed; what runs then can be ended by whoever knows its directory."""
    shown: list[str] = []

    def ended(*_: object) -> None:
        shown.append(capsys.readouterr().out)
        raise InvalidInput("the end")

    monkeypatch.setattr("waltz_ray.demo.runner.run_demo", ended)
    monkeypatch.setattr("waltz_spark.pipeline.run.run_pipeline", ended)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run(command) == 1
    (directory,) = tmp_path.iterdir()
    assert shown == [f"Everything goes into {directory}\n"]


def unwanted(*_: object) -> None:
    raise AssertionError("nothing is begun")


def of_a_shell(command: str) -> subprocess.CompletedProcess[str]:
    """``waltz`` there stands for the command line."""
    waltz = f"'{sys.executable}' -m waltz_ray"
    return subprocess.run(
        ["sh", "-c", command.replace("waltz", waltz, 1)], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), OSError(errno.ENOSPC, "No room", "/x")])
def test_a_disk_that_fails_is_not_taken_for_the_output(
    error: OSError, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as that of what is looked at, or of a cluster's directory."""

    def failing(arguments: object) -> int:
        raise error

    monkeypatch.setattr(cli, "_command", failing)
    assert run("verify", "/x") == 1
    assert capsys.readouterr().err == f"waltz: {error} (WALTZ_TRACEBACK=1 shows what was being done)\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_finds_no_room_is_one_line(unbuffered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    done = of_a_shell("waltz --version >/dev/full")
    assert done.returncode == 1
    assert done.stderr == "waltz: what it writes cannot be written: No space left on device; give its output room\n"


def test_who_reads_no_more_is_told_nothing() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as output:
        done = subprocess.run(
            [sys.executable, "-m", "waltz_ray", "--version"],
            stdout=output,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (1, b"")


def test_what_the_system_refuses_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(arguments: object) -> int:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/nothere/.bashrc")

    monkeypatch.setattr(cli, "_command", refused)
    assert run("--install-completion", "bash") == 1
    line = "[Errno 2] No such file or directory: '/nothere/.bashrc' (WALTZ_TRACEBACK=1 shows what was being done)"
    assert capsys.readouterr().err == f"waltz: {line}\n"
    monkeypatch.setenv("WALTZ_TRACEBACK", "1")
    with pytest.raises(FileNotFoundError):
        run("--install-completion", "bash")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("waltz --version >&-", 0),
        ("waltz --version 2>&-", 0),
        ("waltz --version <&- >&- 2>&-", 0),
        ("waltz inspect /nonexistent 2>&-", 1),
        ("waltz inspect /nonexistent --json >&-", 1),
    ],
)
def test_what_the_caller_has_closed_is_missed_by_nobody(command: str, code: int) -> None:
    done = of_a_shell(command)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("answer", "code"), [("y\n", None), ("n\n", 1), ("\n", 1)])
def test_a_person_is_asked(
    answer: str, code: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    if code is None:
        confirmed("it goes", yes=False)
    else:
        with pytest.raises(typer.Exit) as leaving:
            confirmed("it goes", yes=False)
        assert leaving.value.exit_code == code
    assert "it goes. Go on? [y/N]" in capsys.readouterr().err


def test_nobody_is_asked_without_a_terminal_nor_with_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(InvalidInput, match=r"nothing was changed: it goes; .* say it with --yes"):
        confirmed("it goes", yes=False)
    confirmed("it goes", yes=True)


@pytest.mark.parametrize("yes", [True, False])
def test_a_dry_run_ends_there(yes: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as leaving:
        confirmed("it goes", yes, dry_run=True)
    assert leaving.value.exit_code == 0
    assert capsys.readouterr().out == "nothing was changed; without --dry-run: it goes\n"


def test_dressing_twice_changes_nothing() -> None:
    def options() -> dict[str, list[str]]:
        return {" ".join(words): [each.name for each in command.params] for words, command in commands()}

    first = options()
    assert first == options()
    assert first["status"].count("output") == 1


def test_what_is_going_on_goes_on_where_nobody_reads_of_it_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """``waltz down 2>&1 | head -1``: the second line failed, and the processes behind it lived on."""
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as nobody:
        monkeypatch.setattr("sys.stderr", nobody)
        with progress_line(quiet=False) as progress:
            progress("ending server/0")
            progress("ending Ray")
        clock = iter(range(0, 100, 10))
        shown = LoadProgress(quiet=False, monotonic=lambda: float(next(clock)), look_every=1)
        shown.at(1)
        nobody.write("an error is written nowhere, and fails nothing")


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "no room")


def test_what_is_going_on_goes_on_where_its_file_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Full())
    with progress_line(quiet=False) as progress:
        progress("starting Ray")


def test_services_of_streams_go_on_where_what_they_say_finds_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their retention could make some, if it is the same disk."""
    told: list[str] = []

    def run_forever(chosen: Any, place: Any, say: Callable[[str], None], seconds: float | None) -> None:
        say("a to b: 1 committed")
        told.append("the next pass")

    monkeypatch.setattr("sys.stderr", Full())
    monkeypatch.setattr("waltz_spark.streams.configuration.read_config", lambda path: mock.Mock())
    monkeypatch.setattr("waltz_spark.streams.cli.opened_place", lambda *arguments: nullcontext())
    monkeypatch.setattr("waltz_spark.streams.cli.run_forever", run_forever)
    assert run("streams", "run") == 0
    assert told == ["the next pass"]
