"""Ctrl-C, SIGTERM and a terminal that goes (SIGHUP) while a command has started other processes."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["interruptible", "undisturbed", "undisturbed_moment"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _handled_by(handler: Any) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    numbers = [number for number in _SIGNALS if not _is_for_nohup(number)]
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _is_for_nohup(number: int) -> bool:
    """``nohup`` has a command go on without its terminal."""
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt, so that everything is taken down.

    Entered again after each of Ray and Spark has started: both put handlers of their own in place.
    """

    def interrupt(number: int, frame: Any) -> None:
        if number == signal.SIGHUP:
            _write_nowhere()
        raise KeyboardInterrupt

    yield from _handled_by(interrupt)


def _write_nowhere() -> None:
    """What a command says while it takes things down must not fail, and end that, for lack of its terminal."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        try:
            os.tcgetpgrp(number)
        except OSError as error:
            if error.errno == errno.EIO:  # it was a terminal; what is a pipe or a file stays
                os.dup2(nowhere, number)
    os.close(nowhere)


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
