"""What a command that takes minutes shows meanwhile, and the file of its result."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from waltz_ray.cli.chatter import chatter_to
from waltz_ray.errors import InvalidInput, WaltzError

__all__ = ["BarScreen", "at_work", "check_writable", "write_json"]


def check_writable(json_file: str) -> None:
    """Before minutes of work, not after them: InvalidInput if the file's folder is not there, or it cannot be written.
    - is stdout, "" none."""
    if json_file in ("", "-"):
        return
    path = Path(os.path.realpath(json_file))
    if not path.parent.is_dir():
        raise InvalidInput(f"--json {json_file}: there is no folder {path.parent}")
    if path.is_dir():
        raise InvalidInput(f"--json {json_file} is a folder; give a file in it")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidInput(f"--json {json_file}: you may not write there")


@contextmanager
def at_work(place: Path, name: str, what: str, total: int, console: Console) -> Iterator[BarScreen]:
    """The screen of a command that works in ``place``, where its log gets all that Ray and Spark have to say, too.
    ``what``: of which there are ``total``. WaltzError where one of their processes was lost."""
    # Now: Ray ends this process without a word where its head has been killed, and waltz down --dir has to be told.
    console.print(f"Everything goes into {place}", highlight=False, soft_wrap=True)
    log = place / f"{name}.log"
    with _losses_told(log), chatter_to(log, console) as terminal, BarScreen(terminal, what, total) as screen:
        yield screen


@contextmanager
def _losses_told(log: Path) -> Iterator[None]:
    """WaltzError, which names ``log``, for what Ray and Spark raise where a process of theirs was killed or ran out of
    memory: everybody's, and no fault of the command's."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # seconds, which other commands need not wait for
    from pyspark.errors import PySparkException
    from ray.exceptions import RayError

    try:
        yield
    except WaltzError:  # of an actor, which is Ray's, too
        raise
    except (RayError, PySparkException, Py4JError) as error:
        what = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise WaltzError(f"one of the processes that do the work has ended or failed: {what}; see {log}") from error


def write_json(json_file: str, result: dict[str, Any]) -> None:
    """To the file, to stdout for -, nowhere for ""."""
    text = json.dumps(result, indent=2) + "\n"
    if json_file == "-":
        sys.stdout.write(text)
    elif json_file:
        Path(json_file).write_text(text)


class BarScreen:
    """One bar for what is counted, one line for the stage."""

    def __init__(self, console: Console, counted: str, total: int) -> None:
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
        self._bar = self._progress.add_task(counted, total=total)
        self._stage = self._progress.add_task("starting", total=None)

    def __enter__(self) -> BarScreen:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def say(self, text: str) -> None:
        """A line that stays."""
        self._console.print(text, highlight=False)

    def stage(self, text: str) -> None:
        """What is going on now."""
        if not self._console.is_terminal:
            self._console.print(text, highlight=False)
        self._progress.update(self._stage, description=text)

    def committed(self, count: int) -> None:
        """How many are, of the total."""
        self._progress.update(self._bar, completed=count)
