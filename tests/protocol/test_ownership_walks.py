"""Random walks of actors, a log and ZooKeeper: no stale read, no lost write, and everything is served once it is calm.

Each rule is broken in turn, by its public name, and the walks must notice it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.protocol import ownership_world
from tests.protocol.ownership_world import Broken, World
from waltz_ray.protocol import ownership, ownership_rules
from waltz_ray.protocol.ownership_types import OwnersFolded, ReleaseRefused

STEPS = 200


def walk(seed: int, steps: int = STEPS, trace: list[str] | None = None) -> World:
    world = World(seed, actors=2 + seed % 3, trace=trace)
    world.walk(steps)
    world.calm()
    return world


def test_walks() -> None:
    seen = {"set": 0, "own": 0, "release": 0, "barrier": 0}
    for seed in range(200):
        for record in walk(seed).log:
            seen[record.kind] += 1
    assert min(seen.values()) > 1000, f"they did not do much: {seen}"


def walks(seeds: range) -> None:
    for seed in seeds:
        walk(seed)


class Mutation:
    """A rule, and what is in its place."""

    def __init__(self, where: Any, name: str, broken: Callable[..., object], seeds: range = range(400)) -> None:
        self.where, self.name, self.broken, self.seeds = where, name, broken, seeds
        assert hasattr(where, name)


def nobody_is_doubted(view: Any, claim: Any) -> None:
    """Who is not in the view counts as gone."""
    if claim is not None and claim.incarnation not in view._members:
        view.gone.add(claim.incarnation)


def one_after_the_other(process: Any, claims: dict[Any, Any]) -> None:
    for claim in claims.items():
        process.step(OwnersFolded((claim,)))


MUTATIONS = {
    "lease without margin": Mutation(ownership_rules, "lease_ends", lambda sent, session, margin: sent + session),
    "lease never ends": Mutation(ownership_rules, "lease_ends", lambda sent, session, margin: sent + 1e9),
    "lease counted from the answer": Mutation(ownership_world, "counted_from", lambda p, contact: p.clock()),
    "lease kept under a new incarnation": Mutation(
        ownership_rules, "readable_under", lambda claim, now: now is not None
    ),
    "successor does not wait for the release": Mutation(ownership_rules, "has_let_go", lambda *_: True),
    "whoever is not seen is gone": Mutation(ownership._View, "doubt", nobody_is_doubted),
    "OWN without the locks of the coarser": Mutation(ownership_rules, "locked_with", lambda *_: ()),
    "write without the read lock": Mutation(ownership_world, "locks_of_a_write", lambda held: []),
    "epoch not compared": Mutation(ownership_rules, "epoch_allows", lambda *_: True),
    "released before drained": Mutation(ownership_world, "drained", lambda *_: True),
    "answer to a barrier without a second look": Mutation(ownership_world, "still_holds", lambda *_: True),
    "a successor registers over his predecessor": Mutation(ownership_world, "may_register_over", lambda _: True),
    "mark of the log's end, not of what was told": Mutation(
        ownership_world, "mark_of", lambda process: len(process.world.log) - 1
    ),
    "claims of one step told one after the other": Mutation(
        ownership_world, "tell_claims", one_after_the_other, range(950, 960)
    ),
    "a lost release is no release": Mutation(ownership_world, "after_a_lost_release", ReleaseRefused, range(238, 239)),
    "nobody has to let go": Mutation(ownership_rules, "must_let_go", lambda *_: False),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_rule_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation = MUTATIONS[name]
    monkeypatch.setattr(mutation.where, mutation.name, mutation.broken)
    with pytest.raises(Broken):
        walks(mutation.seeds)
