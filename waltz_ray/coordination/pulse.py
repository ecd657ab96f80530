"""Whether ZooKeeper answers, for people: one cheap request every few seconds, and how long ago the last answer came.

A server that hangs (a stopped process, a stuck disk) keeps its connections open: the client's state may say connected
for most of a session's time, and nothing that is idle notices. The age of the last answer does not lie.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.errors import CoordinationError
from waltz_ray.runtime.status import ZooKeeperStatus

__all__ = ["ZooKeeperPulse"]

log = logging.getLogger(__name__)

_INTERVAL_S = 2.0


class ZooKeeperPulse:
    """Asks whether ``path`` exists, from a thread of its own, until ``close()``."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        path: str,
        interval_s: float = _INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._zookeeper, self._path = zookeeper, path
        self._interval_s, self._clock = interval_s, clock
        self._answered = clock()
        self._error = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="zookeeper-pulse", daemon=True)
        self._thread.start()

    def view(self) -> ZooKeeperStatus:
        """The connection's state, seconds since the last answer, and what the last request met."""
        return ZooKeeperStatus(self._zookeeper.state.value, round(self._clock() - self._answered, 1), self._error)

    def close(self) -> None:
        """Idempotent. Does not wait: a request may be under way, and ends when the client is closed."""
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.wait(self._interval_s):
            self.beat()

    def beat(self) -> None:
        """One request; blocks as long as the client does."""
        try:
            self._zookeeper.exists(self._path)
        except CoordinationError as error:
            if not self._error and not self._closing.is_set():
                log.warning("ZooKeeper does not answer: %s", error)
            self._error = str(error)
        else:
            self._answered, self._error = self._clock(), ""
