"""The age of ZooKeeper's last answer: what shows a server that hangs."""

from __future__ import annotations

import threading

from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.coordination.pulse import ZooKeeperPulse
from waltz_ray.errors import ZooKeeperUnreachable
from waltz_ray.runtime.status import ZooKeeperStatus


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def pulse(client: MemoryZooKeeper, clock: Clock) -> ZooKeeperPulse:
    """One that beats only when it is told to."""
    made = ZooKeeperPulse(client, "/c", interval_s=3600, clock=clock)
    return made


def test_an_answer_makes_it_young_again() -> None:
    clock, client = Clock(), MemoryZooKeeperServer().client()
    beating = pulse(client, clock)
    clock.now += 30
    assert beating.view() == ZooKeeperStatus("connected", 30.0, "")
    beating.beat()
    clock.now += 1.5
    assert beating.view().silent_s == 1.5
    beating.close()
    client.close()


def test_a_failing_request_is_shown_and_forgotten_with_the_next_answer() -> None:
    clock, client = Clock(), MemoryZooKeeperServer().client()
    beating = pulse(client, clock)
    real = client.exists

    def unreachable(path: str) -> int | None:
        raise ZooKeeperUnreachable("nobody there")

    client.exists = unreachable  # type: ignore[method-assign]
    clock.now += 20
    beating.beat()
    assert (beating.view().silent_s, beating.view().error) == (20.0, "nobody there")
    client.exists = real  # type: ignore[method-assign]
    beating.beat()
    assert (beating.view().silent_s, beating.view().error) == (0.0, "")
    beating.close()
    client.close()


def test_a_request_that_hangs_does_not_stop_the_age_from_growing() -> None:
    clock, client = Clock(), MemoryZooKeeperServer().client()
    asked, release = threading.Event(), threading.Event()

    def hanging(path: str) -> int | None:
        asked.set()
        assert release.wait(20)
        return None

    client.exists = hanging  # type: ignore[method-assign]
    beating = ZooKeeperPulse(client, "/c", interval_s=0.001, clock=clock)
    assert asked.wait(20)
    clock.now += 12
    assert beating.view().silent_s == 12.0
    beating.close()
    release.set()
    client.close()
