"""Every rule once broken: proof that the simulation, and walks of single machines, would notice.

A mutation replaces rules of the code under test by their public names (``break_rule``), so it stands as long as the
rule does, whatever becomes of the code around it; ``test_mutations.py`` sees to that. ``KNOWN_SEEDS`` are seeds of the
simulation that are known to catch it, so that CI need not search; `make simulate-mutations` finds them again.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation import (
    mutations_client,
    mutations_mounting,
    mutations_partition,
    mutations_sessions,
    mutations_storage,
    mutations_threads,
)

__all__ = ["MUTATIONS", "WALKED", "Mutation"]

Mutation = Callable[[pytest.MonkeyPatch], None]

_FILES = (mutations_sessions, mutations_partition, mutations_client, mutations_storage, mutations_threads)

MUTATIONS: dict[str, Mutation] = {name: getattr(file, name) for file in _FILES for name in file.__all__}
"""By name: what the simulation must notice."""

WALKED: dict[str, Mutation] = {
    **MUTATIONS,
    **{name: getattr(mutations_mounting, name) for name in mutations_mounting.__all__},
}
"""What walks choose from: these, and those that only a machine alone shows."""
