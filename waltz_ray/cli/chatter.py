"""Where the output goes of what a command starts: Java processes inherit the file descriptors, not Python's objects."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["redirected"]


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
