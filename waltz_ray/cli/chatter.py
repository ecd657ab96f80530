"""Where the output goes of what a command starts: Java processes inherit the file descriptors, not Python's objects."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

__all__ = ["chatter_to", "redirected"]


@contextmanager
def redirected(numbers: tuple[int, ...], target: int) -> Iterator[None]:
    """The file descriptors ``numbers`` (1: stdout, 2: stderr) lead to ``target`` meanwhile."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(number) for number in numbers]
    for number in numbers:
        os.dup2(target, number)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, old in zip(numbers, saved, strict=True):
            os.dup2(old, number)
            os.close(old)


@contextmanager
def chatter_to(log: Path, console: Console) -> Iterator[Console]:
    """A console like ``console``, while everything else that is written to stdout and stderr goes to ``log``.

    Ray's threads report the killed processes on stdout, too.
    """
    with (
        os.fdopen(os.dup(2 if console.stderr else 1), "w") as screen,
        log.open("ab") as file,
        redirected((1, 2), file.fileno()),
    ):
        yield Console(file=screen)
