"""What goes wrong with the actors of a layer, whatever they serve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Generic, TypeVar

from tests.simulation.process import Process

__all__ = ["ActorFaults", "jump_of_a_clock_ms"]

A = TypeVar("A", bound=Process)


def jump_of_a_clock_ms(random: Random) -> int:
    """By how much a wall clock jumps."""
    return random.choice([-3_600_000, -1_500, 1_500, 86_400_000])


class ActorFaults(Generic[A]):
    """Each False if it is not possible now. ``stops_s``: for about how long one is stopped."""

    def __init__(self, random: Random, actors: Sequence[A], stops_s: Sequence[float]) -> None:
        self._random, self._actors, self._stops_s = random, actors, stops_s

    def up(self) -> A | None:
        """One that runs."""
        actor = self._random.choice(self._actors)
        return actor if actor.up and not actor.paused else None

    def _of_one(self, do: Callable[[A], None]) -> bool:
        actor = self.up()
        if actor is None:
            return False
        do(actor)
        return True

    def kill(self) -> bool:
        return self._of_one(self._kill)

    def _kill(self, actor: A) -> None:
        actor.kill("killed")
        actor.start_later(self._random.choice([0.05, 0.5, 2.0, 6.0]))

    def lose(self) -> bool:
        """Its machine."""
        return self._of_one(self._lose)

    def _lose(self, actor: A) -> None:
        actor.kill("its machine is lost", self._random.uniform(1.0, 8.0))
        actor.start_later(self._random.choice([0.5, 2.0, 6.0]))

    def stop(self) -> bool:
        """SIGSTOP, then SIGCONT."""
        return self._of_one(self._stop)

    def _stop(self, actor: A) -> None:
        actor.pause(self._random.choice(self._stops_s) * self._random.uniform(0.5, 1.5))

    def cut_off(self) -> bool:
        """From ZooKeeper."""
        actor = self.up()
        if actor is None or actor.zookeeper is None:
            return False
        actor.tell("is cut off from ZooKeeper")
        actor.world.zookeeper.cut_off(actor.zookeeper, self._random.choice([0.2, 2.0, 6.0]), actor.session_s)
        return True
