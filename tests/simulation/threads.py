"""The shell of a simulated client, and the clock and chance of the other modules under test.

``SimThreads`` is a third shell beside ``client.threads.Threads`` and that of ``AsyncWaltzClient``: turns of the
simulated process's loop in place of threads. Everything else of the client is real.

| of the client | in its place | contract kept |
|---|---|---|
| the IO thread | the process's loop | calls posted from other threads run on the loop, in order |
| the apply thread | turns, some time after the bell | never two callbacks at once |
| ``close`` | waits for none of them | nothing is called any more once it has returned |
| the pool for contexts | later turns | every step of a context later, somewhere else, in any order |

(A replica's threads, and the locks of ``storage``, are in ``disk_threads.py``.)

What blocks in a thread cannot block here: the workload does not append where it would have to wait for room, and reads
through ``Rpc`` itself.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.simulation.disk_threads import LOCKS
from tests.simulation.loop import Scheduler
from waltz_ray.actors import mover, server, turns
from waltz_ray.client import own_loop, stream
from waltz_ray.client.shell import Turn
from waltz_ray.client.threads import Threads
from waltz_ray.coordination import cluster_store, unit_store
from waltz_ray.kv.serving import gateway
from waltz_ray.net import backlog, backoff
from waltz_ray.net import stream as net_stream
from waltz_ray.runtime import driver, seldom
from waltz_ray.storage import journal, partition_log, replica_service, store

__all__ = ["SimThreads", "listen", "simulated_threads"]


class SimThreads(Threads):
    """``Threads`` in the process's own loop, the one that runs now."""

    def __init__(self, random: Random) -> None:
        self._loop = asyncio.get_running_loop()
        self._random = random
        self._stopped = self._contexts_stopped = False
        self._turn: Turn = lambda: None
        self._due = False
        self.blocking = False
        """Let ``close`` be called on the loop."""
        self.ended: asyncio.Task[None] | None = None
        self.post = self._post

    # ---- Shell

    def monotonic(self) -> float:
        return self._loop.time()

    def jitter(self) -> float:
        return self._random.uniform(0.5, 1.0)

    def _post(self, function: Callable[..., object], *args: object) -> None:
        if not self._stopped:
            self._loop.call_soon(function, *args)

    def run_context(self, function: Callable[..., None], *args: object) -> None:
        def call() -> None:
            if not self._contexts_stopped:  # a closed pool begins nothing that waits
                function(*args)

        self._loop.call_later(self._random.uniform(0.0, 0.003), call)

    def stop_contexts(self) -> None:
        self._contexts_stopped = True

    def drive(self, turn: Turn) -> Callable[[], None]:
        self._turn = turn
        return lambda: self._soon(self._random.uniform(0.0, 0.002))

    def stop_driving(self) -> None:
        """Turns that are due find that the applier has stopped: they are not taken away here."""

    def _soon(self, delay_s: float) -> None:
        if not self._due:
            self._due = True
            self._loop.call_later(delay_s, self._take_turn)

    def _take_turn(self) -> None:
        self._due = False
        delay_s = self._turn()
        if delay_s == 0:
            self._soon(self._random.uniform(0.0, 0.001))
        elif delay_s is not None:
            self._loop.call_later(delay_s + 1e-6, self._take_turn)

    # ---- the application's threads

    @property
    def on_loop(self) -> bool:
        """As a rule, so that nothing tries to block."""
        return not self.blocking

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """``last`` runs in the next turns; the real one waits for it, as ``ended`` allows here."""
        self._stopped = True
        self.ended = self._loop.create_task(last)


_TIMED = (net_stream, driver, turns, seldom, backlog, mover)


async def listen(
    name: str, make: Callable[[], asyncio.Protocol], host: str, port: int, tls: None = None, plain: bool = False
) -> Any:
    """``net.listener.listen`` on the simulated network: the real one needs sockets."""
    return await asyncio.get_running_loop().create_server(make, host, port)


@contextmanager
def simulated_threads(scheduler: Scheduler, random: Random) -> Iterator[None]:
    """Put the clocks, locks and chances in; take them out at the end."""

    def monotonic() -> float:
        assert scheduler.current is not None
        return scheduler.current.time()

    clock = SimpleNamespace(monotonic=monotonic)
    keys = SimpleNamespace(uuid4=lambda: uuid.UUID(int=random.getrandbits(128)), UUID=uuid.UUID)
    patches: list[Any] = [
        mock.patch.object(stream, "greeting", mock.Mock(return_value="simulated client")),
        mock.patch.object(cluster_store, "uuid", keys),
        mock.patch.object(server, "uuid", keys),
        mock.patch.object(unit_store, "uuid", keys),
        mock.patch.object(server, "listen", listen),
        mock.patch.object(gateway, "listen", listen),
        *(mock.patch.object(module, "time", clock) for module in _TIMED),
        mock.patch.object(backoff, "random", random),
        mock.patch.object(own_loop, "random", random),
        mock.patch.object(own_loop.OwnLoop, "monotonic", staticmethod(monotonic)),
        *(mock.patch.object(module, "threading", LOCKS) for module in (journal, partition_log, replica_service, store)),
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()
