"""The clients of a smoke, seen from who starts, kills and starts them again."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from time import perf_counter
from typing import Any

from waltz_bench.clients import READY_S
from waltz_bench.smoke_client import ClientPlan, start_client
from waltz_bench.smoke_files import uid_of
from waltz_ray.errors import DataUnavailable

__all__ = ["SmokeClients"]

_CALL_S = READY_S + 20.0


class SmokeClients:
    """``count`` actors of ``plan``. ``lives`` numbers their processes: no two have the same."""

    def __init__(self, plan: ClientPlan, count: int, lives: Iterator[int]) -> None:
        self._plan, self._lives = replace(plan, rate=plan.rate / count), lives
        self._actors: list[Any] = []
        self._life: list[int] = []
        self._pids: list[int] = []
        for number in range(count):
            self._actors.append(self._start(number))
        self._pids = [self._ask(number, "pid") for number in range(count)]
        for number in range(count):
            self._ask(number, "start")

    def __len__(self) -> int:
        return len(self._actors)

    def _start(self, number: int) -> Any:
        life = next(self._lives)
        self._life[number:] = [life, *self._life[number + 1 :]]
        return start_client(replace(self._plan, number=number, life=life))

    def _ask(self, number: int, method: str, *arguments: Any) -> Any:
        import ray

        return ray.get(getattr(self._actors[number], method).remote(*arguments), timeout=_CALL_S)

    def pid(self, number: int) -> int:
        """The process of a client."""
        return self._pids[number]

    def start_again(self, number: int) -> None:
        """It has been killed: another process goes on with what it has left."""
        self._actors[number] = self._start(number)
        self._pids[number] = self._ask(number, "pid")
        self._ask(number, "start")

    def felt_s(self, but: int | None = None) -> float:
        """What all feel, or all but one, since they were asked last (``SmokeClient.felt_s``)."""
        felt: list[float] = [self._ask(number, "felt_s") for number in range(len(self))]
        return max(each for number, each in enumerate(felt) if number != but or len(felt) == 1)

    def wait_for_commits(self) -> None:
        """Until each client has committed something in each partition after now. DataUnavailable."""
        before, until_s = self._committed(), perf_counter() + READY_S
        while any(now <= then for now, then in zip(self._committed(), before, strict=True)):
            if perf_counter() > until_s:
                raise DataUnavailable(f"a client has committed nothing for {READY_S:g} s after a fault")
            time.sleep(0.02)

    def _committed(self) -> list[int]:
        counts = (self._ask(number, "committed") for number in range(len(self)))
        return list(itertools.chain.from_iterable(counts))

    def stop(self) -> dict[int, int]:
        """Nothing more is begun, and everything has its fate. Of each process that is here, how many it proposed, by
        what all its uids begin with (``smoke_files.life_of``)."""
        proposed = [self._ask(number, "stop") for number in range(len(self))]
        return {uid_of(n, self._life[n], 0) >> 32: count for n, count in enumerate(proposed)}

    def end(self, marks: list[int]) -> list[str]:
        """All of it has been fed to all of them. What went wrong in them."""
        import ray

        told = [f"client {n}: {error}" for n in range(len(self)) for error in self._ask(n, "end", marks)]
        for actor in self._actors:
            ray.kill(actor)
        return told
