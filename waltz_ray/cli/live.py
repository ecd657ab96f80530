"""Looking at a cluster again and again, and showing it in one place: on a terminal live, else one after the other."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Annotated, TypeVar

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from waltz_ray.cli.common import console

__all__ = ["IntervalOption", "show_live", "views"]

T = TypeVar("T")

IntervalOption = Annotated[float, typer.Option(min=0.2, max=3600, help="Seconds from one look to the next.")]


def views(
    look: Callable[[], T],
    interval_s: float,
    most: int = 0,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[T]:
    """What ``look`` sees, every ``interval_s``; ``most`` times, 0: without end."""
    for number in itertools.count(1):
        due = clock() + interval_s
        yield look()
        if number == most:
            return
        sleep(max(0.0, due - clock()))


def show_live(pages: Iterable[Iterable[RenderableType]]) -> None:
    """Each in the place of the one before; what does not fit on the terminal is cut off at its end. Where the output is
    no terminal, one after the other. Ctrl-C ends it quietly."""
    screen = console()
    with suppress(KeyboardInterrupt):
        if not screen.is_terminal:
            for page in pages:
                for part in page:
                    screen.print(part, soft_wrap=isinstance(part, Text))
            return
        with Live(console=screen, screen=True, auto_refresh=False) as live:
            for page in pages:
                live.update(Group(*page), refresh=True)
