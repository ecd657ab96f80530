"""The driver of machines: order, no re-entrance, and what is left when a step fails."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pytest

from waltz_ray.errors import InvariantBroken
from waltz_ray.protocol.value import value
from waltz_ray.runtime.driver import Driver
from waltz_ray.runtime.story import Story
from waltz_ray.runtime.watchdog import Watchdog


@value()
class Count:
    n: int


@value()
class Say:
    n: int


@value(eq=False)
class Load:
    n: int
    column: np.ndarray
    body: bytes


class Counter:
    """Says what it is told; fails at 13; is broken from 99 on."""

    def __init__(self) -> None:
        self.last = 0

    def step(self, event: Count | Load) -> list[Say]:
        if event.n == 13:
            raise ValueError("thirteen")
        self.last = event.n
        return [Say(event.n)]

    def broken(self) -> str | None:
        return "it has counted too far" if self.last >= 99 else None


class Rig:
    def __init__(self, carry_out: Callable[[Say], None] | None = None) -> None:
        self.said: list[int] = []
        self.fatal: list[str] = []
        self.driver: Driver[Count | Load, Say] = Driver(
            "counter 7",
            Counter(),
            carry_out or (lambda effect: self.said.append(effect.n)),
            self.fatal.append,
            Watchdog(),
            frozenset((Load,)),
        )


def test_what_an_effect_leads_to_waits_until_the_step_is_carried_out() -> None:
    rig = Rig(lambda effect: carry_out(effect))

    def carry_out(effect: Say) -> None:
        if effect.n < 3:
            rig.driver.handle(Count(effect.n + 1))
        rig.said.append(effect.n)

    rig.driver.handle(Count(1))
    assert rig.said == [1, 2, 3]


@pytest.mark.parametrize(("n", "error"), [(13, ValueError), (99, InvariantBroken)])
def test_a_step_that_fails_is_fatal_and_tells_the_last_steps(
    n: int, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig()
    rig.driver.handle(Count(5))
    rig.driver.handle(Load(6, np.zeros(3), b"abcd"))
    with caplog.at_level(logging.CRITICAL), pytest.raises(error):
        rig.driver.handle(Count(n))
    assert rig.fatal == ["counter 7: a step of its machine failed"]
    assert rig.said == [5, 6], "nothing of the step that failed is carried out"
    lines = caplog.records[0].getMessage().splitlines()
    assert lines[1:6] == [
        "Count(n=5)",
        "    Say(n=5)",
        "Load(...)",
        "    Say(n=6)",
        f"Count(n={n})",
    ]


def test_an_effect_that_fails_is_fatal() -> None:
    def carry_out(effect: Say) -> None:
        raise OSError("no socket")

    rig = Rig(carry_out)
    with pytest.raises(OSError, match="no socket"):
        rig.driver.handle(Count(1))
    assert rig.fatal


@pytest.mark.parametrize("effects", [0, 1, 2, 7])
def test_a_story_begins_with_an_event_and_ends_with_the_last_step(effects: int) -> None:
    story = Story(frozenset())
    for n in range(1000):
        story.tell(Count(n), [Say(n)] * effects)
    lines = story.text().splitlines()
    steps = len(lines) // (1 + effects)
    told = [(f"Count(n={n})", *[f"    Say(n={n})"] * effects) for n in range(1000 - steps, 1000)]
    assert lines == [line for step in told for line in step]
    assert 300 - (2 + effects) <= steps * (2 + effects) <= 300


def test_nothing_is_asked_of_a_machine_that_has_failed() -> None:
    rig = Rig()
    with pytest.raises(ValueError, match="thirteen"):
        rig.driver.handle(Count(13))
    rig.driver.handle(Count(1))
    assert (rig.said, rig.driver.stepping, len(rig.fatal)) == ([], True, 1)
