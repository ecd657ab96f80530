"""Ctrl-C in a command that goes on where it was interrupted: it must know how far it came."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["ctrl_c_between_steps"]


@contextmanager
def ctrl_c_between_steps() -> Iterator[Callable[[], None]]:
    """The given function raises the KeyboardInterrupt of a first Ctrl-C, so that none hits while a step is counted.

    A second one hits wherever the program is: it may be waiting for a log that does not answer.
    """
    pressed = False

    def remember(number: int, frame: object) -> None:
        nonlocal pressed
        pressed = True
        signal.signal(signal.SIGINT, before)

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, remember)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
