"""Rules of late joiners' progress, broken, that the simulation has not noticed in 250 histories (see ``mutations.py``).

Marks would have to be too high on a replica that then misses a session, while those that had more are away. Nor do
walks notice it reliably. ``tests/protocol/test_progress.py`` does, with the session alone.
"""

from __future__ import annotations

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.protocol import session_rules

__all__ = ["progress_above_what_is_committed"]

Patch = pytest.MonkeyPatch


def progress_above_what_is_committed(patch: Patch) -> None:
    """A late joiner's mark is raised to all that it has been sent."""
    break_rule(patch, session_rules, "progress_mark", lambda session, replica: replica.last_id)
