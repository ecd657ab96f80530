"""Putting many records into a partition, not measured."""

from __future__ import annotations

import threading
from typing import Any

from waltz_bench.loads import payloads
from waltz_ray.client.client import WaltzClient

__all__ = ["fill"]

_LAST_S = 120.0


def fill(client: WaltzClient, partition_id: int, records: int, size_bytes: int, calls: int = 32) -> int:
    """Append ``records``, rounded up to a thousand; the ID of the last one."""
    datas = payloads(size_bytes, 1000)
    room = threading.Semaphore(calls)
    errors: list[BaseException] = []

    def done(future: Any) -> None:
        if future.exception() is not None:
            errors.append(future.exception())
        room.release()

    future = None
    for _ in range(-(-records // len(datas))):
        room.acquire()
        if errors:
            raise errors[0]
        future = client.append_many(partition_id, datas)
        future.add_done_callback(done)
    client.flush(_LAST_S)
    if errors:
        raise errors[0]
    return int(future.result()[-1]) if future is not None else client.server_high_water_mark(partition_id)
