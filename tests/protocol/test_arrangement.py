"""Who should have which unit (docs/opencluster.md, rows O04, O09 to O11, O26, O49, D14)."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.protocol.units import Halving, Slice
from waltz_ray.kv.placement import BucketSplitting
from waltz_ray.kv.routing import Unit
from waltz_ray.protocol.arrangement import arrange, first_table, level_for, split
from waltz_ray.protocol.ownership_types import UnitPlace, UnitTable

SPLITTING = Halving(8, 32)
BUCKETS = BucketSplitting(16)
EMPTY = first_table(BUCKETS, 100)

actors = st.sets(st.integers(0, 7), max_size=7)
places = st.builds(
    UnitPlace, st.none() | st.integers(0, 7), st.integers(1, 9), st.none() | st.integers(0, 7)
)  # also such as no arrangement makes
tables = st.lists(places, min_size=8, max_size=8).map(
    lambda p: UnitTable(8, dict(zip(SPLITTING.units(8), p, strict=True)))
)


def counts(table: UnitTable[Slice], who: set[int], role: str) -> list[int]:
    found = Counter(getattr(place, role) for place in table.places.values())
    return [found[actor] for actor in who]


@given(tables, actors)
def test_everybody_has_his_share_and_nobody_is_his_own_secondary(table: UnitTable[Slice], who: set[int]) -> None:
    """O04, O49."""
    found = arrange(SPLITTING, table, who, 0)
    if not who:
        assert found == table
        return
    assert {place.primary for place in found.places.values()} <= who
    assert all(place.primary != place.secondary for place in found.places.values())
    roles = ("primary", "secondary") if len(who) > 1 else ("primary",)
    for role in roles:
        assert sum(counts(found, who, role)) == 8
        assert max(counts(found, who, role)) - min(counts(found, who, role)) <= 1


@given(tables, actors)
def test_it_is_a_fixed_point_and_epochs_rise_with_the_primary_only(table: UnitTable[Slice], who: set[int]) -> None:
    found = arrange(SPLITTING, table, who, 0)
    assert arrange(SPLITTING, found, who, 0) == found
    for unit, place in found.places.items():
        before = table.places[unit]
        assert place.epoch == before.epoch + (place.primary != before.primary)


FULL = UnitTable(  # two that have two: the one whose units are new to it gives one up
    8,
    dict(
        zip(
            SPLITTING.units(8),
            [UnitPlace(None, 1)] * 4 + [UnitPlace(None, 1, 0)] * 2 + [UnitPlace(1, 1)] * 2,
            strict=True,
        )
    ),
)


@example(FULL, set(range(7)))
@settings(max_examples=300)
@given(tables, actors.filter(bool))
def test_as_few_primaries_move_as_balance_allows(table: UnitTable[Slice], who: set[int]) -> None:
    found = arrange(SPLITTING, table, who, 0)
    moved = sum(place.primary != table.places[unit].primary for unit, place in found.places.items())
    stay = sorted(counts(table, who, "primary"), reverse=True)
    share, more = divmod(8, len(who))
    kept = sum(min(has, share + (number < more)) for number, has in enumerate(stay))
    assert moved == 8 - kept


@pytest.mark.parametrize(("n", "dead"), [(n, dead) for n in (2, 3, 4) for dead in range(n)])
def test_a_dead_primarys_units_go_to_their_secondaries_where_balance_lets(n: int, dead: int) -> None:
    """O07, O48: whoever has a copy goes on."""
    before = arrange(BUCKETS, EMPTY, range(n))
    after = arrange(BUCKETS, before, set(range(n)) - {dead})
    lost = [unit for unit, place in before.places.items() if place.primary == dead]
    warm = [unit for unit in lost if after.places[unit].primary == before.places[unit].secondary]
    assert len(lost) - len(warm) <= 1  # the copies of one's units are spread over all others
    assert {u for u, p in after.places.items() if p.primary != before.places[u].primary} == set(lost)


def test_who_joins_a_pair_gets_its_part_and_two_have_half_each() -> None:
    """O49: two nodes end at 8 primaries and 8 secondaries each."""
    alone = arrange(BUCKETS, EMPTY, [0])
    assert set(alone.places.values()) == {UnitPlace(0, 101, None)}
    pair = arrange(BUCKETS, alone, [0, 1])
    assert Counter(place.primary for place in pair.places.values()) == {0: 8, 1: 8}
    assert Counter(place.secondary for place in pair.places.values()) == {0: 8, 1: 8}
    three = arrange(BUCKETS, pair, [0, 1, 2])
    assert sum(three.places[u].primary != p.primary for u, p in pair.places.items()) == 5


def test_who_leaves_or_is_alone_gets_nothing_or_everything() -> None:
    """O26."""
    three = arrange(BUCKETS, EMPTY, [0, 1, 2])
    two = arrange(BUCKETS, three, [0, 2])
    assert {place.primary for place in two.places.values()} == {0, 2}
    assert {place.secondary for place in two.places.values()} == {0, 2}
    assert arrange(BUCKETS, two, []) == two


def test_a_primary_that_moves_to_its_secondary_keeps_the_copy_warm() -> None:
    """The roles are changed."""
    units = SPLITTING.units(8)
    table = UnitTable(8, {unit: UnitPlace(0, 1, 1) for unit in units})
    found = arrange(SPLITTING, table, [0, 1])
    assert Counter(found.places.values()) == {UnitPlace(0, 1, 1): 4, UnitPlace(1, 2, 0): 4}


@pytest.mark.parametrize(
    ("many", "fewest", "level"), [(1, 4, 0xF), (8, 4, 0xF), (9, 4, 0xFF), (5, 6, 0xF), (6, 6, 0xFF), (2000, 4, 0xFFF)]
)
def test_units_are_split_when_somebody_would_have_too_few(many: int, fewest: int, level: int) -> None:
    """O09, D14: the threshold is 4 by default; 32 buckets, primaries and secondaries, are 4 each for 8 servers."""
    assert level_for(BUCKETS, 0xF, many, fewest) == level


def test_a_split_leaves_everything_where_it_is() -> None:
    """O10, O11: all at once, 0xB becomes 0B, 1B ... FB."""
    before = arrange(BUCKETS, EMPTY, [0, 1])
    after = split(BUCKETS, before)
    assert (after.level, len(after.places)) == (0xFF, 256)
    for unit, place in after.places.items():
        coarse = before.places[Unit(0xF, unit.bucket & 0xF)]
        assert place == coarse._replace(epoch=coarse.epoch + 1)


def test_the_ninth_actor_leads_to_a_split_and_its_death_to_none() -> None:
    eight = arrange(BUCKETS, EMPTY, range(8))
    nine = arrange(BUCKETS, eight, range(9))
    assert (eight.level, nine.level) == (0xF, 0xFF)
    moved = sum(p.primary != eight.places[Unit(0xF, u.bucket & 0xF)].primary for u, p in nine.places.items())
    assert moved == 256 // 9
    assert arrange(BUCKETS, nine, range(8)).level == 0xFF


def test_thousands_of_units_are_arranged_at_once() -> None:
    """The leading manager does nothing else meanwhile."""
    begin_s, table = time.process_time(), EMPTY
    for who in ([0, 1], [0, 1, 2], [0, 2], range(5)):
        table = arrange(BUCKETS, table, who, 200)
        assert arrange(BUCKETS, table, who, 200) == table
    assert table.level == 0xFFF
    assert time.process_time() - begin_s < 4.0


def test_a_space_of_many_partitions_begins_with_a_larger_mask() -> None:
    """Every bucket lies in one partition."""
    assert first_table(BucketSplitting(32), 1).level == 0xFF
    assert BucketSplitting(32).coarser(Unit(0xFF, 3)) is None
