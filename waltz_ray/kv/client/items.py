"""Items of one map of a key/value space, for coroutines. Items of no map are in the one with the empty name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any

from waltz_ray import compat
from waltz_ray.client.address import StaysHere
from waltz_ray.client.application import checked_int
from waltz_ray.client.codecs import Codec
from waltz_ray.errors import DecodingFailed, InvalidInput, KvConflict, KvNotReady, KvNotReplicated, KvUnknownFate
from waltz_ray.kv.client.engine import KvEngine
from waltz_ray.kv.client.errands import GetErrand, GetJob, PutErrand, PutJob
from waltz_ray.kv.client.scanning import PAGE, PartitionPages, merged
from waltz_ray.kv.client.settings import checked_timeout_s
from waltz_ray.kv.client.table import RouteTable
from waltz_ray.kv.client.values import (
    Entry,
    Expected,
    KvName,
    NamedEntry,
    expected_version,
    expires_in_ms,
    name_bytes,
    name_text,
    value_bytes,
    value_of,
)
from waltz_ray.kv.messages import ABSENT, ANY_VERSION, FailCode, Op, OpKind, OpResult, ScanItem, Seen
from waltz_ray.kv.routing import fnv1a_32, partition_of

__all__ = ["AsyncKvMap"]

_CHUNK_ENTRIES, _CHUNK_BYTES = 16 * 1024, 16 * 1024 * 1024  # of set_many and get_many, at a time
_ENTRY_BYTES = 200  # what an entry takes beside its bytes
_TICK_S = 0.001  # of actors' clocks
_REFUSALS = {
    FailCode.TOO_LONG: "it is longer than its actor takes (max_value_bytes)",
    FailCode.COLLISION: "another name with the same hash is there",
    FailCode.BAD_REQUEST: "its actor says that it makes no sense",
    FailCode.WRONG_TYPE: "its actor says that it has another type",
}


class AsyncKvMap(StaysHere):
    """One map: names of its own. Made by ``AsyncKvClient.map``; the client itself has the items of no map.

    Every call takes ``timeout`` seconds at the most (None: the client's ``timeout_s``), and until then goes on through
    lost connections, moved buckets and dead actors. Then KvNotReady is raised, and nothing has happened; or
    KvUnknownFate, if a write may have. Each write happens once. What is cancelled is not sent again; if it has been
    sent, it may still happen, and nobody is told. InvalidInput for what cannot be a name or a value; ClientClosed.
    """

    def __init__(self, engine: Callable[[], KvEngine], name: bytes, codec: Codec | None) -> None:
        """``engine``: that of the client, as soon as it is started."""
        self._engine = engine
        self._name = name
        self._codec = codec

    @property
    def name(self) -> KvName:
        """Of the map; empty: the items of no map."""
        return name_text(self._name)

    # ---- reading

    async def get(self, name: KvName, default: Any = None, timeout: float | None = None) -> Any:
        """The value of an item, ``default`` if there is none (or it has expired)."""
        entry = await self.get_item(name, timeout)
        return default if entry is None else entry.value

    async def get_item(self, name: KvName, timeout: float | None = None) -> Entry | None:
        """An item with its version and what is left of its life; None if there is none."""
        entry, _ = await self.item_asked(name, timeout)
        return entry

    async def item_asked(self, name: KvName, timeout: float | None) -> tuple[Entry | None, float]:
        """The same, and when its actor was asked, by the loop's clock."""
        engine, job = self._engine(), GetJob(name_bytes(name))
        timeout_s = checked_timeout_s(timeout, engine.config)
        asked_s = await self._fetch(engine, [job], engine.now() + timeout_s, timeout_s)
        return self._entry(job.name, job.seen, engine.connections.partitions), asked_s

    async def get_many(self, names: Iterable[KvName], timeout: float | None = None) -> dict[KvName, Any]:
        """The values of those of ``names`` that there are, by the names as they were given. Each is read on its own:
        they need not have been there at one moment."""
        if isinstance(names, str | bytes) or not isinstance(names, Iterable):
            raise InvalidInput(f"get_many takes a list of names, not {type(names).__name__}: {names!r:.60}")
        given = {name: name_bytes(name) for name in names}
        entries = await self._read([*dict.fromkeys(given.values())], timeout)
        found = {name: entries[raw] for name, raw in given.items()}
        return {name: entry.value for name, entry in found.items() if entry is not None}

    async def scan(
        self, prefix: KvName = "", after: KvName = "", limit: int | None = None, timeout: float | None = None
    ) -> AsyncIterator[NamedEntry]:
        """Items whose names begin with ``prefix`` and are above ``after``, in the order of their names' bytes.

        At most ``limit``. Each piece of a partition is as it was when it was read; what is written meanwhile may be in
        it or not. ``timeout`` is for each piece. DecodingFailed, InvalidInput (there is no codec), which name the item:
        its value cannot be read; a scan ``after`` it goes on.
        """
        async for page in self.pages(prefix, after, limit, timeout):
            for entry in page:
                yield entry

    async def pages(
        self, prefix: KvName = "", after: KvName = "", limit: int | None = None, timeout: float | None = None
    ) -> AsyncIterator[list[NamedEntry]]:
        """What ``scan`` gives, some at a time."""
        partitions = self._engine().connections.partitions
        async for items in self._pages(prefix, after, limit, timeout):
            page, unreadable = self._readable(items, partitions)
            if page:
                yield page
            if unreadable is not None:
                raise unreadable

    async def _pages(
        self, prefix: KvName, after: KvName, limit: int | None, timeout: float | None
    ) -> AsyncIterator[list[ScanItem]]:
        """Before their values are looked at."""
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise InvalidInput(f"limit is a number of items, at least 0, not {limit!r:.60}")
        engine = self._engine()
        timeout_s = checked_timeout_s(timeout, engine.config)
        first, begin = name_bytes(prefix, "a prefix"), name_bytes(after, "after")
        size = PAGE if limit is None else min(PAGE, max(1, limit))
        partitions = [
            PartitionPages(engine, partition, self._name, first, begin, size, timeout_s)
            for partition in range(engine.connections.partitions)
        ]
        left = limit
        async for items in merged(partitions):
            if left is not None:
                items, left = items[:left], left - len(items)
            yield items
            if left is not None and left <= 0:
                return

    async def count(self, prefix: KvName = "", timeout: float | None = None) -> int:
        """How many items there are whose names begin with ``prefix``, whatever their values. It reads them all."""
        total = 0
        async for page in self._pages(prefix, "", None, timeout):
            total += len(page)
        return total

    # ---- writing

    async def set(
        self,
        name: KvName,
        value: Any,
        expires: float | None = None,
        fullwait: bool = False,
        expected: Expected = None,
        timeout: float | None = None,
    ) -> int:
        """Give an item a value; its version then. When it returns, it is committed by a quorum of the log's replicas.

        ``value``: bytes, str, an integer of 64 bits, or whatever the client's codec takes. ``expires``: seconds from
        now (None: never). ``fullwait``: until the bucket's secondary has it, too; KvNotReplicated if that lasts too
        long. ``expected``: only if the item is at this version, or, ABSENT, is not there; else KvConflict.
        """
        op = self._set_op(name, value, expires, expected)
        (job,) = await self._write([op], fullwait, timeout)
        return self._version(job)

    async def cas(
        self,
        name: KvName,
        value: Any,
        expected: int,
        expires: float | None = None,
        fullwait: bool = False,
        timeout: float | None = None,
    ) -> int | None:
        """``set`` if the item is at version ``expected`` (ABSENT: is not there): its version then. None: it is not, and
        nothing was changed."""
        if expected is None:  # what `set` takes for "whatever is there": nobody who compares means that
            raise InvalidInput("cas sets an item only at the version that it is expected to have, or ABSENT, not None")
        try:
            return await self.set(name, value, expires, fullwait, expected, timeout)
        except KvConflict:
            return None

    async def set_many(
        self,
        items: Mapping[KvName, Any],
        expires: float | None = None,
        fullwait: bool = False,
        timeout: float | None = None,
    ) -> dict[KvName, int]:
        """``set`` of many items: their versions. Each on its own, in no order: after an error some may have been set.

        Then it is KvNotReady if none was, else KvUnknownFate, which says how many.
        """
        if not isinstance(items, Mapping):
            raise InvalidInput(f"set_many takes a dict of names and values, not {type(items).__name__}: {items!r:.60}")
        engine, items = self._engine(), dict(items)  # whoever gave it may change it meanwhile
        timeout_s = checked_timeout_s(timeout, engine.config)
        end_s = engine.now() + timeout_s
        ops = [self._set_op(name, value, expires, None) for name, value in items.items()]
        if len({op.name for op in ops}) < len(ops):
            raise InvalidInput("set_many was given a name twice, as str and as bytes")
        jobs: list[PutJob] = []
        try:
            for chunk in _chunks(ops):
                jobs += await self._run(engine, chunk, fullwait, end_s)
        except KvNotReady as error:  # no room for one of them: others may have been set before
            for op in ops[len(jobs) :]:
                jobs.append(PutJob(op))
                jobs[-1].refuse(error)
        failed = [job for job in jobs if job.error is not None or not job.done or job.result.code != FailCode.OK]
        if not failed:
            return {name: job.result.version for name, job in zip(items, jobs, strict=True)}
        return self._partly(failed, len(jobs), timeout_s)

    async def delete(self, name: KvName, expected: Expected = None, timeout: float | None = None) -> bool:
        """Remove an item; False if there is none. ``expected``: only at this version, else KvConflict."""
        op = Op(OpKind.DELETE, name_bytes(name), expected=expected_version(expected))
        (job,) = await self._write([op], False, timeout)
        if job.result.code == FailCode.MISSING:
            return False
        self._version(job)
        return True

    async def expire(self, name: KvName, seconds: float | None, timeout: float | None = None) -> bool:
        """Have an item expire ``seconds`` from now, or (None) never; its version rises. False if there is none."""
        op = Op(OpKind.TOUCH, name_bytes(name), expires_ms=expires_in_ms(seconds))
        (job,) = await self._write([op], False, timeout)
        if job.result.code == FailCode.MISSING:
            return False
        self._version(job)
        return True

    async def update(
        self,
        name: KvName,
        function: Callable[[Any], Any],
        default: Any = None,
        expires: float | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Set an item to ``function(its value)``, ``default`` if there is none; the new value.

        If somebody else has changed the item meanwhile, it is read and ``function`` called again. It keeps what is left
        of its life, unless ``expires`` is given.
        """
        update = self.update_call(name, default, expires, timeout)
        while True:
            value = function(await update.read())
            if await update.write(value):
                return value

    def update_call(self, name: KvName, default: Any, expires: float | None, timeout: float | None) -> KvUpdate:
        """What ``update`` goes through, for who calls the function elsewhere."""
        engine = self._engine()
        return KvUpdate(self, engine, (name, default, expires), checked_timeout_s(timeout, engine.config))

    async def add(self, name: KvName, amount: int = 1, timeout: float | None = None) -> int:
        """Add to the integer that an item is, 0 if there is none; the sum. InvalidInput: it is none, or too large."""
        amount = checked_int("what is added", amount)

        def added(value: Any) -> int:
            if type(value) is not int:
                raise InvalidInput(f"item {name!r} is no integer but {type(value).__name__}; add() cannot add to it")
            return value + amount

        total: int = await self.update(name, added, 0, timeout=timeout)
        return total

    # ---- inside

    def _set_op(self, name: KvName, value: Any, expires: float | None, expected: Expected) -> Op:
        kind, data = value_bytes(value, self._codec)
        raw = name_bytes(name)
        return Op(OpKind.SET, raw, kind, data, expires_in_ms(expires), expected_version(expected))

    async def _read(self, names: Sequence[bytes], timeout: float | None) -> dict[bytes, Entry | None]:
        engine = self._engine()
        timeout_s = checked_timeout_s(timeout, engine.config)
        end_s = engine.now() + timeout_s
        found: dict[bytes, Entry | None] = {}
        for begin in range(0, len(names), _CHUNK_ENTRIES):
            jobs = [GetJob(name) for name in names[begin : begin + _CHUNK_ENTRIES]]
            await self._fetch(engine, jobs, end_s, timeout_s)
            for job in jobs:
                found[job.name] = self._entry(job.name, job.seen, engine.connections.partitions)
        return found

    async def _fetch(self, engine: KvEngine, jobs: Sequence[GetJob], end_s: float, timeout_s: float) -> float:
        """When they were asked for last, by the loop's clock. Raises what its first job does."""
        size = sum([len(job.name) + _ENTRY_BYTES for job in jobs])
        await self._within(engine, size, end_s, timeout_s)
        errand = GetErrand(self._name)
        try:
            await engine.run(errand, jobs, end_s)
        finally:
            engine.room.give_back(size)
        for job in jobs:
            job.check("reading item", timeout_s)
        return end_s - errand.left_s

    async def _write(self, ops: Sequence[Op], fullwait: bool, timeout: float | None) -> list[PutJob]:
        """Of one call; raises what its first job does."""
        engine = self._engine()
        timeout_s = checked_timeout_s(timeout, engine.config)
        jobs = await self._run(engine, ops, fullwait, engine.now() + timeout_s)
        for job in jobs:
            job.check("writing item", timeout_s)
        return jobs

    async def _run(self, engine: KvEngine, ops: Sequence[Op], fullwait: bool, end_s: float) -> list[PutJob]:
        jobs = [PutJob(op) for op in ops]
        size = sum(len(op.name) + len(op.data) + _ENTRY_BYTES for op in ops)
        await self._within(engine, size, end_s, end_s - engine.now())
        ordered = jobs if len(jobs) == 1 else _by_actor(engine.table, jobs)
        first = engine.numbers.take(len(jobs))
        for sequence, job in enumerate(ordered, first):
            job.sequence = sequence
        try:
            await engine.run(PutErrand(engine.numbers, self._name, fullwait), jobs, end_s)
        finally:
            for job in jobs:
                engine.numbers.settle(job.sequence)
            engine.room.give_back(size)
        return jobs

    @staticmethod
    async def _within(engine: KvEngine, size: int, end_s: float, timeout_s: float) -> None:
        """Wait for room."""
        engine.check_open()
        if engine.room.take_at_once(size):
            return
        try:
            async with compat.timeout(max(0.0, end_s - engine.now())):
                await engine.room.take(size)
        except TimeoutError:
            raise KvNotReady(
                f"no room within {timeout_s:.3g} s: {engine.config.outstanding_bytes} bytes are outstanding "
                f"(outstanding_bytes); nothing was changed, try again"
            ) from None

    @staticmethod
    def _version(job: PutJob) -> int:
        result: OpResult = job.result
        if result.code == FailCode.OK:
            return result.version
        name = str(name_text(job.name))
        if result.code == FailCode.CONFLICT:
            expected = job.op.expected
            raise KvConflict(name, "absent" if expected == ABSENT else str(expected), result.version)
        if result.code == FailCode.NOT_REPLICATED:
            raise KvNotReplicated(name, result.version)
        if result.code == FailCode.MISSING and job.op.expected != ANY_VERSION:
            raise KvConflict(name, str(job.op.expected), -1)
        code = FailCode(result.code) if result.code in _REFUSALS else None
        raise InvalidInput(f"item {name!r} was refused: {_REFUSALS[code] if code else f'code {result.code}'}")

    def _partly(self, failed: Sequence[PutJob], count: int, timeout_s: float) -> dict[KvName, int]:
        """Raise what ``set_many`` has come to."""
        if len(failed) == count and not any(job.unknown for job in failed):
            failed[0].check("writing item", timeout_s)
            self._version(failed[0])
        try:
            failed[0].check("writing item", timeout_s)
            self._version(failed[0])
        except Exception as error:
            raise KvUnknownFate(f"{count - len(failed)} of {count} items were set; of the others: {error}") from error
        raise AssertionError("it had failed")

    def _entry(self, name: bytes, seen: Seen, partitions: int) -> Entry | None:
        if seen.code != FailCode.OK:
            return None
        partition = partition_of(fnv1a_32(name), partitions)
        value = value_of(self._codec, name, seen.type, seen.data, seen.version, partition)
        return Entry(value, seen.version, seen.expires_ms / 1000 if seen.expires_ms else None)

    def _readable(
        self, items: Sequence[ScanItem], partitions: int
    ) -> tuple[list[NamedEntry], DecodingFailed | InvalidInput | None]:
        """Those before the first whose value cannot be read, and why it cannot."""
        page: list[NamedEntry] = []
        for item in items:
            try:
                page.append(self._named(item, partitions))
            except (DecodingFailed, InvalidInput) as error:
                return page, error
        return page, None

    def _named(self, item: ScanItem, partitions: int) -> NamedEntry:
        partition = partition_of(fnv1a_32(item.name), partitions)
        value = value_of(self._codec, item.name, item.type, item.data, item.version, partition)
        return NamedEntry(
            name_text(item.name), value, item.version, item.expires_ms / 1000 if item.expires_ms else None
        )


class KvUpdate:
    """One ``update``: read, decide, write, until nobody else has written in between."""

    def __init__(
        self, items: AsyncKvMap, engine: KvEngine, what: tuple[KvName, Any, float | None], timeout_s: float
    ) -> None:
        """``what``: name, default, expires."""
        self._items = items
        self._engine = engine
        self._name, self._default, self._expires = what
        self._timeout_s = timeout_s
        self._end_s = engine.now() + timeout_s
        self._entry: Entry | None = None
        self._asked_s = 0.0  # for that

    async def read(self) -> Any:
        """The value to go on from. KvNotReady: the time is over."""
        left_s = self._left_s()
        if left_s <= 0:
            raise KvNotReady(
                f"item {self._name!r} was changed by others for {self._timeout_s:g} s, whenever it was to be updated; "
                f"it was not, try again"
            )
        self._entry, self._asked_s = await self._items.item_asked(self._name, left_s)
        return self._default if self._entry is None else self._entry.value

    async def write(self, value: Any) -> bool:
        """False: somebody has changed it since it was read, or its life is over; read again."""
        entry, expires = self._entry, self._expires
        if expires is None and entry is not None and entry.expires is not None:
            expires = _life_left_s(entry.expires, self._asked_s, self._engine.now())
            if expires <= 0:
                await asyncio.sleep(_TICK_S)  # by then its actor says so, too
                return False
        left_s = max(0.001, self._left_s())
        version = ABSENT if entry is None else entry.version
        return await self._items.cas(self._name, value, version, expires, timeout=left_s) is not None

    def _left_s(self) -> float:
        """Not more than there was, as rounding could have it: that may be the most that a call can have."""
        return min(self._timeout_s, self._end_s - self._engine.now())


def _life_left_s(left_s: float, asked_s: float, now_s: float) -> float:
    """Of an item that had ``left_s`` when it was asked for.

    In whole milliseconds of the clock, as actors count: what is rounded off at one update comes back at another, so an
    item that is updated every 0.4 ms lives neither for ever nor half as long.
    """
    passed_ms = int(now_s * 1000) - int(asked_s * 1000)
    return (round(left_s * 1000) - passed_ms) / 1000


def _by_actor(table: RouteTable, jobs: Sequence[PutJob]) -> list[PutJob]:
    """Those of one actor get consecutive numbers, so that they fit into one command; of one bucket, if it moves."""
    return sorted(jobs, key=lambda job: (table.owner(job.key_hash) or "", job.key_hash & table.mask))


def _chunks(ops: Sequence[Op]) -> list[list[Op]]:
    chunks: list[list[Op]] = []
    size = 0
    for op in ops:
        length = len(op.name) + len(op.data)
        if not chunks or size + length > _CHUNK_BYTES or len(chunks[-1]) >= _CHUNK_ENTRIES:
            chunks.append([])
            size = 0
        chunks[-1].append(op)
        size += length
    return chunks
