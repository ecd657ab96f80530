"""The two failures of the demo, and how long they were felt."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

__all__ = ["Failure", "felt_ms", "kill_process", "wait_until"]

_POLL_S = 0.1


@dataclass(frozen=True)
class Failure:
    """``at_transaction``: committed transactions when it happened; ``felt_ms``: the longest pause in commits."""

    what: str
    at_transaction: int
    felt_ms: float

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def kill_process(pid: int) -> float:
    """SIGKILL; the moment (``time.monotonic``)."""
    if pid <= 1 or pid == os.getpid():
        raise ValueError(f"{pid} is not the process of an actor")
    moment = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    return moment


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Ask until it is true; False after ``timeout_s`` seconds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True


def felt_ms(seen: Iterable[Mapping[int, list[float]]], begin: float, end: float) -> float:
    """The longest time, in ms, in which no client saw a commit of some partition, if it overlaps [begin, end].

    ``seen``: per client, partition -> moments at which it saw new commits. A partition that had its last commit
    before ``begin`` was at rest, not interrupted.
    """
    moments: dict[int, list[float]] = {}
    for client in seen:
        for partition_id, times in client.items():
            moments.setdefault(partition_id, []).extend(times)
    longest = 0.0
    for times in moments.values():
        times.sort()
        for before, after in pairwise(times):
            if after > begin and before < end:
                longest = max(longest, after - before)
    return round(longest * 1000, 1)
