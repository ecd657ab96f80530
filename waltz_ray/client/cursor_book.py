"""Where cursors are kept, as a client sees it; injected with its directory, for it knows nothing of ZooKeeper itself.

All calls block, and may raise ZooKeeperUnreachable: a write may have happened then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from waltz_ray.errors import CursorLost
from waltz_ray.protocol.cursors import CursorRecord
from waltz_ray.runtime.status import CursorStatus

__all__ = ["CursorBook", "HeldCursor"]


class HeldCursor(Protocol):
    """A cursor that this client has, until it is released or lost."""

    @property
    def record(self) -> CursorRecord:
        """As it was written last."""

    @property
    def lost(self) -> CursorLost | None:
        """Why it is not this client's any more; None: it is, as far as is known."""

    @property
    def connected(self) -> bool:
        """Whether a write would be answered at once, as far as is known."""

    def when_lost(self, callback: Callable[[], None]) -> None:
        """``callback`` once it is lost, from any thread; it must not wait for anything."""

    def advance(self, positions: Mapping[int, int]) -> None:
        """Move on, never back. CursorLost."""

    def reset(self, positions: Mapping[int, int]) -> None:
        """Stand there, back or forth. CursorLost; Trimmed if it is to hold what was trimmed away meanwhile."""

    def release(self) -> None:
        """Give it back. Idempotent."""


class CursorBook(Protocol):
    """The cursors of a space."""

    def first_ids(self) -> Mapping[int, int]:
        """Of each partition the first ID that was not trimmed away."""

    def all(self) -> list[CursorStatus]:
        """Every cursor, by name."""

    def create(self, name: str, positions: Mapping[int, int], hold: bool) -> None:
        """Have a cursor of that name: a new one there, or the one that is there. Trimmed."""

    def take(self, name: str, hold: bool | None = None) -> HeldCursor:
        """Have the cursor. CursorTaken, CursorNotFound."""

    def when_free(self, name: str, callback: Callable[[], None]) -> Callable[[], None]:
        """``callback``, from any thread, when nobody has the cursor, perhaps often; returns a canceller."""

    def delete(self, name: str) -> None:
        """Let go of a cursor for ever. CursorTaken, CursorNotFound."""
