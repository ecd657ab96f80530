"""A cluster with topics on a real Ray, of which processes are killed and stopped, and how its clients reach it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tests.topics.foreign_client import ForeignClient, ForeignFault
from waltz_ray import kv
from waltz_ray.actors.supervision import ask, topic_name
from waltz_ray.cli import main
from waltz_ray.errors import ClusterNotFound, WaltzError
from waltz_ray.protocol.spaces import OFFSETS_SPACE
from waltz_ray.readiness import cluster_status, missing
from waltz_ray.topics.client.positions import positions

__all__ = ["RealTopics", "RealWays", "until"]


def until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """What the condition is, once it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)  # polling interval, not synchronisation
    return found


@dataclass
class RealTopics:
    """Of two topic actors."""

    name: str
    zookeeper: str

    def status(self, actor: str) -> Any:
        """None: it does not answer."""
        with contextlib.suppress(ClusterNotFound):
            return ask(self.name, actor, "status", 3.0)
        return None

    def leader(self) -> int | None:
        said = {actor: self.status(topic_name(actor)) for actor in (0, 1)}
        return next((actor for actor, each in said.items() if each is not None and each.leads), None)

    def served(self) -> bool:
        """Everything is, and slots are where they stay."""
        view = cluster_status(self.name)
        slots = [len(each.slots) for each in view.topics.values()]
        even = max(slots, default=0) - min(slots, default=0) <= 1
        return even and not missing(view, 1, 2) and any(each.leads for each in view.topics.values())

    def settle(self) -> None:
        until(self.served, "everything is served", 90)

    def send_signal(self, actor: str, what: signal.Signals) -> int:
        """Its process, which gets it."""
        pid: int = until(lambda: self.status(actor), f"{actor} answers").pid
        os.kill(pid, what)
        return pid

    def said(self, capsys: pytest.CaptureFixture[str], *words: str) -> str:
        """What ``waltz`` prints."""
        with pytest.raises(SystemExit) as leaving:
            main([*words, "--cluster", self.name, "--zookeeper", self.zookeeper])
        shown = capsys.readouterr()
        assert leaving.value.code == 0, shown.err
        return shown.out

    def lag(self, capsys: pytest.CaptureFixture[str], group: str) -> dict[tuple[str, int], dict[str, int]]:
        """By (topic, partition)."""
        rows = json.loads(self.said(capsys, "topic", "lag", group, "--json"))
        return {(row["topic"], row["partition"]): row for row in rows}

    def offsets(self, group: str) -> dict[tuple[str, int], int]:
        """As they are kept."""
        with kv.connect(self.name, OFFSETS_SPACE, zookeeper=self.zookeeper) as items:
            return {(at.topic, at.partition): item.offset for at, item in positions(items, group).items()}


class RealWays:
    """``Ways`` of a cluster; one connection with each port."""

    def __init__(self, topics: RealTopics) -> None:
        self.topics = topics
        self.open: list[ForeignClient] = []
        self._at: dict[int, ForeignClient] = {}
        self._leads: ForeignClient | None = None

    async def connection(self, port: int) -> ForeignClient:
        found = self._at.get(port)
        if found is None or found._listening.done():
            found = self._at[port] = await ForeignClient.open(port)
            self.open.append(found)
        return found

    async def master(self) -> ForeignClient | None:
        if self._leads is not None and not self._leads._listening.done():
            with contextlib.suppress(ForeignFault, ConnectionError):
                await self._leads.ask(3, {1: b"nobody"})
                return self._leads
        self._leads = None
        for actor in (0, 1):
            said = await asyncio.to_thread(self.topics.status, topic_name(actor))
            if said is not None and said.master is not None:
                with contextlib.suppress(ForeignFault, ConnectionError):
                    found = await self.connection(said.master.port)
                    await found.ask(3, {1: b"nobody"})
                    self._leads = found
        return self._leads

    async def the_master(self) -> ForeignClient:
        """Wait until there is one."""
        while (found := await self.master()) is None:
            await asyncio.sleep(0.05)  # polling interval, not synchronisation
        return found


@asynccontextmanager
async def ways_of(topics: RealTopics) -> AsyncIterator[RealWays]:
    found = RealWays(topics)
    try:
        yield found
    finally:
        for each in found.open:
            await each.close()


def run(topics: RealTopics, work: Callable[[RealWays], Coroutine[Any, Any, None]], limit_s: float = 120.0) -> None:
    """``work`` with ways of its own."""

    async def running() -> None:
        async with ways_of(topics) as ways:
            await asyncio.wait_for(work(ways), limit_s)

    asyncio.run(running())


class OffsetWatch:
    """Looks at a group's offsets all the time: they never go back, but where somebody sets them."""

    def __init__(self, topics: RealTopics, group: str) -> None:
        self.seen: list[dict[tuple[str, int], int]] = []
        self._topics, self._group = topics, group
        self._stopping = asyncio.Event()

    async def __aenter__(self) -> OffsetWatch:
        self._watching = asyncio.ensure_future(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopping.set()
        await self._watching

    async def _watch(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(WaltzError):  # the space is away for a moment
                self.seen.append(await asyncio.to_thread(self._topics.offsets, self._group))
            await asyncio.sleep(0.05)  # polling interval, not synchronisation

    def went_back(self) -> list[tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]]:
        pairs = zip(self.seen, self.seen[1:], strict=False)
        return [(a, b) for a, b in pairs if any(b.get(place, -1) < offset for place, offset in a.items())]
