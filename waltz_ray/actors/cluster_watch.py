"""Looks at the cluster every few seconds, so that any number of people may look at what was seen."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from waltz_ray.runtime.status import ClusterStatus

__all__ = ["ClusterWatch", "Sight"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen, and when (``time.monotonic``)."""

    view: ClusterStatus
    at: float


class ClusterWatch:
    """Calls ``look`` from a thread of its own, then ``then`` with what was seen, every ``interval_s`` until ``close``.

    What goes wrong there is told (``error``) and tried again; what was seen last stays, and grows old.
    """

    def __init__(
        self,
        look: Callable[[], ClusterStatus],
        then: Callable[[ClusterStatus], None],
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look, self._then, self._interval_s, self._clock = look, then, interval_s, clock
        self._began = clock()
        self.sight: Sight | None = None
        """What was seen last."""
        self.error = ""
        """Why the last look failed, "" if it did not."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cluster-watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """End it; a look that is under way is not waited for."""
        self._closing.set()

    @property
    def age_s(self) -> float:
        """Of what was seen, or since this began if nothing was."""
        sight = self.sight
        return self._clock() - (self._began if sight is None else sight.at)

    def beat(self) -> None:
        """One look."""
        try:
            view = self._look()
            self.sight = Sight(view, self._clock())
            self._then(view)
            self.error = ""
        except Exception as error:  # whatever it is: who ceases to look tells nobody of it
            reason = f"{type(error).__name__}: {error}"
            if reason != self.error:
                log.exception("the cluster cannot be looked at")
            self.error = reason

    def _run(self) -> None:
        while not self._closing.is_set():
            self.beat()
            self._closing.wait(self._interval_s)
