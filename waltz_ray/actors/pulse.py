"""When each actor last answered: what tells a hung process from one that is merely busy.

A stopped or stuck process keeps its name, its connections and its place in Ray; only its answers are missing. One
call is under way for each actor, sent again when it has been answered, so a silent one costs nothing and nobody waits
for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

__all__ = ["ActorPulse"]

log = logging.getLogger(__name__)

Call = Any

_INTERVAL_S = 2.0
_WAIT_S = 1.0


class ActorPulse:
    """``send(name)`` begins a call (None: there is no such actor); ``ended(calls, timeout_s)`` waits until all have
    ended or the time is over, and says of each that has whether it was answered. ``beat`` is one turn."""

    def __init__(
        self,
        names: Iterable[str],
        send: Callable[[str], Call | None],
        ended: Callable[[Mapping[str, Call], float], Mapping[str, bool]],
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = _INTERVAL_S,
    ) -> None:
        self._interval_s = interval_s
        self._send, self._ended, self._clock = send, ended, clock
        self._answered = dict.fromkeys(names, clock())
        self._calls: dict[str, Call] = {}
        self._closing = threading.Event()

    def start(self) -> None:
        """Beat every few seconds, from a thread, until ``close()``."""
        threading.Thread(target=self._run, name="actor-pulse", daemon=True).start()

    def close(self) -> None:
        """End the beating. Idempotent."""
        self._closing.set()

    def silent_s(self, name: str) -> float:
        """Seconds since the actor's last answer, or since this began."""
        return self._clock() - self._answered.get(name, self._clock())

    def follow(self, names: Iterable[str]) -> None:
        """These are the actors from now on; one that is new counts as having answered just now."""
        before, now = self._answered, self._clock()
        wanted = {name: before.get(name, now) for name in names}
        if wanted.keys() != before.keys():
            self._answered = wanted

    def beat(self, wait_s: float = _WAIT_S) -> None:
        for name in self._answered.copy():
            if name not in self._calls and (call := self._send(name)) is not None:
                self._calls[name] = call
        if not self._calls:
            return
        for name, answered in self._ended(self._calls, wait_s).items():
            del self._calls[name]
            if answered and name in self._answered:
                self._answered[name] = self._clock()

    def _run(self) -> None:
        failed = ""
        while not self._closing.wait(self._interval_s):
            try:
                self.beat()
                failed = ""
            except Exception as error:  # Ray's errors have many roots; who ceases to ask calls everybody silent
                if str(error) != failed:
                    log.exception("the actors cannot be asked whether they live; trying again")
                failed = str(error)
