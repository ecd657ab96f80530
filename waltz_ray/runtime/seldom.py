"""Lines of the log that a peer or a load could cause without end: who floods a port must not flood a disk, too."""

from __future__ import annotations

import logging
import threading
import time

__all__ = ["Few", "Seldom"]


class Seldom:
    """Counts what happens, and says when a line about it is due: every ``every_s`` seconds at the most."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._silent_until = 0.0
        self._unsaid = 0

    def due(self) -> int:
        """Note that it has happened again; how often since the last line, 0 if it is too early for another one."""
        self._unsaid += 1
        now = time.monotonic()
        if now < self._silent_until:
            return 0
        count, self._unsaid = self._unsaid, 0
        self._silent_until = now + self._every_s
        return count


class Few:
    """Lines of which each is about another peer, or partition: ``most`` of them in ``every_s`` seconds. How many were
    left out is said with the next one after that. For several threads."""

    def __init__(self, most: int = 20, every_s: float = 10.0) -> None:
        self._most, self._every_s = most, every_s
        self._lock = threading.Lock()
        self._until = 0.0
        self._said = self._left_out = 0

    def say(self, log: logging.Logger, level: int, text: str, *arguments: object) -> None:
        """This line, unless there were too many lately."""
        with self._lock:
            now, left_out = time.monotonic(), 0
            if now >= self._until:
                left_out, self._left_out, self._said, self._until = self._left_out, 0, 0, now + self._every_s
            if self._said == self._most:
                self._left_out += 1
                return
            self._said += 1
        if left_out:
            log.log(level, "%d more lines like the next one were left out", left_out)
        log.log(level, text, *arguments)
