"""The compactor of an actor: partitions side by side, chunks bounded, the log before snapshots let go of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from tests.kv.test_space_node import PARTITIONS, Actors, actors, of_partition, put
from waltz_ray.client.append_fates import AppendFates
from waltz_ray.errors import AppendTimeout
from waltz_ray.kv.messages import FailCode, PutDone
from waltz_ray.kv.model import SECTIONS, Record, SnapshotBegin, SnapshotChunk, SnapshotEnd
from waltz_ray.kv.serving import compactor as module
from waltz_ray.kv.serving.compactor import Compactor
from waltz_ray.kv.serving.space_log import SpaceLog
from waltz_ray.kv.serving.space_node import SpaceNode


class HesitantLog:
    """A space's log that keeps back what it is told to."""

    def __init__(self, log: SpaceLog) -> None:
        self._log = log
        self.keeps_back: Callable[[int, Record], bool] = lambda partition, record: False
        self.kept: list[tuple[int, Record, AppendFates]] = []
        self._calls: list[Callable[[], None]] = []

    def append(self, partition: int, record: Record, mark: int, fates: AppendFates, **locks: Any) -> None:
        def call() -> None:
            self._log.append(partition, record, mark, fates, **locks)

        if self.keeps_back(partition, record):
            self.kept.append((partition, record, fates))
            self._calls.append(call)
        else:
            call()

    def let_go(self) -> None:
        """Append all that was kept back."""
        self.kept.clear()
        calls, self._calls = self._calls, []
        for call in calls:
            call()


class Compacting:
    """An actor with items in all partitions, and its compactor, running."""

    def __init__(self, space: Actors, node: SpaceNode) -> None:
        self.space, self.node = space, node
        self.log = HesitantLog(node._around.log)
        self.trims: list[dict[int, int]] = []
        self.trims_go_on = asyncio.Event()
        self.trims_go_on.set()
        log: Any = self.log
        self.compactor = Compactor(node, log, self._trim, least_tail_bytes=10_000)

    async def _trim(self, marks: Mapping[int, int]) -> None:
        self.trims.append(dict(marks))
        await self.trims_go_on.wait()

    def trimmed(self) -> dict[int, int]:
        return {partition: mark for marks in self.trims for partition, mark in marks.items()}

    async def fill(self, size: int) -> None:
        """32 items, about as many in each partition."""
        await asyncio.gather(*(self.space.ask(0, put(b"%d" % n, bytes(size))) for n in range(32)))

    def ended(self, *partitions: int) -> bool:
        """They have whole snapshots of all sections, and were trimmed to these."""
        begins = [self.node.states[partition].needed_from for partition in partitions]
        return min(begins) >= 0 and begins == [self.trimmed().get(partition) for partition in partitions]


@asynccontextmanager
async def compacting(size: int) -> AsyncIterator[Compacting]:
    async with actors(1) as space:
        space.arrange(lambda unit: (0, None))
        await space.until(lambda: space.nodes[0].caught_up)
        found = Compacting(space, space.nodes[0])
        await found.fill(size)
        task = asyncio.ensure_future(found.compactor.run())
        try:
            yield found
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def test_every_partition_is_compacted_and_all_marks_are_raised_with_few_writes() -> None:
    async def run() -> None:
        async with compacting(4_000) as it:
            it.trims_go_on.clear()  # what ends meanwhile goes with the next write, together
            await it.space.until(lambda: it.compactor.snapshots == SECTIONS * PARTITIONS)
            it.trims_go_on.set()
            await it.space.until(lambda: it.ended(*range(PARTITIONS)))
            assert it.compactor.snapshots == SECTIONS * PARTITIONS
            assert len(it.trims) <= 2
            assert all(state.tail_bytes < 1_000 for state in it.node.states.values())
            before = it.trimmed()
            await it.fill(4_000)
            await it.space.until(
                lambda: all(it.trimmed()[p] > before[p] and it.ended(p) for p in range(PARTITIONS)),
            )

    asyncio.run(run())


def test_a_partition_whose_log_does_not_answer_keeps_no_other_waiting() -> None:
    async def run() -> None:
        async with compacting(4_000) as it:
            it.log.keeps_back = lambda partition, record: partition == 1 and isinstance(record, SnapshotBegin)
            await it.space.until(lambda: it.ended(0, 2, 3))
            assert len(it.log.kept) == 1, "asked once"
            it.log.keeps_back = lambda partition, record: False
            it.log.let_go()
            await it.space.until(lambda: it.ended(1))

    asyncio.run(run())


def test_what_is_under_way_is_bounded_for_all_partitions_together() -> None:
    async def run() -> None:
        async with compacting(200_000) as it:
            it.log.keeps_back = lambda partition, record: isinstance(record, SnapshotChunk)
            await it.space.until(lambda: len(it.log.kept) >= module._IN_FLIGHT)
            while not it.ended(*range(PARTITIONS)):
                await asyncio.sleep(0.02)
                assert len(it.log.kept) <= module._IN_FLIGHT
                it.log.let_go()

    asyncio.run(run())


def test_a_snapshot_of_which_a_chunk_may_be_lost_never_ends_and_another_is_begun() -> None:
    async def run() -> None:
        async with compacting(4_000) as it:
            it.log.keeps_back = lambda partition, record: partition == 1 and isinstance(record, SnapshotChunk)
            await it.space.until(lambda: bool(it.log.kept))
            begun = it.node.states[1].snapshot_begun
            assert begun >= 0
            it.log.kept[0][2].set_exception(ConnectionError("nobody knows"))
            it.log.keeps_back = lambda partition, record: False
            await it.space.until(lambda: it.ended(1))
            assert it.node.states[1].needed_from > begun

    asyncio.run(run())


def test_nothing_is_written_for_who_does_not_own_the_unit() -> None:
    async def run() -> None:
        async with actors(2) as space:
            space.arrange(lambda unit: (0, 1))
            await space.until(lambda: space.nodes[1].caught_up)
            second = Compacting(space, space.nodes[1])
            await second.fill(4_000)
            await space.until(lambda: all(state.tail_bytes > 10_000 for state in space.nodes[1].states.values()))
            second.compactor._look()
            assert not second.compactor._writing

    asyncio.run(run())


def test_writes_wait_for_a_snapshot_that_takes_long_and_only_those_of_its_partition() -> None:
    """However fast everything is overwritten, its log does not grow much beyond what is alive while it is compacted."""

    async def run() -> None:
        async with compacting(4_000) as it:
            it.log.keeps_back = lambda partition, record: partition == 1 and isinstance(record, SnapshotEnd)
            await it.space.until(lambda: bool(it.log.kept) and it.ended(0, 2, 3))
            names = {partition: of_partition(partition, 2)[0] for partition in (0, 1)}
            before = it.node.states[1].tail_bytes
            for _ in range(20):
                await it.space.ask(0, put(names[0], bytes(4_000)))
            asked = [asyncio.ensure_future(it.space.ask(0, put(names[1], bytes(4_000)))) for _ in range(20)]
            await it.space.until(lambda: it.node.keeper.waiting > 0)
            assert sum(each.done() for each in asked) < 20
            tail = it.node.states[1].tail_bytes + it.node.ahead_bytes(1)
            assert tail < before + 6_000, "what it was when the snapshot was due, and one more write"
            it.log.keeps_back = lambda partition, record: False
            it.log.let_go()
            replies = await asyncio.gather(*asked)
            assert all(isinstance(reply, PutDone) and reply.results[0].code == FailCode.OK for reply in replies)

    asyncio.run(run())


def test_writes_wait_no_longer_where_a_snapshot_is_given_up() -> None:
    async def run() -> None:
        async with compacting(4_000) as it:
            it.log.keeps_back = lambda partition, record: partition == 1 and isinstance(record, SnapshotBegin)
            await it.space.until(lambda: bool(it.log.kept))
            (name,) = of_partition(1, 1)
            asked = [asyncio.ensure_future(it.space.ask(0, put(name, bytes(4_000)))) for _ in range(20)]
            await it.space.until(lambda: it.node.keeper.waiting > 0)
            it.log.keeps_back = lambda partition, record: False
            it.log.kept[0][2].set_exception(AppendTimeout("nobody knows"))
            await asyncio.gather(*asked)

    asyncio.run(run())
