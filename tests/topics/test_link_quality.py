"""T49: servers that a client leaves alone."""

from __future__ import annotations

import pytest

from tests.simulation.break_rule import break_rule
from waltz_ray.topics import link_quality
from waltz_ray.topics.link_quality import SHIELD_MS, UNAVAILABLE_MS, WITHIN_MS, LinkQuality, most_shielded


def of(count: int) -> tuple[LinkQuality, list[str]]:
    quality, addresses = LinkQuality(), [f"s{n}:1" for n in range(count)]
    quality.know(addresses)
    return quality, addresses


def fails(quality: LinkQuality, address: str, times: int = 6, now_ms: int = 0) -> None:
    for at in range(times):
        quality.failed(address, now_ms + at)


def test_t49_more_than_five_failures_in_a_minute_shield_for_half_an_hour() -> None:
    quality, (first, second, _) = of(3)
    fails(quality, first, 5)
    assert quality.shielded(10) == []
    assert quality.best([first, second], 10) == second
    quality.failed(first, WITHIN_MS - 1)
    assert quality.shielded(WITHIN_MS) == [first]
    assert quality.best([first], WITHIN_MS) is None
    end = WITHIN_MS - 1 + SHIELD_MS
    assert quality.next_free_ms([first], WITHIN_MS) == end
    assert quality.shielded(end - 1) == [first]
    assert quality.shielded(end) == []
    assert quality.best([first, second], end) == first


def test_t49_failures_that_are_a_minute_apart_do_not_count_together() -> None:
    quality, (first, *_) = of(3)
    fails(quality, first, 5)
    quality.failed(first, WITHIN_MS)
    assert quality.shielded(WITHIN_MS) == []


def test_t49_a_success_makes_good() -> None:
    quality, (first, *_) = of(3)
    fails(quality, first)
    quality.answered(first)
    assert quality.shielded(10) == []
    fails(quality, first, 5)
    assert quality.shielded(10) == []


@pytest.mark.parametrize(("known", "most"), [(0, 0), (1, 0), (2, 1), (3, 1), (10, 3), (99, 30), (100, 30), (1000, 30)])
def test_t49_at_most_thirty_and_thirty_percent_are_shielded(known: int, most: int) -> None:
    assert most_shielded(known) == most
    quality, addresses = of(known)
    for address in addresses:
        fails(quality, address)
    assert len(quality.shielded(10)) == most
    if known > 1:
        assert quality.best(addresses, 10) is not None


def test_t49_when_one_is_free_again_the_next_may_be_shielded() -> None:
    shields()


def shields() -> None:
    quality, (first, second, third) = of(3)
    fails(quality, first)
    fails(quality, second)
    assert quality.shielded(10) == [first]
    fails(quality, second, now_ms=SHIELD_MS + 10)
    assert quality.shielded(SHIELD_MS + 20) == [second]
    fails(quality, third, 5, now_ms=2 * SHIELD_MS + 20)
    assert quality.shielded(2 * SHIELD_MS + 25) == []


def test_t49_a_503_shields_for_fifty_seconds_all_of_them_if_need_be() -> None:
    quality, addresses = of(3)
    for address in addresses:
        quality.unavailable(address, 0)
    assert quality.best(addresses, UNAVAILABLE_MS - 1) is None
    quality.answered(addresses[0])
    assert quality.best(addresses, UNAVAILABLE_MS - 1) is None
    assert quality.next_free_ms(addresses, 5) == UNAVAILABLE_MS
    assert quality.best(addresses, UNAVAILABLE_MS) == addresses[0]
    assert quality.next_free_ms([], 0) is None


def test_t49_the_best_has_failed_least_and_equals_go_in_turns() -> None:
    quality, (first, second, third) = of(3)
    quality.failed(first, 0)
    quality.failed(first, 1)
    quality.failed(second, 2)
    quality.failed(third, 3)
    assert quality.best([first, second, third], 10) == second
    assert quality.best([third, first, second], 10) == third
    assert quality.best([first, second], WITHIN_MS + 5) == first


def test_t49_what_is_not_known_any_more_is_forgotten() -> None:
    quality, (first, second, third) = of(3)
    fails(quality, first)
    quality.unavailable(second, 0)
    quality.know([third])
    assert quality.shielded(10) == []
    quality.failed(first, 10)
    quality.unavailable(first, 10)
    assert quality.shielded(10) == []
    quality.know([first, second, third])
    fails(quality, first, 5, 20)
    assert quality.shielded(30) == []


@pytest.mark.parametrize(
    ("rule", "broken"), [("is_bad", lambda failures: failures >= 5), ("most_shielded", lambda known: known)]
)
def test_a_broken_rule_of_links_is_noticed(monkeypatch: pytest.MonkeyPatch, rule: str, broken: object) -> None:
    break_rule(monkeypatch, link_quality, rule, broken)
    with pytest.raises(AssertionError):
        shields()
