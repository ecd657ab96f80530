"""Clients of the key/value layer that are the library's own (``waltz_ray.kv``); beside ``KV``, with ``LIBRARY``.

One repeats, follows items that move and waits by itself: what a call says in the end is what it is held to. Beside its
items it scans, which is a read of every name, and watches: who applies the events has what there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from random import Random
from typing import TYPE_CHECKING

from tests.kv.linearizability import Asked, Erase, Erased, Peek, Result, Retime, Shown, Store, Stored, Unmet
from tests.simulation.kv_clients import of_model
from tests.simulation.kv_history import OpenCall
from tests.simulation.process import CLUSTER, Process
from tests.simulation.topic_actors import log_client
from tests.simulation.zookeeper import SimZooKeeper
from waltz_ray.client.aio import AsyncWaltzClient
from waltz_ray.client.client import WaltzClient
from waltz_ray.config import ClientConfig
from waltz_ray.errors import KvConflict, KvNotReady, KvNotReplicated, KvUnknownFate, Trimmed
from waltz_ray.finding.find import FoundCluster
from waltz_ray.kv import ABSENT, AsyncKvClient, ItemDeleted, ItemExpired, ItemSet
from waltz_ray.kv.client.connecting import MemberDirectory
from waltz_ray.kv.client.settings import KvClientConfig
from waltz_ray.kv.client.watching import ItemEvent
from waltz_ray.kv.model import Delete, Expired, Record, Set, Several, Touch

if TYPE_CHECKING:
    from tests.simulation.kv import KvPart

__all__ = ["SimKvPlace", "SimLibraryClient", "fold"]

_SPACE = "kv"
_AGAIN_S = 0.2


class SimKvPlace:
    """``KvPlace`` of the simulated cluster, for one process."""

    def __init__(self, process: SimLibraryClient) -> None:
        self._process = process

    def directory(self) -> MemberDirectory:
        """Over the process's own session."""
        assert self._process.zookeeper is not None
        return MemberDirectory(self._process.zookeeper, FoundCluster(CLUSTER, "simulated"), _SPACE)

    def log(self) -> WaltzClient:
        raise AssertionError("there are no threads here")

    async def log_async(self) -> AsyncWaltzClient:
        return await log_client(self._process, _SPACE, ClientConfig(quick_mounts_ms=0), self._process.new_session())


class SimLibraryClient(Process):
    """``working`` False: no further calls; those that are open go on until they are answered or given up."""

    def __init__(self, part: KvPart, number: int, random: Random) -> None:
        super().__init__(part.world, f"kv-client-{number}", session_s=6.0)
        self.part, self.random = part, random
        self.working = True
        self.busy = 0
        """Calls that are open."""
        self.seen: dict[str, tuple[bytes, int]] = {}
        """Value and version of each item, by what the watch has told."""
        self._items = [name for name in part.names if name.startswith("k")]
        self._pace_s = random.uniform(0.01, 0.1)
        self._timeout_s = random.choice([0.5, 2.0, 5.0])
        self._values = 0
        self._versions: dict[str, int] = {}
        self._told: dict[str, int] = {}  # by item, the version that the watch has told last
        self._open: dict[OpenCall, None] = {}
        self._sessions: list[SimZooKeeper] = []

    def start(self) -> None:
        self.begin()
        self._open, self.busy, self.seen = {}, 0, {}
        self.spawn(self._live())

    def new_session(self) -> SimZooKeeper:
        """Another one, for what is closed before its process ends."""
        self._sessions.append(self.world.zookeeper.connect(self.loop))
        return self._sessions[-1]

    def kill(self, why: str, silent_s: float = 0.0) -> None:
        super().kill(why, silent_s)
        for session in self._sessions:
            self.world.zookeeper.gone(session, self.session_s)
        self._sessions.clear()
        for call in self._open:
            call.ended(None)
        self._open.clear()
        self.busy = 0

    async def _live(self) -> None:
        client = AsyncKvClient(SimKvPlace(self), KvClientConfig(timeout_s=self._timeout_s))
        await client.start()
        client._process = 0  # who is killed closes nothing, and is not told so
        self.spawn(self._watch(client))
        for _ in range(2):
            self.spawn(self._work(client))

    async def _work(self, client: AsyncKvClient) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(1 / self._pace_s))
            if self.working:
                act = self.random.choice(
                    [self._get, self._get_many, self._set, self._set, self._set_many, self._delete]
                )
                await self.random.choice([act, act, act, self._expire, self._scan])(client)

    # ---- calls

    def _begin(self, key: str, asked: Asked) -> OpenCall:
        call = self.part.history.begin(key, asked, self.loop.name)
        self._open[call] = None
        self.busy += 1
        return call

    def _end(self, call: OpenCall, result: Result | None) -> None:
        self._open.pop(call, None)
        self.busy -= 1
        call.ended(result)
        version = getattr(result, "version", None)
        if version is not None:
            self._versions[call.key] = version

    def _never(self, call: OpenCall) -> None:
        self._open.pop(call, None)
        self.busy -= 1
        call.never()

    async def _one(self, key: str, asked: Asked, doing: Awaitable[Result]) -> None:
        call = self._begin(key, asked)
        try:
            result: Result | None = await doing
        except KvConflict as no:
            result = Unmet(no.version)
        except KvNotReplicated as done:
            result = Stored(done.version)
        except KvUnknownFate:
            result = None
        except KvNotReady:
            self._never(call)
            return
        self._end(call, result)

    def _value(self) -> bytes:
        self._values += 1
        return f"{self.loop.name}/{self._values}".encode()

    def _life_s(self, key: str) -> float | None:
        life_s: float = self.random.choice([0, 0, 1, 2])
        return life_s if life_s and not self.part.lasts(key) else None

    def _expected(self, key: str) -> int | None:
        """Of half the writes nothing, of the others mostly what was seen last."""
        known = self._versions.get(key, ABSENT)
        return self.random.choice([None, None, known if known >= 0 else ABSENT, ABSENT])

    async def _get(self, client: AsyncKvClient) -> None:
        key = self.random.choice(self._items)

        async def doing() -> Result:
            entry = await client.get_item(key)
            return Shown(None) if entry is None else Shown(entry.value, entry.version)

        await self._one(key, Peek(), doing())

    async def _set(self, client: AsyncKvClient) -> None:
        key = self.random.choice(self._items)
        value, life_s, expected = self._value(), self._life_s(key), self._expected(key)
        fullwait = self.random.random() < 0.1

        async def doing() -> Result:
            return Stored(await client.set(key, value, life_s, fullwait, expected))

        await self._one(key, Store(value, life_s or float("inf"), of_model(expected)), doing())

    async def _delete(self, client: AsyncKvClient) -> None:
        key = self.random.choice(self._items)
        expected = self._expected(key)

        async def doing() -> Result:
            return Erased(await client.delete(key, expected))

        await self._one(key, Erase(of_model(expected)), doing())

    async def _expire(self, client: AsyncKvClient) -> None:
        key = self.random.choice(self._items)
        life_s = self._life_s(key)

        async def doing() -> Result:
            return Stored() if await client.expire(key, life_s) else Shown(None)

        await self._one(key, Retime(life_s or float("inf")), doing())

    async def _get_many(self, client: AsyncKvClient) -> None:
        keys = self._several()
        calls = [self._begin(key, Peek()) for key in keys]
        try:
            found = await client.get_many(keys)
        except KvNotReady:
            for call in calls:
                self._never(call)
            return
        for call in calls:
            self._end(call, Shown(found.get(call.key)))

    async def _set_many(self, client: AsyncKvClient) -> None:
        values = {key: self._value() for key in self._several()}
        calls = [self._begin(key, Store(value)) for key, value in values.items()]
        try:
            versions = await client.set_many(dict(values.items()))
        except KvNotReady:
            for call in calls:
                self._never(call)
        except KvUnknownFate:
            for call in calls:
                self._end(call, None)
        else:
            for call in calls:
                self._end(call, Stored(versions[call.key]))

    def _several(self) -> Sequence[str]:
        return self.random.sample(self._items, self.random.randint(2, min(4, len(self._items))))

    async def _scan(self, client: AsyncKvClient) -> None:
        """Of an item that is not in it, and that may have been given a deadline, nothing follows: a scan goes by the
        owner's clock alone."""
        calls = [self._begin(key, Peek()) for key in self._items]
        try:
            found = {entry.name: entry async for entry in client.scan("k")}
        except KvNotReady:
            for call in calls:
                self._never(call)
            return
        self.world.history.counts["kv scans"] += 1
        for call in calls:
            entry = found.get(call.key)
            if entry is not None:
                self._end(call, Shown(entry.value, entry.version))
            elif self.part.lasts(call.key):
                self._end(call, Shown(None))
            else:
                self._never(call)

    # ---- the watch

    async def _watch(self, client: AsyncKvClient) -> None:
        while True:
            self.seen, self._told = {}, {}
            watch = client.watch("k", "earliest")
            try:
                await watch.begin()
                watch._process = 0  # as of the client
                async for event in watch:
                    self._take(event)
            except Trimmed:  # it begins again with what there is
                self.world.history.counts["kv watches begun again"] += 1
            except KvNotReady:
                await asyncio.sleep(_AGAIN_S)
            await watch.stop()

    def _take(self, event: ItemEvent) -> None:
        name, known = str(event.name), self.seen.get(str(event.name))
        self.world.history.counts["kv events"] += 1
        if isinstance(event, ItemExpired):
            if known is not None and event.version >= known[1]:  # else it lives: a newer one was seen
                del self.seen[name]
            return
        if event.version <= self._told.get(name, -1):
            self._blame(f"{event} after version {self._told[name]}")
        self._told[name] = event.version
        if isinstance(event, ItemSet):
            self.seen[name] = event.value, event.version
        elif isinstance(event, ItemDeleted):
            self.seen.pop(name, None)
        elif known is None:
            self._blame(f"{event}, of an item that it knows nothing of")
        else:
            self.seen[name] = known[0], event.version

    def _blame(self, what: str) -> None:
        self.world.history.blame("kv_watch", f"{self.loop.name} is told {what}")


def fold(there: dict[str, tuple[bytes, int]], at: int, record: Record) -> None:
    """What items there are, and at which version, once a record of transaction ``at`` has been seen."""
    match record:
        case Several(writes):
            for write in writes:
                fold(there, at, write)
        case Set(key, _, data):
            there[key.name.decode()] = data, at
        case Touch(key) if key.name.decode() in there:
            there[key.name.decode()] = there[key.name.decode()][0], at
        case Delete(key):
            there.pop(key.name.decode(), None)
        case Expired(items):
            for key, version in items:
                if there.get(key.name.decode(), (b"", -1))[1] == version:
                    del there[key.name.decode()]
