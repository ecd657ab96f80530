"""Random walks of consumers, brokers and a store: nothing is skipped, nothing confirmed comes again, what comes again
is what it was, zombies move nothing. Each rule is broken in turn, by its public name, and the walks must notice it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.simulation.break_rule import break_rule
from tests.topics.delivery_world import Broken, DeliveryWorld
from waltz_ray.topics import delivery_rules as rules
from waltz_ray.topics.codes import TopicCode
from waltz_ray.topics.delivery_place import DeliveryPlace

STEPS = 250


def walk(seed: int) -> DeliveryWorld:
    world = DeliveryWorld(seed)
    world.walk(STEPS)
    world.calm()
    return world


def test_t27_walks() -> None:
    """T23, T26 to T29, T35, T36 on the broker's side."""
    seen: dict[str, int] = {}
    for seed in range(300):
        for what, count in walk(seed).seen.items():
            seen[what] = seen.get(what, 0) + count
    assert min(seen.values()) > 100, f"they did not do much: {seen}"


def nobody_is_refused(holder: str | None, consumer: str) -> TopicCode:
    return TopicCode.OK


def last_of_them(ends: Sequence[int], position: int) -> int | None:
    return ends[-1] if ends and ends[-1] > position else None


def one_more(place: DeliveryPlace, offset: int) -> None:
    if offset > place.confirmed:
        place.confirmed = place.told = place.position = offset + 1


def walks() -> None:
    for seed in range(300):
        walk(seed)


MUTATIONS: dict[str, tuple[Any, str, Callable[..., object]]] = {
    "leases never end": (rules, "is_expired", lambda until, now: False),
    "leases end at once": (rules, "is_expired", lambda until, now: now > until - 25_000),
    "anybody may pull and confirm": (rules, "holder_code", nobody_is_refused),
    "what came before a registration is confirmed": (rules, "may_confirm", lambda delivered, term: True),
    "every pull confirms": (rules, "pull_confirms", lambda last, manual: True),
    "pulls ahead confirm, too": (rules, "pull_confirms", lambda last, manual: last),
    "no pull rewinds": (rules, "pull_rewinds", lambda last, manual: False),
    "a pull that was given up brings something": (rules, "is_given_up", lambda pull, since: False),
    "what was read under another lease is confirmed": (rules, "is_of_this_lease", lambda term, now: True),
    "batches that come again grow": (rules, "batch_end", lambda ends, position: None),
    "only the last batch is remembered": (rules, "batch_end", last_of_them),
    "what is remembered always counts": (rules, "memory_counts", lambda known, epoch: known is not None),
    "what was confirmed in vain is forgotten": (rules, "resumed_at", lambda stored, mine: stored or mine),
    "a group begins anew each time": (rules, "start_at", lambda status, asked, resumed, first, end: first),
    "a group begins at the end": (rules, "start_at", lambda status, asked, resumed, first, end: end),
    "confirmed is not stored": (rules, "has_to_store", lambda told, confirmed, stored, skipped: False),
    "what is delivered counts as confirmed": (DeliveryPlace, "rewind", DeliveryPlace.confirm),
    "a confirm confirms nothing": (DeliveryPlace, "confirm", DeliveryPlace.rewind),
    "what a reader has consumed comes again": (DeliveryPlace, "confirm_to", lambda place, offset: None),
    "a reader confirms one more than it says": (DeliveryPlace, "confirm_to", one_more),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_rule_of_delivery_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, rule, broken = MUTATIONS[name]
    break_rule(monkeypatch, where, rule, broken)
    with pytest.raises(Broken):
        walks()
