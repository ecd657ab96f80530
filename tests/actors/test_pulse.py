"""How long an actor has been silent, over calls that are faked."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from waltz_ray.actors.pulse import ActorPulse


class Actors:
    """``answers``: name -> True (answers), False (its call fails), None (silent); a missing name has no actor."""

    def __init__(self, **answers: bool | None) -> None:
        self.answers = answers
        self.sent: list[str] = []
        self.now = 0.0
        self.pulse = ActorPulse(["a", "b"], self.send, self.ended, lambda: self.now)

    def send(self, name: str) -> str | None:
        if name not in self.answers:
            return None
        self.sent.append(name)
        return name

    def ended(self, calls: Mapping[str, str], timeout_s: float) -> dict[str, bool]:
        return {name: answer for name in calls if (answer := self.answers[name]) is not None}

    def after(self, seconds: float) -> tuple[float, float]:
        self.now += seconds
        self.pulse.beat()
        return self.pulse.silent_s("a"), self.pulse.silent_s("b")


def test_who_answers_is_never_silent_for_long_and_who_hangs_is_known_since_when() -> None:
    actors = Actors(a=True, b=True)
    assert actors.after(2) == (0, 0)
    actors.answers["b"] = None
    assert actors.after(2) == (0, 2)
    assert actors.after(2) == (0, 4)
    assert actors.sent.count("b") == 2, "a silent one is not asked again and again"
    actors.answers["b"] = True
    assert actors.after(2) == (0, 0)


def test_a_call_that_failed_is_no_answer_and_is_sent_again() -> None:
    actors = Actors(a=True, b=False)
    assert actors.after(3) == (0, 3)
    assert actors.after(3) == (0, 6)
    assert actors.sent.count("b") == 2


def test_an_actor_that_is_not_there_is_silent() -> None:
    actors = Actors(a=True)
    assert actors.after(5) == (0, 5)
    actors.answers["b"] = True
    assert actors.after(5) == (0, 0)


def test_one_that_could_not_ask_asks_again() -> None:
    """Else everybody would be called silent for good, as soon as the cluster's Ray had not answered once."""
    asked = threading.Semaphore(0)

    def send(name: str) -> None:
        asked.release()
        raise RuntimeError("Ray does not answer")

    pulse = ActorPulse(["a"], send, lambda calls, timeout_s: {}, interval_s=0.001)
    pulse.start()
    try:
        for _ in range(3):
            assert asked.acquire(timeout=20)
    finally:
        pulse.close()
