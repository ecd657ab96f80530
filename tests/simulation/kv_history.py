"""What the callers of the key/value layer have seen, and whether one copy of each item and lock could have shown it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tests.kv.linearizability import (
    Asked,
    KvCall,
    Result,
    item_model,
    lock_model,
)
from tests.linearizability.search import NotLinearizable, Undecided, check
from tests.simulation.history import Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["KvHistory", "OpenCall"]

_STEPS = 20_000_000
_SLACK_S = 1.3
"""Owners' clocks differ by so much; a deadline is what the owner's clock said. One goes at 0.92, another at 1.03, each
drawn to the right time by 0.01: nine hundredths of the 14 s that a history lasts."""


class OpenCall:
    """A call whose caller does not know yet."""

    def __init__(self, history: KvHistory, key: str, asked: Asked, who: str, invoked: float) -> None:
        self._history = history
        self.key, self.asked, self.who, self.invoked = key, asked, who, invoked

    def ended(self, result: Result | None) -> None:
        """None: he will never know."""
        self._history.ended(self, result)

    def never(self) -> None:
        """It has certainly not happened."""
        self._history.open.pop(self, None)


class KvHistory:
    """Items have names like ``k3``, locks like ``l1``."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.calls: list[KvCall] = []
        self.open: dict[OpenCall, None] = {}

    def begin(self, key: str, asked: Asked, who: str) -> OpenCall:
        """Somebody asks for this now."""
        call = OpenCall(self, key, asked, who, self.world.scheduler.now)
        self.open[call] = None
        return call

    def ended(self, call: OpenCall, result: Result | None) -> None:
        if call in self.open:
            del self.open[call]
            returned = math.inf if result is None else self.world.scheduler.now
            self.calls.append(KvCall(call.key, call.asked, result, call.invoked, returned, call.who))
            counts = self.world.history.counts
            counts["kv calls"] += 1
            counts[f"kv {type(call.asked).__name__} {type(result).__name__}"] += 1

    def check(self) -> None:
        """Violation if it is not linearizable."""
        for call in list(self.open):
            call.ended(None)
        try:
            check([call for call in self.calls if str(call.key).startswith("k")], item_model(_SLACK_S), _STEPS)
            check([call for call in self.calls if str(call.key).startswith("l")], lock_model(_SLACK_S), _STEPS)
        except (NotLinearizable, Undecided) as error:
            raise Violation("linearizable", str(error)) from error
