"""What must hold of every history, one rule per file. Each checker raises ``Violation`` with one clear line.

Some rules are also watched while the history runs (``history.py``): a fork, a second writer and a changed fate are
told at once, so that the story ends where it happened.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.checkers import (
    callbacks,
    costs,
    fates,
    feed_order,
    lock_safety,
    no_duplicate,
    no_fork,
    no_gap,
    no_loss,
    one_writer,
    times,
)
from tests.simulation.checkers.outcome import Outcome

__all__ = ["CHECKERS", "Outcome"]

CHECKERS: list[Callable[[Outcome], None]] = [
    no_fork.check,
    no_gap.check,
    no_loss.check,
    no_duplicate.check,
    one_writer.check,
    lock_safety.check,
    fates.check,
    feed_order.check,
    callbacks.check,
    costs.check,
    times.check,
]
