"""Whether a server of the log does its work: it is asked over the port that clients use, by the loop that serves them.

A process that is stopped, or stuck, keeps its connections, its place in Ray and, as other threads tend it, perhaps its
ZooKeeper session. Only its answers are missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from waltz_ray.actors.endpoint_probe import GreetedProbe

__all__ = ["Heartbeats", "Silence"]

_BEAT_S = 0.25
_WELL_S = 5.0
"""Who was silent has to answer for so long before he counts as well: a move costs others a pause, too."""


class Silence:
    """How long somebody has said nothing, in turns of our own loop. A turn counts for two beats at the most: if we were
    stopped ourselves, nobody was silent meanwhile. Pure.

    ``silent``, ``well``: called at each change. Nobody is silent while nobody else speaks either (``others_speak``):
    who hears nobody may be deaf himself, and all of them seem to fall silent one after the other.
    """

    def __init__(
        self,
        after_s: float,
        silent: Callable[[], object],
        well: Callable[[], object],
        others_speak: Callable[[], bool] = lambda: True,
    ) -> None:
        self._after_s = after_s
        self._others_speak = others_speak
        self._silent, self._well = silent, well
        self._quiet_s = self._well_s = 0.0
        self._is_silent = False

    def heard(self) -> None:
        """He has said something."""
        self._quiet_s = 0.0

    @property
    def speaks(self) -> bool:
        """He has said something just now."""
        return self._quiet_s <= 2 * _BEAT_S

    def passed(self, seconds: float) -> None:
        """One more turn is over, after so long."""
        seconds = min(seconds, 2 * _BEAT_S)
        self._quiet_s += seconds
        if self._quiet_s > self._after_s and not self._is_silent and self._others_speak():
            self._is_silent = True
            self._silent()
        if not self._is_silent:
            return
        self._well_s = self._well_s + seconds if self.speaks else 0.0
        if self._well_s >= _WELL_S:
            self._is_silent, self._well_s = False, 0.0
            self._well()


class Heartbeats:
    """Of one server. Its connections are held by ``endpoint_probe``, which is given ``new_probe``."""

    def __init__(
        self,
        silent_s: float,
        silent: Callable[[], object],
        well: Callable[[], object],
        others_speak: Callable[[], bool] = lambda: True,
    ) -> None:
        """``silent`` is called when there was no answer for ``silent_s``, ``well`` when there are answers again; the
        former not before somebody else is heard (``others_speak``)."""
        self._silence = Silence(silent_s, silent, well, others_speak)
        self._probe: GreetedProbe | None = None

    @property
    def speaks(self) -> bool:
        """It has answered just now."""
        return self._silence.speaks

    def new_probe(self) -> GreetedProbe:
        """The next connection to be held."""
        self._probe = GreetedProbe(self._silence.heard)
        return self._probe

    async def run(self) -> None:
        """Ask until cancelled, also while there is no connection."""
        loop = asyncio.get_running_loop()
        before_s = loop.time()
        while True:
            await asyncio.sleep(_BEAT_S)
            now_s = loop.time()
            self._silence.passed(now_s - before_s)
            before_s = now_s
            if self._probe is not None:
                self._probe.ask()
