"""What ``waltz load`` shows while it runs: a bar on a terminal, else a line every few seconds, always on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["LoadProgress"]

_LINE_EVERY_S = 3.0
_LOOK_EVERY_ROWS = 256


class LoadProgress:
    """``stage`` begins a part of the work, ``at`` says how far it is; cheap enough to be called for each row."""

    def __init__(self, quiet: bool, monotonic: Callable[[], float] = time.monotonic) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True)
        self._task = self._bar.add_task("", total=None)
        self._lines = not quiet and not console.is_terminal
        self._monotonic = monotonic
        self._last_s = monotonic()
        self._what, self._total = "", ""

    def stage(self, what: str, total: int | None = None) -> None:
        """``what`` is done to ``total`` rows from now on; None: nobody knows how many there are."""
        self._what, self._total = what, "" if total is None else f" of {total:,}"
        self._bar.reset(self._task, description=what, total=total)

    def at(self, rows: int) -> None:
        """So many are done."""
        if rows % _LOOK_EVERY_ROWS:
            return
        self._bar.update(self._task, completed=rows)
        if self._lines and self._monotonic() - self._last_s >= _LINE_EVERY_S:
            self._last_s = self._monotonic()
            print(f"waltz: {self._what}: {rows:,}{self._total} rows", file=sys.stderr, flush=True)

    def __enter__(self) -> LoadProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
