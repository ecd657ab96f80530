"""What a load or an import shows while it runs, on stderr: a bar on a terminal, else a line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from waltz_ray.cli.common import tell

__all__ = ["LoadProgress"]

_LINE_EVERY_S = 3.0
_LOOK_EVERY = 256


Shown = TypeVar("Shown", bound="LoadProgress")


class _Rate(ProgressColumn):
    """How many a second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s")


class LoadProgress:
    """``stage`` begins a part of the work, ``at`` says how far it is; cheap enough to be called for each row."""

    def __init__(
        self,
        quiet: bool,
        monotonic: Callable[[], float] = time.monotonic,
        unit: str = "rows",
        look_every: int = _LOOK_EVERY,
    ) -> None:
        """``unit``: what is counted; "": each stage says it, and no rate is shown. ``look_every``: less than so many
        more than at the last look are not looked at."""
        console = Console(stderr=True)
        rate = [_Rate()] if unit else []
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), *rate, TimeRemainingColumn())
        self._bar = Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True)
        self._task = self._bar.add_task("", total=None)
        self._lines = not quiet and not console.is_terminal
        self._monotonic = monotonic
        self._unit = unit
        self._look_every, self._next_look = look_every, 0
        self._last_s = monotonic()
        self._what, self._total = "", ""

    def stage(self, what: str, total: int | None = None) -> None:
        """``what`` is done to ``total`` of them from now on; None: nobody knows how many there are."""
        self._next_look = 0
        self._what, self._total = what, "" if total is None else f" of {total:,}"
        self._bar.reset(self._task, description=what, total=total)

    def at(self, done: int) -> None:
        """So many are done."""
        if done < self._next_look:
            return
        self._next_look = done + self._look_every
        self._bar.update(self._task, completed=done)
        if self._lines and self._monotonic() - self._last_s >= _LINE_EVERY_S:
            self._last_s = self._monotonic()
            line = f"waltz: {self._what}: {done:,}{self._total} {self._unit}"
            tell(line.rstrip())

    def __enter__(self: Shown) -> Shown:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
