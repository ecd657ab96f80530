"""Whether the server at the other end of a connection still says anything.

A connection may be there and nothing come through it: the server hangs, a router in between has forgotten it, packets
are lost one way. TCP itself says so after ten seconds at the earliest, and never where a proxy answers for the server.
So whoever waits for something asks, on the same connection, and gives the connection up if nothing comes.
"""

from __future__ import annotations

from enum import Enum

from waltz_ray.net.carried import Carried

__all__ = ["BEATS", "Liveness", "WhatToDo", "lives"]

BEATS = 6
"""Turns in the time after which a silent server is given up."""

_IDLE = 10
"""So many times that long nothing may be heard where nothing is waited for."""


class WhatToDo(Enum):
    """What is to be done about the silence."""

    NOTHING = "nothing"
    ASK = "ask"
    GIVE_UP = "give up"


class Liveness:
    """Of one connection, in turns of our own loop. A turn counts for two beats at the most: if we were stopped
    ourselves, nobody was silent meanwhile. Pure.

    It is asked after a third of ``silent_s``, so that it has the rest to answer.
    """

    def __init__(self, silent_s: float) -> None:
        self.beat_s = silent_s / BEATS
        self._silent_s = silent_s
        self._last: Carried | None = None
        self._quiet_s = self._waited_s = 0.0
        self._asked_s: float | None = None

    def passed(self, seconds: float, now: Carried, expects: bool) -> WhatToDo:
        """One more turn is over, after so long. ``expects``: something is waited for."""
        seconds = min(seconds, 2 * self.beat_s)
        last, self._last = self._last, now
        if last is None or lives(last, now):
            self._quiet_s = self._waited_s = 0.0
            self._asked_s = None
            return WhatToDo.NOTHING
        self._quiet_s += seconds
        self._waited_s = self._waited_s + seconds if expects else 0.0
        if self._asked_s is not None:
            self._asked_s += seconds
            return WhatToDo.GIVE_UP if self._asked_s >= self._silent_s * 2 / 3 else WhatToDo.NOTHING
        if self._waited_s >= self._silent_s / 3 or self._quiet_s >= self._silent_s * _IDLE:
            self._asked_s = 0.0
            return WhatToDo.ASK
        return WhatToDo.NOTHING


def lives(last: Carried, now: Carried) -> bool:
    """Something was received; or what we send is long, or the line slow, and the other side takes it by and by. What
    is acknowledged as soon as it is sent says nothing about who is behind the machine that does so."""
    taken = now.under_way and last.under_way and now.acknowledged_bytes > last.acknowledged_bytes
    return bool(taken) or now.received_bytes > last.received_bytes
