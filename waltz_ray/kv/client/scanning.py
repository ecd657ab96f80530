"""Items in the order of their names, over all partitions and whoever serves their buckets.

A partition's buckets may be several actors'. All of them are asked for their next items at once; their answers say
whose buckets they speak for, and count only when every bucket of the partition is spoken for. What lies above the
lowest end of an answer that was cut short is asked for again with the next piece. So nothing is remembered between two
pieces but a name, and buckets may move meanwhile.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import AsyncIterator, Iterable, Sequence

from waltz_ray.errors import AccessRefused, KvNotReady
from waltz_ray.kv.client.engine import KvEngine
from waltz_ray.kv.messages import FailCode, FailInfo, ScanCommand, ScanItem, Scanned
from waltz_ray.net.backoff import Backoff

__all__ = ["PAGE", "PartitionPages", "covered", "merged"]

PAGE = 256
"""Items that an actor is asked for at a time."""

_AT_A_TIME = 16  # partitions that are read ahead


class PartitionPages:
    """The items of one partition, a piece after the other."""

    def __init__(
        self,
        engine: KvEngine,
        partition: int,
        map_name: bytes,
        prefix: bytes,
        after: bytes,
        limit: int,
        timeout_s: float,
    ) -> None:
        self.items: list[ScanItem] = []
        """Of the piece read last."""
        self.more = True
        """There may be items behind these."""
        self._engine = engine
        self._partition = partition
        self._map_name = map_name
        self._prefix = prefix
        self._after = after
        self._limit = limit
        self._timeout_s = timeout_s

    async def next(self) -> None:
        """Read the next piece. KvNotReady if some bucket's actor cannot be had in time."""
        engine, backoff = self._engine, Backoff(first_s=0.005, longest_s=0.25)
        end_s = engine.now() + self._timeout_s
        while True:
            engine.check_open()
            answers = await self._asked(end_s)
            if covered(self._partition, engine.connections.partitions, answers):
                break
            if engine.now() >= end_s:
                raise KvNotReady(
                    f"partition {self._partition} could not be scanned within {self._timeout_s:g} s: "
                    f"not all of its buckets are served; try again"
                )
            engine.connections.ask_anew()
            await engine.connections.locate(self._unknown(), end_s)
            await engine.connections.news(min(end_s, engine.now() + backoff.next_s()))
        self._take(answers)

    def _take(self, answers: Sequence[Scanned]) -> None:
        cut = [answer.items[-1].name for answer in answers if answer.more and answer.items]
        horizon = min(cut) if cut else None
        newest: dict[bytes, ScanItem] = {}
        for answer in answers:
            for item in answer.items:
                known = newest.get(item.name)
                if (horizon is None or item.name <= horizon) and (known is None or known.version < item.version):
                    newest[item.name] = item
        self.items = [newest[name] for name in sorted(newest)]
        self.more = horizon is not None
        if horizon is not None:
            self._after = horizon

    async def _asked(self, end_s: float) -> list[Scanned]:
        """What the owners of its buckets answer."""
        engine = self._engine
        if refused := engine.connections.refused():
            raise refused
        owners = {owner for bucket in self._buckets() if (owner := engine.table.owner(bucket)) is not None}
        asked = []
        for server in sorted(owners):
            link = engine.connections.link(server)
            if link is not None:
                command = ScanCommand(self._partition, self._map_name, self._prefix, self._after, self._limit)
                asked.append((server, link.ask(command)))
        answers = await engine.answers([answer for _, answer in asked], end_s)
        found = [answer for answer in answers if isinstance(answer, Scanned)]
        for (server, _), answer in zip(asked, answers, strict=True):
            if isinstance(answer, FailInfo) and answer.code == FailCode.NOT_ALLOWED:
                raise AccessRefused(f"a scan was refused by {server}: {answer.text}")
            if isinstance(answer, FailInfo) and answer.code == FailCode.TOO_LONG:
                self._limit = max(1, self._limit // 2)  # so many do not fit into one answer
            elif not isinstance(answer, Scanned):
                for bucket in self._buckets():
                    engine.table.doubted(bucket, server)
        return found

    def _buckets(self) -> range:
        return range(self._partition, self._engine.table.mask + 1, self._engine.connections.partitions)

    def _unknown(self) -> list[int]:
        return [bucket for bucket in self._buckets() if self._engine.table.owner(bucket) is None]


def covered(partition: int, partitions: int, answers: Sequence[Scanned]) -> bool:
    """Every bucket of the partition is in one of them, each by its own mask."""
    if not answers:
        return False
    finest = max(answer.mask for answer in answers)
    spoken_for = {
        entry for answer in answers for bucket in answer.buckets for entry in range(bucket, finest + 1, answer.mask + 1)
    }
    return spoken_for.issuperset(range(partition, finest + 1, partitions))


async def merged(partitions: Iterable[PartitionPages]) -> AsyncIterator[list[ScanItem]]:
    """Their items in the order of their names, some at a time."""
    pages = [*partitions]
    for begin in range(0, len(pages), _AT_A_TIME):
        await asyncio.gather(*[each.next() for each in pages[begin : begin + _AT_A_TIME]])
    heads = [(each.items[0].name, number, 0) for number, each in enumerate(pages) if each.items]
    for number, each in enumerate(pages):
        if not each.items and each.more:
            raise AssertionError(f"partition {number} has more, but nothing of it came")
    heapq.heapify(heads)
    out: list[ScanItem] = []
    while heads:
        _, number, position = heads[0]
        page = pages[number]
        out.append(page.items[position])
        position += 1
        if position == len(page.items) and page.more:
            yield out
            out = []
            await page.next()
            position = 0
        if position < len(page.items):
            heapq.heapreplace(heads, (page.items[position].name, number, position))
        else:
            heapq.heappop(heads)
        if len(out) >= PAGE:
            yield out
            out = []
    if out:
        yield out
