"""What a checkpoint is felt: the session that raises the low-water marks every so many transactions.

The default interval is minutes of load, so a cluster has a short one here, and nothing else is different. A session
begins at its low-water mark, so it is known of each commit whether it came before or after: what is felt is the time
between a client's last commit at or below the mark and its first one above. Beside it the same of a mark in the middle
between two checkpoints, where nothing happens: the clients' own rhythm, and the machine's.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from time import perf_counter

from waltz_bench.cluster import Waltz
from waltz_bench.steady import PARTITIONS
from waltz_ray.errors import DataUnavailable

__all__ = ["INTERVAL", "Commits", "checkpoints", "felt_at"]

INTERVAL = 20_000
_POLL_S = 0.5
_LONGEST_S = 300.0


class Commits:
    """Of one client, in the order in which it heard of them."""

    def __init__(self) -> None:
        self.ids: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.times: list[list[float]] = [[] for _ in range(PARTITIONS)]

    def note(self, partition_id: int, transaction_id: int, at: float) -> None:
        """A ``steady.Note``."""
        self.ids[partition_id].append(transaction_id)
        self.times[partition_id].append(at)


def felt_at(mark: int, ids: Sequence[int], times: Sequence[float]) -> float | None:
    """Seconds between the last commit up to ``mark`` and the first one behind it; None if there are none on one side.

    ``ids`` rise: a client's commits come in the log's order.
    """
    behind = bisect_right(ids, mark)
    return times[behind] - times[behind - 1] if 0 < behind < len(ids) else None


def checkpoints(
    waltz: Waltz, commits: Iterable[Commits], count: int, progress: Callable[[str], None]
) -> tuple[list[float], list[float]]:
    """What was felt, by the client that felt the most, of ``count`` checkpoints, and in the middle before each. A
    client's commits go on meanwhile. DataUnavailable: there were none."""
    marks = _marks(waltz, count, progress)
    everybody = list(commits)
    return _felt(everybody, marks, 0), _felt(everybody, marks, -INTERVAL // 2)


def _marks(waltz: Waltz, count: int, progress: Callable[[str], None]) -> set[tuple[int, int]]:
    """(partition, low-water mark) of the sessions that were opened."""
    first, found, until_s = _open_now(waltz), set[tuple[int, int]](), perf_counter() + _LONGEST_S
    pause = threading.Event()
    while len(found) < count:
        if perf_counter() > until_s:
            raise DataUnavailable(f"only {len(found)} checkpoints within {_LONGEST_S:g} s; see waltz status")
        pause.wait(_POLL_S)
        found |= _open_now(waltz) - first
        progress(f"{len(found)} of {count} checkpoints")
    pause.wait(2 * _POLL_S)  # what comes behind the last one
    return found


def _open_now(waltz: Waltz) -> set[tuple[int, int]]:
    return {
        (partition_id, served.low_water_mark)
        for server in waltz.status().servers.values()
        for partition_id, served in server.partitions.items()
        if served.low_water_mark is not None
    }


def _felt(commits: Sequence[Commits], marks: Iterable[tuple[int, int]], further: int) -> list[float]:
    found = []
    for partition_id, mark in sorted(marks):
        each = [felt_at(mark + further, one.ids[partition_id], one.times[partition_id]) for one in commits]
        known = [seconds for seconds in each if seconds is not None]
        found += [max(known)] if known else []
    return found
