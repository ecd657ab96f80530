"""What a turn with one append costs a server's loop: ``python -m tests.actors.bench_turns`` (docs/metrics.md, "Cost").

A real ``Server`` without sockets: an append comes in, three replicas acknowledge it at once, its client is told. The
best of several runs, in microseconds a turn.
"""

from __future__ import annotations

import asyncio
import gc
import time
import zlib
from typing import cast

import numpy as np

from tests.actors.bench_server import GENERATION, Door, Replica, bench_server, open_with
from waltz_ray.actors.replica_link import ReplicaLink
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.client import FeedMode, Mount
from waltz_ray.protocol.records import AppendBatch
from waltz_ray.protocol.session_types import ReplicaAppended

__all__ = ["GENERATION", "Willing", "append_of"]

_TURNS, _RUNS = 5000, 15


class Willing(Replica):
    """A link whose replica has everything on its disk at once."""

    def append(self, partition_id: int, session_id: int, last_id: int, frame: bytes) -> None:
        fact = ReplicaAppended(session_id, self.replica_id, last_id)
        asyncio.get_running_loop().call_soon(self.server.drivers[partition_id].handle, fact)


def append_of(client_id: int, number: int, data: bytes = b"x" * 100) -> AppendBatch:
    """One append without locks."""
    one = np.array([number], np.int32)
    none, length = np.zeros(1, np.int32), np.array([len(data)], np.int32)
    checksums = np.array([zlib.crc32(data)], np.uint32)
    return AppendBatch(client_id, GENERATION, 0, one, np.array([-1], np.int64), none, length, checksums, data)


async def run() -> float:
    """Seconds for ``_TURNS`` turns."""
    server = bench_server(bench=open_with(1))
    for replica_id in range(3):
        server.links[replica_id] = cast(ReplicaLink, Willing(server, replica_id))
    door = Door(server).greet()
    door.send(Mount(ReqId(900, GENERATION, 0, 0), 0, FeedMode.OWN, 1 << 20))
    machine = server.drivers[0].machine
    mark, number = machine.high_water_mark, 0

    async def one() -> None:
        nonlocal mark, number
        number, mark = number + 1, mark + 1
        door.send(append_of(900, number))
        while machine.high_water_mark < mark:
            await asyncio.sleep(0)
        door.wire.written.clear()

    for _ in range(500):
        await one()
    started = time.perf_counter()
    for _ in range(_TURNS):
        await one()
    return time.perf_counter() - started


if __name__ == "__main__":
    gc.disable()
    times = []
    for _ in range(_RUNS):
        times.append(asyncio.run(run()))
        gc.collect()
    print(f"{min(times) / _TURNS * 1e6:.1f} us a turn (best of {_RUNS} runs of {_TURNS})")
