"""Random walks of a group under everything that goes wrong: T32 to T36 and T39 hold, and calm settles all.

Each rule is broken in turn, by its public name, and the walks must notice it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.simulation.break_rule import break_rule
from tests.topics.groups.grant_log import BrokenPromise
from tests.topics.groups.groups_world import GroupsWorld
from waltz_ray.topics.groups import rules

TURNS = 250
RARE = ("grants", "REPORTED", "WITHDRAWN", "CLOSED", "GONE", "OVERDUE", "410", "taken", "ended")


def walk(seed: int, turns: int = TURNS, clients: int = 4, trace: list[str] | None = None) -> GroupsWorld:
    world = GroupsWorld(seed, clients, 7 if clients < 10 else 60, trace)
    world.walk(turns)
    world.calm()
    return world


@pytest.mark.parametrize("block", range(4))
def test_walks_t32_t33_t34_t35_t36_t39(block: int) -> None:
    """Seeded."""
    seen = Counter[str]()
    for seed in range(block * 50, block * 50 + 50):
        seen += walk(seed).seen
    rare = {what: seen[what] for what in RARE}
    assert min(rare.values()) > 3, f"they did not do much: {rare}"


@pytest.mark.parametrize("seed", range(3))
def test_walks_of_fifty(seed: int) -> None:
    walk(seed, 120, clients=50)


def walks(seeds: range) -> None:
    for seed in seeds:
        walk(seed)


SEEDS = {  # what others hide mostly: where it shows
    "any word ends an order": range(439, 440),
    "an order is sent once": range(115, 116),
}
MUTATIONS: dict[str, tuple[str, Callable[..., object]]] = {
    "granted while somebody has it": ("may_be_granted", lambda owner, leaving: not leaving),
    "granted while somebody is leaving it": ("may_be_granted", lambda owner, leaving: True),
    "any word ends an order": ("is_word_on", lambda rebalance_id, report: True),
    "left, whatever the word says": ("left_by", lambda ordered, report, reported: set(ordered)),
    "any list ends an order": ("is_fulfilled", lambda order, reported: True),
    "an order is sent once": ("is_sent", lambda beats: beats == 0),
    "nobody is ever gone": ("is_gone", lambda *_: False),
    "gone too early": ("is_gone", lambda seen, now, limit: now - seen >= limit // 3),
    "gone too late": ("is_gone", lambda seen, now, limit: now - seen >= limit + 5_000),
    "nobody is ever overdue": ("is_overdue", lambda *_: False),
    "settled at once": ("is_settled", lambda *_: True),
    "never settled": ("is_settled", lambda *_: False),
    "IDs begin anew with each leader": ("first_id", lambda epoch: 0),
    "shares without the rest": (
        "shares",
        lambda members, partitions: dict.fromkeys(members, partitions // len(members)),
    ),
    "the first has all": (
        "shares",
        lambda members, partitions: {m: partitions if m == min(members) else 0 for m in members},
    ),
    "the rest goes to the first by name": (
        "shares",
        lambda members, partitions: {
            m: partitions // len(members) + (rank < partitions % len(members)) for rank, m in enumerate(sorted(members))
        },
    ),
    "everything moves": ("surplus", lambda owned, connected, share: list(owned)),
    "nothing moves": ("surplus", lambda owned, connected, share: []),
    "nobody is told of an address": ("has_moved", lambda known, place: False),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_rule_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule, broken = MUTATIONS[name]
    break_rule(monkeypatch, rules, rule, broken)
    with pytest.raises(BrokenPromise):
        walks(SEEDS.get(name, range(100)))
