"""``read_kv`` of a state of which the log has nothing any more: no rows would say that there were no items."""

from __future__ import annotations

import pytest
from waltz_spark.key_values import check_told

from waltz_ray.client.readers.ranges import Range, bounds_of
from waltz_ray.errors import ProjectionFailed


def ranges(stop: int, beginnings: dict[int, int]) -> list[Range]:
    """As they are planned of partitions that end with transaction 99."""
    return bounds_of("earliest", stop, dict.fromkeys(beginnings, 99), beginnings)


@pytest.mark.parametrize("stop", [0, 5, 40])
def test_a_state_that_was_given_up_is_no_empty_one(stop: int) -> None:
    beginnings = {0: 0, 1: 40}
    with pytest.raises(ProjectionFailed, match=r"^space 'stock', partition 1: its log begins with transaction 40, and"):
        check_told("stock", ranges(stop, beginnings), beginnings)


def test_what_is_left_is_read_and_what_never_was_is_empty() -> None:
    beginnings = {0: 0, 1: 40}
    check_told("stock", ranges(41, beginnings), beginnings)
    check_told("stock", ranges(0, {0: 0}), {0: 0})
