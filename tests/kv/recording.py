"""Native clients that use a few items and locks and write down what they saw, for ``linearizability.check``."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Hashable
from random import Random

from tests.kv.linearizability import (
    ANYTHING,
    MISSING,
    Asked,
    Denied,
    Granted,
    KvCall,
    Obtain,
    Peek,
    Result,
    Shown,
    Store,
    Stored,
    Unlatch,
    Unmet,
    lock_model,
)
from tests.linearizability.search import NotLinearizable, check
from waltz_ray.errors import KvLockTaken, KvNotReady, KvUnknownFate
from waltz_ray.kv import ABSENT, AsyncKvClient

__all__ = ["Recorder", "check_versions"]

_LEASE_S = 600.0  # no lease ends in a history
_PIPELINED = 6


def check_versions(calls: list[KvCall]) -> None:
    """The same as ``check`` for sets and reads whose versions are known: versions rise, so they are the order, and no
    search is needed, however many calls waited for one failover. NotLinearizable: a call would have to happen outside
    its time, or a value has two versions (it was written twice), or a version two values.

    A cas that was refused says nothing here; of what has no result only that it happens at most once.
    """
    keys: dict[Hashable, list[tuple[int, bool, Hashable, KvCall]]] = {}
    for call in calls:
        result = call.result
        if isinstance(result, Shown):
            known = (-1 if result.version is None else result.version, True, result.value, call)
        elif isinstance(result, Stored) and isinstance(call.asked, Store):
            assert result.version is not None
            known = (result.version, False, call.asked.value, call)
        else:
            continue
        keys.setdefault(call.key, []).append(known)
    for key, found in keys.items():
        _check_key(key, sorted(found, key=lambda each: (each[0], each[1], each[3].invoked)))


def _check_key(key: Hashable, found: list[tuple[int, bool, Hashable, KvCall]]) -> None:
    values: dict[int, Hashable] = {}
    versions: dict[Hashable, int] = {}
    moment = latest = -math.inf  # of the last version; of the last call at it
    last = -2
    for version, _, value, call in found:
        if values.setdefault(version, value) != value or versions.setdefault(value, version) != version:
            raise NotLinearizable(key, f"value {value} has versions {versions.get(value)} and {version}: {call}")
        if version != last:
            asked = call.asked
            if isinstance(asked, Store) and asked.expected != ANYTHING and last > max(asked.expected, -1):
                raise NotLinearizable(key, f"version {last} came between: {call}")
            last, moment = version, latest
        point = max(moment, call.invoked)
        if isinstance(call.result, Stored):
            moment = point  # reads of it come after it
        if point > call.end:
            raise NotLinearizable(key, f"a later version was there {point - call.end:.3f} s before its end: {call}")
        latest = max(latest, point)


class Recorder:
    """``keys`` items and ``locks`` locks; ``run`` uses them until ``ends`` is set. Values never come twice."""

    def __init__(self, clients: list[AsyncKvClient], keys: int, locks: int, seed: int) -> None:
        self._clients = clients
        self._keys = [f"key {seed} {n}" for n in range(keys)]
        self._locks = [f"lock {seed} {n}" for n in range(locks)]
        self._random = Random(seed)
        self._next = 0
        self.items: list[KvCall] = []
        self.of_locks: list[KvCall] = []
        self.worst_s = 0.0
        """The longest that a call took."""

    async def run(self, ends: asyncio.Event) -> None:
        work = [self._use_lock(client, number, ends) for number, client in enumerate(self._clients) if self._locks]
        for number, client in enumerate(self._clients):
            work += [self._use_items(client, f"{number}.{task}", ends) for task in range(2)]
        await asyncio.gather(*work)

    async def check(self) -> int:
        """NotLinearizable, or an acknowledged value is not there; else how many calls there were."""
        for key in self._keys:
            await self._get(self._clients[0], key, "at the end")
        check_versions(self.items)
        check(self.of_locks, lock_model())
        return len(self.items) + len(self.of_locks)

    # ---- items

    async def _use_items(self, client: AsyncKvClient, who: str, ends: asyncio.Event) -> None:
        known: dict[str, int] = {}
        while not ends.is_set():
            key, what = self._random.choice(self._keys), self._random.random()
            if what < 0.35:
                await asyncio.gather(*[self._set(client, key, who) for _ in range(self._random.randint(1, _PIPELINED))])
            elif what < 0.6:
                known[key] = await self._cas(client, key, who, known.get(key, ABSENT))
            else:
                known[key] = await self._get(client, key, who)

    def _value(self) -> int:
        self._next += 1
        return self._next

    async def _set(self, client: AsyncKvClient, key: str, who: str) -> None:
        value, begin = self._value(), time.monotonic()
        try:
            result: Result | None = Stored(await client.set(key, value))
        except KvUnknownFate:
            result = None
        except KvNotReady:
            return  # it has not happened
        self._note(self.items, key, Store(value), result, begin, who)

    async def _cas(self, client: AsyncKvClient, key: str, who: str, expected: int) -> int:
        value, begin = self._value(), time.monotonic()
        result: Result | None = None
        version = None
        try:
            version = await client.cas(key, value, expected)
            result = Unmet(None) if version is None else Stored(version)
        except KvUnknownFate:
            pass
        except KvNotReady:
            return ABSENT
        asked = Store(value, expected=MISSING if expected == ABSENT else expected)
        self._note(self.items, key, asked, result, begin, who)
        return ABSENT if version is None else version

    async def _get(self, client: AsyncKvClient, key: str, who: str) -> int:
        begin = time.monotonic()
        try:
            found = await client.get_item(key)
        except KvNotReady:
            return ABSENT
        shown = Shown(None) if found is None else Shown(found.value, found.version)
        self._note(self.items, key, Peek(), shown, begin, who)
        return ABSENT if found is None else found.version

    # ---- locks

    async def _use_lock(self, client: AsyncKvClient, who: int, ends: asyncio.Event) -> None:
        while not ends.is_set():
            name = self._random.choice(self._locks)
            lock, begin = client.lock(name, lease=_LEASE_S, wait=0), time.monotonic()
            try:
                code = await lock.acquire()
            except KvLockTaken:
                self._note(self.of_locks, name, Obtain(_LEASE_S), Denied(), begin, who)
                await asyncio.sleep(0.02)
                continue
            except KvUnknownFate:
                self._note(self.of_locks, name, Obtain(_LEASE_S), None, begin, who)
                continue
            except KvNotReady:
                continue
            self._note(self.of_locks, name, Obtain(_LEASE_S), Granted(code), begin, who)
            await asyncio.sleep(0.05)
            begin, freed = time.monotonic(), None
            try:
                await lock.release()
                freed = Granted(code)
            except (KvNotReady, KvUnknownFate):
                pass
            self._note(self.of_locks, name, Unlatch(code), freed, begin, who)

    def _note(
        self, calls: list[KvCall], key: str, asked: Asked, result: Result | None, begin: float, who: object
    ) -> None:
        end = time.monotonic()
        self.worst_s = max(self.worst_s, end - begin)
        calls.append(KvCall(key, asked, result, begin, end, who))
