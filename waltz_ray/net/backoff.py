"""How long to wait before something that failed is tried again: longer each time, never too long, and not in step."""

from __future__ import annotations

import random
from collections.abc import Callable

__all__ = ["Backoff"]


class Backoff:
    """Pauses that double from ``first_s`` to ``longest_s`` seconds, until ``reset``.

    Each is shortened by chance, by up to the share ``spread`` of it: clients that lost one server at one moment must
    not come back at one moment. ``uniform(low, high)`` is that chance, ``random.uniform`` unless given. One thread at
    a time.
    """

    def __init__(
        self,
        first_s: float = 0.02,
        longest_s: float = 0.5,
        spread: float = 0.5,
        uniform: Callable[[float, float], float] | None = None,
    ) -> None:
        self._first_s, self._longest_s, self._spread = first_s, longest_s, spread
        self._uniform = uniform or random.uniform
        self._pause_s = first_s

    def next_s(self) -> float:
        """How long to wait this time, in seconds."""
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, self._longest_s)
        return pause_s * self._uniform(1.0 - self._spread, 1.0) if self._spread else pause_s

    def reset(self) -> None:
        """Begin with the first pause again, after what was tried has worked."""
        self._pause_s = self._first_s
