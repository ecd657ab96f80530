"""Loads on key/value stores: coroutines on one uvloop thread, each with one call in the air.

All stores are driven by the same thread in the same way, through clients that put many calls on one connection.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol, TypeVar

import uvloop

from waltz_bench.loads import payloads
from waltz_ray.errors import AppendTimeout

__all__ = [
    "BATCH_ITEMS",
    "NAMES",
    "AsyncCall",
    "ChainLoad",
    "StoreClient",
    "LoadThread",
    "batch_of",
    "fill",
    "getting",
    "setting",
]

NAMES = [f"key-{number:05d}" for number in range(10_000)]
BATCH_ITEMS = 100

_CONNECT_S, _LAST_CALLS_S = 60.0, 30.0

T = TypeVar("T")
AsyncCall = Callable[[], Awaitable[Any]]


class StoreClient(Protocol):
    """A client of a store. Every write it has answered is on the store's disks."""

    async def set(self, name: str, value: bytes) -> Any: ...

    async def get(self, name: str) -> bytes | None: ...

    async def set_many(self, items: dict[str, bytes]) -> Any: ...

    async def close(self) -> None: ...


class LoadThread:
    """The thread with the event loop that all clients of all stores are used on."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kv-load", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], limit_s: float = _CONNECT_S) -> T:
        """Its result; TimeoutError after ``limit_s``."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(limit_s)

    @contextmanager
    def clients(
        self, connect: Callable[[], Coroutine[Any, Any, StoreClient]], count: int
    ) -> Iterator[list[StoreClient]]:
        """So many, closed at the end."""
        made: list[StoreClient] = []
        try:
            for _ in range(count):
                made.append(self.run(connect()))
            yield made
        finally:
            for client in made:
                self.run(client.close())

    def close(self) -> None:
        """Ends the thread; what still runs on it is given up."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> LoadThread:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class ChainLoad:
    """See ``measure.Load``: as many chains as there are ``calls``. Use it once."""

    def __init__(self, thread: LoadThread, calls: Sequence[AsyncCall], records_per_call: int = 1) -> None:
        self.records_per_call = records_per_call
        self.latencies_s: list[float] = []
        self.failed = threading.Event()
        self._thread, self._calls = thread, calls
        self._stopped = False
        self._chains: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """See ``measure.Load``."""
        self._thread.run(self._start())

    async def _start(self) -> None:
        self._chains = [asyncio.create_task(self._chain(call)) for call in self._calls]

    async def _chain(self, call: AsyncCall) -> None:
        try:
            while not self._stopped:
                began = perf_counter()
                await call()
                self.latencies_s.append(perf_counter() - began)
        except BaseException:
            self.failed.set()
            raise

    def stop(self) -> None:
        """See ``measure.Load``. AppendTimeout if a call gets no answer."""
        self._stopped = True
        self._thread.run(self._end(), _LAST_CALLS_S + _CONNECT_S)

    async def _end(self) -> None:
        if not self._chains:
            return
        done, open_ones = await asyncio.wait(self._chains, timeout=_LAST_CALLS_S)
        for chain in open_ones:
            chain.cancel()
        for chain in done:
            chain.result()
        if open_ones:
            raise AppendTimeout(
                f"{len(open_ones)} of {len(self._chains)} calls of the load had no answer {_LAST_CALLS_S:g} s after "
                f"its end; see the store's log"
            )


def setting(client: StoreClient, size_bytes: int, share: float = 0.0) -> AsyncCall:
    """One set for each call, of one name after the other, from ``share`` of them on: clients do not meet."""
    first = int(share * len(NAMES))
    names = NAMES[first:] + NAMES[:first]
    items = itertools.cycle(zip(names, itertools.cycle(payloads(size_bytes)), strict=False))
    set_ = client.set
    return lambda: set_(*next(items))


def getting(client: StoreClient, size_bytes: int) -> AsyncCall:
    """One get for each call, of names that are there."""
    names = itertools.cycle(NAMES)

    async def get() -> None:
        name = next(names)
        value = await client.get(name)
        if value is None or len(value) != size_bytes:
            raise AssertionError(f"the store has not {size_bytes} bytes under {name}, but {value!r}")

    return get


def batch_of(client: StoreClient, size_bytes: int) -> AsyncCall:
    """One ``set_many`` of BATCH_ITEMS for each call."""
    values = payloads(size_bytes)
    ends = [n * BATCH_ITEMS for n in range(len(NAMES) // BATCH_ITEMS)]
    batches = itertools.cycle([dict(zip(NAMES[n : n + BATCH_ITEMS], values, strict=False)) for n in ends])
    set_many = client.set_many
    return lambda: set_many(next(batches))


async def fill(client: StoreClient, size_bytes: int) -> None:
    """Every one of NAMES is there afterwards."""
    set_many = batch_of(client, size_bytes)
    for _ in range(len(NAMES) // BATCH_ITEMS):
        await set_many()
