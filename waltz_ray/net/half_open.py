"""How many connections there are whose peer has not said yet who it is.

Who is one of ours needs some milliseconds for that; a stranger may never do it. So of too many it is the one that has
waited longest which is closed: strangers that fill all the places keep nobody else out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from waltz_ray.runtime.seldom import Seldom

__all__ = ["HalfOpen"]

log = logging.getLogger(__name__)

_LOG_EVERY_S = 10.0


class HalfOpen:
    """``most`` of them at one time. For several threads."""

    def __init__(self, name: str, most: int) -> None:
        self.closed = 0
        """How many had to go for others."""
        self._name, self._most = name, most
        self._lock = threading.Lock()
        self._waiting: dict[object, Callable[[], None]] = {}  # the oldest first
        self._told = Seldom(_LOG_EVERY_S)

    @contextmanager
    def waiting(self, close: Callable[[], None]) -> Iterator[None]:
        """One more, as long as the block lasts. ``close`` ends it, in any thread, if it has to go for another one."""
        place = object()
        with self._lock:
            oldest = next(iter(self._waiting), None) if len(self._waiting) >= self._most else None
            end_oldest = None if oldest is None else self._waiting.pop(oldest)
            self._waiting[place] = close
            self.closed += end_oldest is not None
            count = self._told.due() if end_oldest is not None else 0
        if end_oldest is not None:
            end_oldest()
        if count:
            log.warning("%s: closed %d connection(s) that did not say who they are, for newer ones", self._name, count)
        try:
            yield
        finally:
            with self._lock:
                self._waiting.pop(place, None)
