"""Every rule once broken: proof that the simulation, and walks of single machines, would notice.

A mutation replaces rules of the code under test by their public names (``break_rule``), so it stands as long as the
rule does, whatever becomes of the code around it; ``test_mutations.py`` sees to that. ``KNOWN_SEEDS`` are seeds of the
simulation that are known to catch it, so that CI need not search; `make simulate-mutations` finds them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType

import pytest

from tests.simulation import (
    mutations_anew,
    mutations_bound,
    mutations_changes,
    mutations_channels,
    mutations_client,
    mutations_kv,
    mutations_library,
    mutations_manager,
    mutations_mounting,
    mutations_moves,
    mutations_partition,
    mutations_progress,
    mutations_servers,
    mutations_sessions,
    mutations_several,
    mutations_spaces,
    mutations_storage,
    mutations_threads,
    mutations_topics,
    mutations_trimming,
    mutations_upkeep,
)

__all__ = ["FILES", "MUTATIONS", "PARTS", "WALKED", "Mutation"]

Mutation = Callable[[pytest.MonkeyPatch], None]

_SIMULATED = (
    mutations_sessions,
    mutations_partition,
    mutations_manager,
    mutations_client,
    mutations_channels,
    mutations_storage,
    mutations_threads,
    mutations_spaces,
    mutations_trimming,
    mutations_upkeep,
    mutations_kv,
    mutations_several,
    mutations_library,
    mutations_anew,
    mutations_bound,
    mutations_topics,
    mutations_moves,
    mutations_servers,
    mutations_changes,
)
PARTS: dict[str, tuple[str, ...]] = {
    file.__name__.rpartition("mutations_")[2]: tuple(vars(file)["__all__"]) for file in _SIMULATED
}
"""The names of the mutations, by what they break: ``kv`` are those of ``mutations_kv.py``."""

FILES = (*_SIMULATED, mutations_mounting, mutations_progress)


def _by_name(files: Iterable[ModuleType]) -> dict[str, Mutation]:
    return {name: vars(file)[name] for file in files for name in vars(file)["__all__"]}


MUTATIONS: dict[str, Mutation] = _by_name(_SIMULATED)
"""By name: what the simulation must notice."""

WALKED: dict[str, Mutation] = _by_name(FILES)
"""What walks and tests of a single machine choose from: these, and those that only a machine alone shows."""
