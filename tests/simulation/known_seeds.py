"""For each mutation a seed that notices it (`make simulate-mutations` finds them again)."""

from __future__ import annotations

__all__ = ["KNOWN_SEEDS"]

KNOWN_SEEDS: dict[str, int] = {}
