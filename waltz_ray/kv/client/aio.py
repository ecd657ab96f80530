"""The key/value client for coroutines: ``waltz_ray.kv.connect_async`` makes one."""

from __future__ import annotations

import asyncio
import os
from types import TracebackType

from waltz_ray.client.codecs import Codec
from waltz_ray.client.credentials import Presented
from waltz_ray.client.opening import opened
from waltz_ray.client.unclosed import warn_unclosed
from waltz_ray.errors import ClientClosed, InvalidInput
from waltz_ray.kv.client.connections import connections_of
from waltz_ray.kv.client.engine import KvEngine
from waltz_ray.kv.client.items import AsyncKvMap
from waltz_ray.kv.client.locks import AsyncKvLock
from waltz_ray.kv.client.members import KvDirectory
from waltz_ray.kv.client.place import KvPlace
from waltz_ray.kv.client.settings import KvClientConfig, checked_timeout_s
from waltz_ray.kv.client.values import MOST_MAP_NAME_BYTES, KvName, name_bytes
from waltz_ray.kv.client.watching import AsyncKvWatch, WatchStart, checked_start

__all__ = ["AsyncKvClient"]


class AsyncKvClient(AsyncKvMap):
    """A client of a key/value space, for the loop it is started on. ``async with`` starts and closes it.

    It has the items of no map; ``map`` gives those of one. It pickles as its address, and connects where it is started.
    """

    _process = 0  # in which it is open

    def __init__(
        self,
        place: KvPlace,
        config: KvClientConfig | None = None,
        codec: Codec | None = None,
        credentials: Presented | None = None,
    ) -> None:
        """``credentials``: what actors are shown; None: what ``config`` says. They do not travel when it is pickled."""
        super().__init__(self._started_engine, b"", codec)
        self.config = config or KvClientConfig()
        self._place = place
        self._credentials = credentials
        self._beginning = asyncio.Lock()
        self._running: KvEngine | None = None
        self._closed = False

    # ---- life

    async def start(self) -> None:
        """Find the actors, on the loop that runs now. Idempotent. ClientClosed, and what finding the space raises."""
        async with self._beginning:
            if self._running is None:
                self._check_open()
                await self._start()

    async def _start(self) -> None:
        """Who is cancelled, or finds that it was closed meanwhile, leaves nothing behind."""
        directory = await opened(self._place.directory, lambda found: found.close())
        try:
            shown = self._credentials
            if shown is None:
                shown = await asyncio.to_thread(self._shown, directory)
        except (Exception, asyncio.CancelledError):
            await asyncio.to_thread(directory.close)
            raise
        connections = await connections_of(directory, self.config.max_frame_bytes, shown)
        if self._closed:
            await connections.leave()
        self._check_open()
        self._running, self._process = KvEngine(connections, self.config), os.getpid()

    def _shown(self, directory: KvDirectory) -> Presented:
        """What cannot be used is told at once. Blocks."""
        shown = self.config.credentials().where_tls_is_asked_for(directory.tls_only())
        shown.context(), shown.token()
        return shown

    async def close(self) -> None:
        """Let go of everything; calls that go on end with ClientClosed, as does ``start``. Idempotent."""
        self._closed = True
        if self._running is not None:
            await self._running.stop()

    async def __aenter__(self) -> AsyncKvClient:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __del__(self) -> None:
        if self._process and not self._closed:
            warn_unclosed(self, "client of keys and values", self._process)

    def __reduce__(self) -> tuple[type[AsyncKvClient], tuple[KvPlace, KvClientConfig, Codec | None]]:
        return AsyncKvClient, (self._place, self.config, self._codec)

    # ---- what there is

    def map(self, name: KvName, codec: Codec | None = None) -> AsyncKvMap:
        """The items of a map, with names of their own; ``codec``: of its values (None: the client's).

        An item's partition and bucket are those of its name, whatever the map.
        """
        raw = name_bytes(name, "a map's name", MOST_MAP_NAME_BYTES)
        return AsyncKvMap(self._started_engine, raw, codec or self._codec)

    def lock(self, name: KvName, lease: float = 10.0, wait: float = 30.0) -> AsyncKvLock:
        """A lock, for ``async with``: KvLockTaken if it is not free within ``wait`` seconds (0: at once).

        It is freed ``lease`` seconds after the last that was heard of its holder, who is heard of every third of that.
        Locks have names of their own, beside those of items.
        """
        return AsyncKvLock(self._started_engine, name, lease, wait)

    def watch(self, prefix: KvName = "", start: WatchStart = "latest", map: KvName = "") -> AsyncKvWatch:
        """What becomes of items whose names begin with ``prefix``, as it is committed: ``async for event in watch``.

        An event is an ItemSet, ItemDeleted, ItemTouched or ItemExpired. Those of one item come in their order.
        ``start``: "latest", from the time when it begins; an ID for each partition; or "earliest", from the first there
        is in the log. What was compacted away comes as an ItemSet for each item that was left, before what follows.
        ``async with`` ends it.
        """
        engine = self._started_engine()
        raw = name_bytes(map, "a map's name", MOST_MAP_NAME_BYTES)
        return AsyncKvWatch(
            self._place.log_async, engine, self._codec, raw, name_bytes(prefix, "a prefix"), checked_start(start)
        )

    def statistics(self) -> dict[str, int]:
        """``connected``: actors; ``known_buckets`` of ``buckets``; ``retries``: of items, since the start."""
        engine = self._started_engine()
        owners = engine.table.owners()
        known = sum(owner is not None for owner in owners)
        return {
            "connected": len(engine.connections.links()),
            "known_buckets": known,
            "buckets": len(owners),
            "retries": engine.retries,
        }

    async def routes(self, timeout: float | None = None) -> dict[str, int]:
        """How many buckets each actor (``host:port``) has, as far as is heard within ``timeout`` seconds; "" has those
        that nobody is known to serve."""
        engine = self._started_engine()
        await engine.connections.all_known(engine.now() + checked_timeout_s(timeout, engine.config))
        found: dict[str, int] = {}
        for owner in engine.table.owners():
            found[owner or ""] = found.get(owner or "", 0) + 1
        return found

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed("the key/value client is closed; connect again")

    def _started_engine(self) -> KvEngine:
        if self._running is None:
            self._check_open()
            raise InvalidInput("the client has not been started: use `async with`, or await client.start() first")
        return self._running
