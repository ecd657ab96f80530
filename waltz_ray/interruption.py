"""Ctrl-C and SIGTERM of a command that has started other processes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["interruptible", "undisturbed", "undisturbed_moment"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _handled_by(handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise KeyboardInterrupt, so that everything is taken down.

    Entered again after each of Ray and Spark has started: both put handlers of their own in place.
    """

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    yield from _handled_by(interrupt)


@contextmanager
def undisturbed() -> Iterator[None]:
    """A second Ctrl-C must not leave half of the processes behind."""
    yield from _handled_by(signal.SIG_IGN)


@contextmanager
def undisturbed_moment() -> Iterator[None]:
    """What comes meanwhile, comes right after it: for a step that must not be cut in two."""
    came: list[int] = []
    try:
        yield from _handled_by(lambda number, frame: came.append(number))
    finally:
        for number in came[:1]:
            os.kill(os.getpid(), number)
