"""What happened, in order: a bounded text for people and a hash of all of it for the reproducibility test."""

from __future__ import annotations

import hashlib
import logging
import traceback
from collections import deque

from tests.simulation.loop import Scheduler
from waltz_ray.runtime import driver

__all__ = ["Story", "StoryHandler"]

_KEPT_LINES = 400


class Story:
    """Every line counts for ``digest``; the last few hundred are kept."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._hash = hashlib.sha256()

    def tell(self, who: str, what: str) -> None:
        line = f"{self._scheduler.now:10.6f} {who:<12} {what}"
        self._lines.append(line)
        self._hash.update(line.encode())

    def mix(self, data: bytes) -> None:
        """Bytes that count for the digest and are not for reading."""
        self._hash.update(data)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def text(self, lines: int = _KEPT_LINES) -> str:
        return "\n".join(list(self._lines)[-lines:])


class StoryHandler(logging.Handler):
    """The log lines of the code under test, with the simulated process that wrote them."""

    def __init__(self, story: Story, scheduler: Scheduler) -> None:
        super().__init__(logging.INFO)
        self._story, self._scheduler = story, scheduler

    def emit(self, record: logging.LogRecord) -> None:
        current = self._scheduler.current
        who = "?" if current is None else current.name
        self._story.tell(who, record.getMessage())
        if record.exc_info and record.exc_info[1] is not None:
            if record.name == driver.__name__:  # a step of a machine has failed, whoever hides that
                self._scheduler.fail(record.exc_info[1])
            for frame in traceback.extract_tb(record.exc_info[2])[-6:]:
                self._story.tell(who, f"  {frame.name}: {frame.line}")
            self._story.tell(who, f"  {record.exc_info[1]!r}")
