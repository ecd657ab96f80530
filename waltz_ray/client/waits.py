"""Waits of an application's thread, in which Ctrl-C is noticed however long they are.

A signal between the interpreter's last look for one and the system call that waits interrupts nothing: its handler runs
when the wait is over (CPython; of 100,000 signals sent up to 100 us before a wait on an idle machine, four). So none of
these waits longer than ``LOOK_S`` at once. ``timeout`` in seconds, None = without an end.
"""

from __future__ import annotations

import concurrent.futures
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

__all__ = ["LOOK_S", "item_of", "result_of", "undone", "wait_for"]

T = TypeVar("T")

LOOK_S = 0.5
"""Between two looks for a signal, seconds."""


def item_of(items: queue.SimpleQueue[T], timeout: float | None = None) -> T:
    """The next item; queue.Empty: none came."""
    for look_s in _looks(timeout):
        try:
            return items.get(timeout=look_s)
        except queue.Empty:
            continue
    raise queue.Empty


def result_of(future: concurrent.futures.Future[T], timeout: float | None = None) -> T:
    """What it comes to; raises what it failed with. concurrent.futures.TimeoutError: nothing yet."""
    for look_s in _looks(timeout):
        try:
            return future.result(look_s)
        except concurrent.futures.TimeoutError:
            if future.done():  # by now, or this is what it failed with
                return future.result()
    raise concurrent.futures.TimeoutError


def undone(
    futures: Collection[concurrent.futures.Future[Any]], timeout: float | None = None
) -> set[concurrent.futures.Future[Any]]:
    """Which of them have not come to anything in time."""
    left = set(futures)
    for look_s in _looks(timeout):
        left = concurrent.futures.wait(left, look_s).not_done
        if not left:
            break
    return left


def wait_for(event: threading.Event, timeout: float | None = None, check: Callable[[], object] = lambda: None) -> bool:
    """Whether it was set in time. ``check`` raises, at each look, where it cannot be set any more."""
    for look_s in _looks(timeout):
        if event.wait(look_s):
            return True
        check()
    return False


def _looks(timeout: float | None) -> Iterator[float]:
    """How long to wait at once, until ``timeout`` is over; at least once."""
    if timeout is None:
        while True:
            yield LOOK_S
    end_s = time.monotonic() + timeout
    while (left_s := end_s - time.monotonic()) > LOOK_S:
        yield LOOK_S
    yield max(0.0, left_s)
