"""Appends under optimistic write locks: each under a lock of its own, or all under the same one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from waltz_bench.loads import AppendLoad, Call, pairs, payloads
from waltz_ray.client.client import WaltzClient
from waltz_ray.errors import LockConflict

__all__ = ["locked_load"]

_NAME = "bench"


class _Mark:
    """What this load knows of a partition: the high-water mark it has "applied". IO threads only."""

    def __init__(self, mark: int) -> None:
        self.mark = mark

    def saw(self, transaction_id: int) -> None:
        self.mark = max(self.mark, transaction_id)


def locked_load(
    clients: Sequence[WaltzClient], kind: str, outstanding: int, size_bytes: int, partitions: int
) -> Callable[[], AppendLoad]:
    """Loads of appends with one write lock. ``contended``: every append of a partition wants the same lock, and a
    refused one is sent again with the mark it was told, so a call ends when it has committed."""
    count = max(len(clients), partitions)

    def load() -> AppendLoad:
        marks = [_Mark(clients[0].server_high_water_mark(partition)) for partition in range(partitions)]
        numbers = itertools.count()
        calls = [
            _call(clients[i % len(clients)], i % partitions, marks[i % partitions], kind, numbers, size_bytes)
            for i in range(count)
        ]
        return AppendLoad(pairs(calls, outstanding))

    return load


def _call(
    client: WaltzClient, partition_id: int, mark: _Mark, kind: str, numbers: itertools.count[int], size_bytes: int
) -> Call:
    datas = itertools.cycle(payloads(size_bytes))

    def call() -> Future[Any]:
        lock = (_NAME, next(numbers) if kind == "unique" else 0)
        outcome: Future[int] = Future()
        _attempt(client, partition_id, mark, next(datas), lock, outcome)
        return outcome

    return call


def _attempt(
    client: WaltzClient, partition_id: int, mark: _Mark, data: bytes, lock: tuple[str, int], outcome: Future[int]
) -> None:
    """``outcome`` gets the transaction ID, after as many attempts as it takes."""

    def done(future: Future[int]) -> None:
        error = future.exception()
        if error is None:
            mark.saw(future.result())
            outcome.set_result(future.result())
        elif isinstance(error, LockConflict):
            mark.saw(error.transaction_id)
            _attempt(client, partition_id, mark, data, lock, outcome)
        else:
            outcome.set_exception(error)

    client.append(partition_id, data, write_locks=(lock,), client_mark=mark.mark).add_done_callback(done)
