"""Runs a machine: one event after the other, each effect carried out, what follows from it told back as events.

No decision is made here. Events queue while an effect is carried out, so the machine is never re-entered.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from waltz_ray.errors import InvariantBroken
from waltz_ray.runtime.story import Story
from waltz_ray.runtime.watchdog import SLOW_S, Watchdog

__all__ = ["Driver", "Machine"]

log = logging.getLogger(__name__)

EventT = TypeVar("EventT")
EffectT = TypeVar("EffectT")
E_contra = TypeVar("E_contra", contravariant=True)
F_co = TypeVar("F_co", covariant=True)


class Machine(Protocol[E_contra, F_co]):
    """Pure: no clock, socket, file, thread or random number in it."""

    def step(self, event: E_contra) -> Sequence[F_co]:
        """Take one past fact in; the orders it leads to."""

    def broken(self) -> str | None:
        """Which invariant does not hold, of those that are cheap to look at after every step."""


class Driver(Generic[EventT, EffectT]):
    """Drives ``machine``. For one thread.

    When a step raises, or leaves an invariant broken, ``on_fatal`` is called and the error goes on to the caller:
    half a step is done, and whatever the machine said from here on could be wrong. So it is never asked again: later
    events are let go. The log has the last events and effects then.
    """

    def __init__(
        self,
        name: str,
        machine: Machine[EventT, EffectT],
        carry_out: Callable[[EffectT], None],
        on_fatal: Callable[[str], None],
        watchdog: Watchdog | None = None,
        heavy: frozenset[type] = frozenset(),
    ) -> None:
        """``name`` is for messages; ``watchdog``: where steps must not be slow, for others wait; ``heavy``: classes of
        events and effects that hold records (see ``Story``)."""
        self.machine = machine
        self.story = Story(heavy)
        self.stepping = False
        """A step is under way, or the last one has failed: an event waits, or is let go."""
        self._name = name
        self._carry_out = carry_out
        self._on_fatal = on_fatal
        self._watchdog = watchdog
        self._events: deque[EventT] = deque()
        self._failed = False

    def handle(self, event: EventT) -> None:
        """One fact; everything that follows from it is carried out before this returns (or has been started)."""
        if self.stepping:
            self._events.append(event)
            return
        self.stepping = True
        try:
            self._step(event)
            while self._events:
                self._step(self._events.popleft())
        except Exception as error:
            self._failed, self._events = True, deque(maxlen=0)
            message = f"{self._name}: a step of its machine failed"
            log.critical("%s; its last steps:\n%s", message, self.story.text(), exc_info=error)
            self._on_fatal(message)
            raise
        finally:
            self.stepping = self._failed

    def _step(self, event: EventT) -> None:
        machine, watchdog = self.machine, self._watchdog
        started = 0.0 if watchdog is None else time.monotonic()
        try:
            effects = machine.step(event)
        except Exception:
            self.story.tell(event, ())
            raise
        self.story.tell(event, effects)
        broken = machine.broken()
        if broken is not None:
            raise InvariantBroken(f"{self._name}: {broken}")
        for effect in effects:
            self._carry_out(effect)
        if watchdog is not None and (seconds := time.monotonic() - started) > SLOW_S:
            watchdog.slow(f"{self._name}: {type(event).__name__}", seconds)
