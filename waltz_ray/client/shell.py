"""What the core of a client is given by who runs it: a loop, a clock, somewhere to run the application's code.

``threads.Threads`` is the shell of ``WaltzClient``, ``own_loop.OwnLoop`` that of ``AsyncWaltzClient``; the simulator
has one more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from waltz_ray.client.outbox import Outbox
from waltz_ray.client.requests import AppendCall

__all__ = ["Shell", "Turn"]

Turn = Callable[[], float | None]
"""Does one piece of work. Seconds until it wants to be called again; None: not before it is rung for."""


class Shell(Protocol):
    """What runs a client's core: a loop, a clock, somewhere for the application's code. ``post`` is for any thread."""

    def monotonic(self) -> float:
        """Seconds, from any thread."""

    def jitter(self) -> float:
        """A factor from 0.5 to 1 for a pause, by chance."""

    def post(self, function: Callable[..., object], *args: object) -> None:
        """Call ``function(*args)`` on the loop, soon and in the order of the posts; not after the close."""

    def put(self, outbox: Outbox, append: AppendCall) -> None:
        """Send a context's attempt; called where contexts run. Waits for room there or later, for so long as may be.

        Raises, or ends ``append`` with, what an append may end with.
        """

    def run_context(self, function: Callable[..., None], *args: object) -> None:
        """Call ``function(*args)`` where a context's hooks may run; never before this has returned."""

    def stop_contexts(self) -> None:
        """Begin no further one; wait for those that run, unless that would be waiting for who calls."""

    def drive(self, turn: Turn) -> Callable[[], None]:
        """Call ``turn`` where callbacks may run, never twice at the same time. The result rings for it: any thread."""

    def stop_driving(self) -> None:
        """No further turn; wait for the one that runs, unless that would be waiting for who calls."""
