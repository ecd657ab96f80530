"""Where groups are, in the simulation: a store of items as the key/value layer is one, without its actors.

What it keeps of that layer's contract: an item is read and changed at one moment between question and answer; a change
is made on the version it names, or not at all; of a change without an answer nobody knows whether it was made, or will
be made yet. The layer itself is simulated in the histories of ``kv.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from tests.simulation.topic_history import NO_OFFSET_ITEM
from waltz_ray.errors import KvNotReady, KvUnknownFate
from waltz_ray.kv import ABSENT
from waltz_ray.kv.client.values import Entry
from waltz_ray.topics.offset_item import decode_offset
from waltz_ray.topics.serving.offsets import KvOffsets

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.topics import TopicPart

__all__ = ["OffsetStore", "offsets_of"]

T = TypeVar("T")


class OffsetStore:
    """All items. ``slow_until_s``: until then answers come late; ``deaf_until_s``: and until then many not at all."""

    def __init__(self, part: TopicPart, random: Random) -> None:
        self.part, self.random = part, random
        self.slow_until_s = self.deaf_until_s = 0.0
        self.far: dict[str, float] = {}
        """Hosts that it is far from, until when: questions and answers take seconds."""
        self._items: dict[str, tuple[Any, int]] = {}
        self._versions = 0

    def read(self, name: str) -> tuple[Any, int] | None:
        """Value and version."""
        return self._items.get(name)

    def write(self, name: str, value: Any, version: int, host: str) -> int | None:
        """The new version; None: it has another one than ``version``. ``host`` asks for it."""
        before = self._items.get(name)
        if (before[1] if before else ABSENT) != version:
            return None
        self._versions += 1
        self._items[name] = value, self._versions
        old = decode_offset(before[0]) if before else NO_OFFSET_ITEM
        self.part.history.stored(name, old, decode_offset(value), host)
        return self._versions

    def way_s(self, host: str) -> float:
        """How long a question takes, or an answer."""
        if self.part.world.scheduler.now < self.far.get(host, 0.0):
            return self.random.uniform(0.8, 1.6)
        slow = self.part.world.scheduler.now < self.slow_until_s
        return self.random.uniform(0.05, 1.0) if slow else self.random.uniform(0.0002, 0.01)

    def loses(self) -> bool:
        """Whether this question, or this answer, is lost."""
        return self.part.world.scheduler.now < self.deaf_until_s and self.random.random() < 0.3


class _Items:
    """The store as one process uses it: as much of ``AsyncKvMap`` as ``KvOffsets`` needs."""

    def __init__(self, store: OffsetStore, process: Process) -> None:
        self._store, self._process = store, process

    async def get_item(self, name: str, timeout: float | None = None) -> Entry | None:
        found = await self._ask(lambda: self._store.read(name), timeout, KvNotReady("no actor answers"))
        return None if found is None else Entry(found[0], found[1], None)

    async def cas(self, name: str, value: Any, version: int, timeout: float | None = None) -> int | None:
        lost = KvUnknownFate("no actor has answered")
        return await self._ask(lambda: self._store.write(name, value, version, self._process.host), timeout, lost)

    async def _ask(self, do: Callable[[], T], timeout: float | None, lost: Exception) -> T:
        """It is done even if its process ends meanwhile."""
        store, loop, host = self._store, self._process.loop, self._process.host
        answer: asyncio.Future[T] = loop.create_future()
        scheduler = store.part.world.scheduler

        def fail() -> None:
            if not answer.done():
                answer.set_exception(lost)

        def arrive() -> None:
            result = do()
            if not store.loses():
                scheduler.after(store.way_s(host), loop.call_soon, tell, result)

        def tell(result: T) -> None:
            if not answer.done():
                answer.set_result(result)

        loop.call_later(timeout or 5.0, fail)
        late_s = store.random.choice([0.0, 1.0, 6.0]) if store.loses() else 0.0
        if not store.loses():
            scheduler.after(store.way_s(host) + late_s, arrive)
        return await answer


def offsets_of(store: OffsetStore, process: Process) -> KvOffsets:
    """The real rules of taking and storing, for one process."""
    items: Any = _Items(store, process)
    return KvOffsets(items, timeout_s=store.random.choice([0.5, 2.0, 5.0]))
