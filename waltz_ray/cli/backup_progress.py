"""What ``waltz backup`` and ``restore`` show while they run: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["BackupProgress"]

_LINE_EVERY_S = 3.0


class BackupProgress:
    """On stderr. ``begin`` a part of the work, of which ``done`` says how much more there is of it."""

    def __init__(self, quiet: bool, monotonic: Callable[[], float] = time.monotonic) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True)
        self._task = self._bar.add_task("", total=None)
        self._lines = not quiet and not console.is_terminal
        self._monotonic = monotonic
        self._last_s = monotonic()
        self._what, self._total, self._count = "", 0, 0

    def begin(self, what: str, total: int) -> None:
        self._what, self._total, self._count = what, total, 0
        self._bar.reset(self._task, description=what, total=total)

    def done(self, count: int) -> None:
        self._count += count
        self._bar.update(self._task, completed=self._count)
        if self._lines and self._monotonic() - self._last_s >= _LINE_EVERY_S:
            self._last_s = self._monotonic()
            print(f"waltz: {self._what}: {self._count:,} of {self._total:,}", file=sys.stderr, flush=True)

    def __enter__(self) -> BackupProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
