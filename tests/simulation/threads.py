"""The client's threads, replaced by turns of its simulated process's loop. Everything else of the client is real.

| of the client | in its place | contract kept |
|---|---|---|
| ``IoThread`` | ``SimIo`` | calls posted from other threads run on the loop, in order |
| ``Applier``'s thread | ``SimApplier`` | one partition's deliveries at a time, never two callbacks at once |
| ``close`` | waits for none of them | nothing is called any more once it has returned |
| ``ContextRunner``'s pool | ``SimRunner`` | every step of a context later, somewhere else, in any order |

(A replica's threads, and the locks of ``storage``, are in ``disk_threads.py``.)

What blocks in a thread cannot block here: the workload does not append where ``Outbox`` would make it wait, and reads
through ``Rpc`` itself. ``time`` and ``random`` of the client's modules are the process's clock and the seed's chance.
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
from waltz_ray.actors import server
from waltz_ray.client import applier, client, contexts, outbox, partition, requests, stream
from waltz_ray.client.applier import Applier, ApplyQueue, Delivery
from waltz_ray.client.contexts import ContextRun, ContextRunner
from waltz_ray.client.fates import Completion
from waltz_ray.client.feeds import Fetch
from waltz_ray.coordination import cluster_store
from waltz_ray.net import backoff
from waltz_ray.net import stream as net_stream
from waltz_ray.runtime import driver, seldom
from waltz_ray.storage import journal, partition_log, replica_service, store

__all__ = ["simulated_threads"]


class SimIo:
    """``IoThread`` in the process's own loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.is_current = True  # so that nothing tries to block
        self._stopped = False
        self.ended: asyncio.Task[None] | None = None

    def post(self, function: Callable[..., object], *args: object) -> None:
        if not self._stopped:
            self.loop.call_soon(function, *args)

    def stop(self, last: Coroutine[Any, Any, None]) -> None:
        """``last`` runs in the next turns; the real one waits for it, as ``ended`` allows here."""
        self._stopped = True
        self.ended = self.loop.create_task(last)


def _simulated_applier(random: Random) -> type[Applier]:
    class SimApplier(Applier):
        """The real applier, one round per turn."""

        def __init__(
            self,
            callbacks: Any,
            fetch: Fetch,
            completed: Callable[[Completion], BaseException | None],
        ) -> None:
            with mock.patch("threading.Thread"):
                super().__init__(callbacks, fetch, completed)
            self._loop = asyncio.get_running_loop()
            self._due = False

        def deliver(self, queue: ApplyQueue, delivery: Delivery) -> None:
            super().deliver(queue, delivery)
            self._soon(random.uniform(0.0, 0.002))

        def report(self, partition_id: int, transaction_id: int, error: BaseException) -> None:
            super().report(partition_id, transaction_id, error)
            self._soon(0.0)

        def _soon(self, delay_s: float) -> None:
            if not self._due:
                self._due = True
                self._loop.call_later(delay_s, self._round)

        def _round(self) -> None:
            self._due = False
            if self._stopped:
                return
            now = self._loop.time()
            if self._ready or self._reports or (self._paused and self._paused[0][0] <= now):
                work = self._next()  # has something, so it does not wait
                deliveries = list(work.deliveries) if work else []
                if work:
                    work.deliveries.clear()
                reports = list(self._reports)
                self._reports.clear()
                for report in reports:
                    self._uncaught(*report)
                if work:
                    self._apply(work, deliveries)
            if self._ready or self._reports:
                self._soon(random.uniform(0.0, 0.001))
            elif self._paused:
                self._loop.call_later(max(0.0, self._paused[0][0] - now) + 1e-6, self._round)

    return SimApplier


_TIMED = (applier, outbox, partition, requests, net_stream, driver, server, seldom)


def _simulated_runner(random: Random) -> type[ContextRunner]:
    class SimRunner(ContextRunner):
        """The real runner; its pool is the loop."""

        def _in_pool(self, function: Callable[..., None], run: ContextRun, *args: object) -> None:
            def call() -> None:
                if not self._closed:  # a closed pool begins nothing that waits
                    function(run, *args)

            asyncio.get_running_loop().call_later(random.uniform(0.0, 0.003), call)

    return SimRunner


@contextmanager
def simulated_threads(scheduler: Scheduler, random: Random) -> Iterator[None]:
    """Put the replacements in; take them out at the end."""

    def monotonic() -> float:
        assert scheduler.current is not None
        return scheduler.current.time()

    clock = SimpleNamespace(monotonic=monotonic)
    keys = SimpleNamespace(uuid4=lambda: uuid.UUID(int=random.getrandbits(128)), UUID=uuid.UUID)
    patches: list[Any] = [
        mock.patch.object(client, "IoThread", SimIo),
        mock.patch.object(client, "Applier", _simulated_applier(random)),
        mock.patch.object(client, "ContextRunner", _simulated_runner(random)),
        mock.patch.object(contexts, "WorkerPool", mock.Mock()),
        mock.patch.object(stream, "greeting", mock.Mock(return_value="simulated client")),
        mock.patch.object(cluster_store, "uuid", keys),
        mock.patch.object(server, "uuid", keys),
        *(mock.patch.object(module, "time", clock) for module in _TIMED),
        mock.patch.object(backoff, "random", random),
        *(mock.patch.object(module, "threading", LOCKS) for module in (journal, partition_log, replica_service, store)),
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()
