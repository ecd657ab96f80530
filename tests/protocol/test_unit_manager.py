"""When the manager writes a new table of units."""

from __future__ import annotations

import pytest

from tests.protocol.units import Halving
from waltz_ray.protocol.arrangement import arrange, first_table
from waltz_ray.protocol.unit_manager import may_arrange, rearranged

SPLITTING = Halving(8, 32)


def primaries(*present: int) -> set[int | None]:
    table = rearranged(SPLITTING, None, present, 2, 1000)
    assert table is not None
    return {place.primary for place in table.places.values()}


@pytest.mark.parametrize(
    ("present", "waited_s", "may"), [([0], 1.0, False), ([0, 1], 0.0, True), ([0, 1, 2], 0.0, True), ([], 5.0, True)]
)
def test_the_first_arrangement_waits_for_all_or_long_enough(present: list[int], waited_s: float, may: bool) -> None:
    """Else the first actor of a starting cluster would get everything."""
    assert may_arrange(present, 2, waited_s, 5.0) is may


def test_the_first_table_begins_with_the_time() -> None:
    """A table that was lost must not begin below the epochs that the log knows."""
    table = rearranged(SPLITTING, None, [0, 1], 2, 1000)
    assert table is not None
    assert {place.epoch for place in table.places.values()} == {1001}
    assert primaries(0, 1) == {0, 1}


def test_what_is_right_is_not_written_again_and_nothing_for_nobody() -> None:
    table = arrange(SPLITTING, first_table(SPLITTING, 5), [0, 1], 2)
    assert rearranged(SPLITTING, table, [1, 0], 2, 1000) is None
    assert rearranged(SPLITTING, table, [], 2, 1000) is None
    assert rearranged(SPLITTING, None, [], 2, 1000) is None


def test_who_is_not_there_any_more_has_nothing_and_who_comes_gets_his_part() -> None:
    """O26, O49."""
    table = arrange(SPLITTING, first_table(SPLITTING, 5), [0, 1], 2)
    alone = rearranged(SPLITTING, table, [1], 2, 1000)
    assert alone is not None
    assert {(place.primary, place.secondary) for place in alone.places.values()} == {(1, None)}
    again = rearranged(SPLITTING, alone, [1, 2], 2, 1000)
    assert again is not None
    assert sorted(place.primary or 0 for place in again.places.values()) == [1] * 4 + [2] * 4


def test_an_actor_too_many_leads_to_a_split() -> None:
    """O09: 16 copies of 8 units are less than 2 each for 9 actors."""
    table = arrange(SPLITTING, first_table(SPLITTING, 5), range(8), 2)
    finer = rearranged(SPLITTING, table, range(9), 2, 1000)
    assert finer is not None
    assert (table.level, finer.level) == (8, 16)
