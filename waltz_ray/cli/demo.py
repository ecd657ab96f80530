"""``waltz demo``."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from waltz_ray.errors import InvalidInput

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(demo)


def demo(
    directory: Annotated[str, typer.Option("--dir", help="Where to store everything; kept. [default: temporary]")] = "",
    flights: Annotated[int, typer.Option(min=1, help="How many of the 336,776 flights.")] = 336_776,
    json_file: Annotated[str, typer.Option("--json", help="Write the result to this file (- = stdout).")] = "",
) -> None:
    """A year of flights through a cluster of its own: two failures, SQLite, Spark, and everything compared."""
    from waltz_ray.demo.report import print_result
    from waltz_ray.demo.runner import run_demo

    kept = bool(directory)
    place = Path(directory or tempfile.mkdtemp(prefix="waltz-demo-")).resolve()
    place.mkdir(parents=True, exist_ok=True)
    _check_writable(json_file)
    ok = False
    begin = time.monotonic()
    console = Console(stderr=json_file == "-")
    try:
        with _chatter_to(place / "demo.log", console) as screen_console, _Screen(screen_console, flights) as screen:
            result = run_demo(place, flights, screen)
        ok = result.ok
        result.seconds["altogether"] = time.monotonic() - begin
        print_result(result, console)
        if json_file:
            _write_json(json_file, json.dumps(result.as_json(), indent=2) + "\n")
    finally:
        if not kept and ok:
            shutil.rmtree(place)
        else:
            console.print(f"The data is in {place}", highlight=False, soft_wrap=True)
    if not ok:
        raise typer.Exit(1)


@contextmanager
def _chatter_to(log: Path, console: Console) -> Iterator[Console]:
    """A console like ``console``, while everything else that is written to stdout and stderr goes to ``log``.

    Ray's threads report the killed processes on stdout, and Spark's Java processes inherit the files themselves, so
    the file descriptors are exchanged and not only Python's objects.
    """
    sys.stdout.flush()
    saved = os.dup(1), os.dup(2)
    with os.fdopen(os.dup(2 if console.stderr else 1), "w") as screen, log.open("ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        try:
            yield Console(file=screen)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for number, old in enumerate(saved, 1):
                os.dup2(old, number)
                os.close(old)


def _check_writable(json_file: str) -> None:
    """Before five minutes of work, not after it."""
    if json_file and json_file != "-" and not Path(json_file).resolve().parent.is_dir():
        raise InvalidInput(f"--json {json_file}: there is no folder {Path(json_file).resolve().parent}")


def _write_json(json_file: str, text: str) -> None:
    if json_file == "-":
        sys.stdout.write(text)
    else:
        Path(json_file).write_text(text)


class _Screen:
    """One bar for the flights, one line for the stage; see ``runner.Screen``."""

    def __init__(self, console: Console, flights: int) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._bar = self._progress.add_task("flights committed", total=flights)
        self._stage = self._progress.add_task("starting", total=None)

    def __enter__(self) -> _Screen:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False)

    def stage(self, text: str) -> None:
        if not self._console.is_terminal:
            self._console.print(text, highlight=False)
        self._progress.update(self._stage, description=text)

    def committed(self, flights: int) -> None:
        self._progress.update(self._bar, completed=flights)
