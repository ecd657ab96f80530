"""What a node tells of what it serves: to the log of its process, and to who has said hello to its gateway.

A split changes thousands of units one by one, and each announcement is the sum of them all: so what changes is said
now and then, and once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from typing import Protocol

from waltz_ray.kv.messages import Hashmasks
from waltz_ray.kv.routing import Unit

__all__ = ["Announcements", "Announcer"]

log = logging.getLogger(__name__)

_ANNOUNCE_S, _ANNOUNCED_BUCKET_S = 0.1, 25e-6
"""Between two announcements: for each bucket in it about ten times what it costs, or so much."""


class Announcer(Protocol):
    """The gateway, as far as the node tells it what has changed."""

    def announce(self, masks: Hashmasks) -> None: ...

    def announce_servers(self) -> None: ...


class Announcements:
    """``hashmasks``: says what the actor has. Give it a ``gateway``; without one only the log is told."""

    def __init__(self, actor: int, hashmasks: Callable[[], Hashmasks]) -> None:
        self.gateway: Announcer | None = None
        self._actor = actor
        self._hashmasks = hashmasks
        self._loop = asyncio.get_running_loop()
        self._told: Hashmasks | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._not_before_s = 0.0
        self._changes: dict[str, list[Unit]] = defaultdict(list)  # how -> the units, for the log
        self._stopped = False

    def servers_changed(self) -> None:
        """The registered actors are others now."""
        if self.gateway is not None:
            self.gateway.announce_servers()

    def changed(self, unit: Unit, how: str) -> None:
        """The log is told with the next announcement; ``soon`` follows."""
        self._changes[how].append(unit)

    def soon(self) -> None:
        """What is served may have changed."""
        if self._timer is None and not self._stopped:
            self._timer = self._loop.call_at(self._not_before_s, self._announce)

    def _announce(self) -> None:
        self._timer = None
        changes, self._changes = self._changes, defaultdict(list)
        for how, units in changes.items():
            others = f" and {len(units) - 1} more" if len(units) > 1 else ""
            log.info("kv/%d: %s%s %s", self._actor, units[0], others, how)
        masks = self._hashmasks()
        if masks != self._told and self.gateway is not None and not self._stopped:
            self._told = masks
            self.gateway.announce(masks)
        self._not_before_s = self._loop.time() + min(_ANNOUNCE_S, len(masks.buckets) * _ANNOUNCED_BUCKET_S)

    def stop(self) -> None:
        """Clients hear nothing more; what has changed is still logged."""
        self._stopped = True

    def close(self) -> None:
        """Nothing more. Idempotent."""
        self.stop()
        if self._timer is not None:
            self._timer.cancel()
