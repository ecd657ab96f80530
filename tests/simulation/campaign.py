"""One history, or the search for the first one that notices a broken rule; results that can cross processes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.simulation import (
    mutations_anew,
    mutations_bound,
    mutations_changes,
    mutations_channels,
    mutations_kv,
    mutations_library,
    mutations_moves,
    mutations_servers,
    mutations_several,
    mutations_spaces,
    mutations_topics,
    mutations_trimming,
    mutations_upkeep,
)
from tests.simulation.changes import CHANGES
from tests.simulation.clients import SHARES
from tests.simulation.growth import GROWS
from tests.simulation.history import Violation
from tests.simulation.known_seeds import KNOWN_SEEDS
from tests.simulation.kv import KV, LIBRARY, TOGETHER
from tests.simulation.membership import SERVERS
from tests.simulation.moves import MOVES
from tests.simulation.mutations import MUTATIONS
from tests.simulation.operators import SETS
from tests.simulation.topics import BOUND, TOPICS
from tests.simulation.trimming import TRIMS
from tests.simulation.upkeep import SCRUBS
from tests.simulation.world import World

__all__ = ["SEEDS_TO_CATCH", "Caught", "Passed", "hunt", "one_seed"]

SEEDS_TO_CATCH = 500
"""A broken rule must be noticed within so many seeds."""


_ONLY_WITH = {
    GROWS: mutations_spaces.__all__,
    TRIMS: mutations_trimming.__all__,
    SCRUBS: mutations_upkeep.__all__,
    KV: mutations_kv.__all__,
    KV | TOGETHER: mutations_several.__all__,
    KV | LIBRARY: mutations_library.__all__,
    KV | TRIMS: mutations_anew.__all__,
    TOPICS: mutations_topics.__all__,
    TOPICS | BOUND: mutations_bound.__all__,
    SETS | MOVES: mutations_moves.__all__,
    SERVERS: mutations_servers.__all__,
    SHARES: mutations_channels.__all__,
    CHANGES: mutations_changes.__all__,
}
"""The bit of the seeds that can notice a mutation, where others cannot."""

_NOT_A_RULE = ("TypeError", "AttributeError", "NameError")
"""What a mutation leads to that was written for other code: it proves nothing."""


@dataclass(frozen=True)
class Passed:
    seed: int
    digest: str
    simulated_s: float
    commits: int
    faults: dict[str, int]
    counts: dict[str, int]
    story: str


@dataclass(frozen=True)
class Caught:
    """``checker`` noticed it: one of checkers/, ``liveness`` (something never came), ``crash`` (an exception)."""

    seed: int
    checker: str
    message: str
    story: str
    mutation: str | None = None


def one_seed(seed: int, mutation: str | None = None) -> Passed | Caught:
    """The history of ``seed``, with a rule broken or not."""
    world = World(seed)
    try:
        result = world.run()
    except Violation as violation:
        message = violation.message
        if violation.checker == "crash" and violation.__cause__ is not None:
            message = " ".join((message, *getattr(violation.__cause__, "__notes__", ())))
        return Caught(seed, violation.checker, message, world.story.text(), mutation)
    return Passed(
        seed, result.digest, result.simulated_s, result.commits, result.faults, result.counts, world.story.text()
    )


def hunt(
    mutation: str, seeds: int = SEEDS_TO_CATCH, first: int | None = None, known_is_sound: bool = False
) -> Caught | None:
    """The first history that notices ``mutation``, beginning with its known seed; None if none of ``seeds`` does.
    ``known_is_sound``: somebody else runs the known seed without it."""
    known = KNOWN_SEEDS.get(mutation) if first is None or first == 0 else None
    order = [] if known is None else [known]
    begin = first or next((bit for bit, names in _ONLY_WITH.items() if mutation in names), 0)
    order += [seed for seed in range(begin, begin + seeds - len(order)) if seed != known]
    for seed in order:
        with pytest.MonkeyPatch.context() as patch:
            MUTATIONS[mutation](patch)
            outcome = one_seed(seed, mutation)
        if isinstance(outcome, Caught):
            sound = None if known_is_sound and seed == known else one_seed(seed)
            if isinstance(sound, Caught):
                raise AssertionError(f"seed {seed:#x} fails without {mutation}, too: {sound.checker}: {sound.message}")
            if outcome.checker == "crash" and any(name in outcome.message for name in _NOT_A_RULE):
                raise AssertionError(f"{mutation} does not fit the code that it breaks: {outcome.message}")
            return outcome
    return None
