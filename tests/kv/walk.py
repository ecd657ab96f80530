"""A random log of a kv partition: writes of every kind, right and late ones, and snapshots, whole, abandoned and of
owners who do not know that they are not any more."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import islice

from tests.kv.plain_fold import PlainFold, assert_equal
from waltz_ray.kv.model import (
    ALL_SECTIONS,
    BARRIER,
    NOBODYS,
    Delete,
    Expired,
    ItemKey,
    ItemWrite,
    Lock,
    Own,
    Record,
    Release,
    RequestId,
    Set,
    Several,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotEnd,
    SnapshotItem,
    Touch,
    Unlock,
    WriteRefused,
)
from waltz_ray.kv.records import encode_record
from waltz_ray.kv.routing import Unit
from waltz_ray.kv.state import KvState, MemoryState

__all__ = ["CLIENTS", "HASHES", "Walk", "check_walk"]

CLIENTS = 3
HASHES = (0, 0x3FFF_FFFF, 0x4000_0000, 0x8000_0001, 0xFFFF_FFFF)
"""At the edges of sections."""
NAMES = (b"", b"a", b"a\0", b"ab", b"b", b"\xff")
UNITS = (Unit(0xF, 3), Unit(0xFF, 3), Unit(0xFF, 0x13))


class Walk:
    """``log``: the records' bytes, the ID is the place. ``plain`` and ``whole`` have folded all of them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._company = random.Random(seed + 1)
        self.log: list[bytes] = []
        self.plain = PlainFold()
        self.whole = MemoryState(f"seed {seed}")
        self.whole.page_entries = 2
        self.needed: list[int] = []
        """From where on the log was needed, as snapshots ended."""
        self.now_ms = 1_700_000_000_000
        self._writers: list[tuple[int, Iterator[SnapshotItem], list[SnapshotItem]]] = []
        self._sequences = dict.fromkeys(range(1, CLIENTS + 1), 0)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.now_ms += self.random.choice((0, 1000, 1000, 20_000, 240_000))
            chosen = self.random.random()
            if chosen < 0.02:
                self._begin()
            elif chosen < 0.5 and self._writers:
                self._go_on(self.random.choice(self._writers))
            else:
                self.append(self._write())
        self.append(Delete(ItemKey(9, 9, b"nothing"), at_ms=self.now_ms))  # who is idle is forgotten at a record

    def append(self, record: Record) -> int:
        at, data = len(self.log), encode_record(record)
        self.log.append(data)
        self.plain.fold(at, record)
        self.whole.apply([(at, data)])
        return at

    def _begin(self) -> None:
        chosen = self._company.random()  # mostly as the compactor does
        oldest = self.whole.oldest_sections(1)
        sections = oldest if chosen < 0.7 else self._company.randint(1, ALL_SECTIONS) if chosen < 0.9 else ALL_SECTIONS
        snapshot = self.append(SnapshotBegin(sections))
        self._writers = self._writers[-2:]  # of late ones, too: they go on as if theirs were the open one
        self._writers.append((snapshot, self.whole.snapshot_items(sections), []))

    def _go_on(self, writer: tuple[int, Iterator[SnapshotItem], list[SnapshotItem]]) -> None:
        """Look at some more entries, or write those that were looked at."""
        snapshot, source, seen = writer
        if seen and self.random.random() < 0.5:
            self.append(SnapshotChunk(snapshot, tuple(seen)))
            seen.clear()
        elif found := list(islice(source, self.random.randint(1, 4))):
            seen += found
        elif not seen:
            self._writers.remove(writer)
            self.append(SnapshotEnd(snapshot))
            if self.whole.needed_from > max(self.needed, default=-1):
                self.needed.append(self.whole.needed_from)

    # ---- writes

    def _write(self) -> Record:
        record = self._single()
        if not isinstance(record, ItemWrite) or self._company.random() < 0.8:
            return record
        chance = self._company
        keys = [ItemKey(chance.randrange(2), chance.choice(HASHES), chance.choice(NAMES)) for _ in range(3)]
        if isinstance(record, Set) and chance.random() < 0.5:  # as a client writes several items
            alike = [Set(key, 2, chance.randbytes(3), 0, b"", record.request, record.at_ms) for key in keys]
            return Several((record, *alike[: chance.randint(0, 3)]))
        others: list[ItemWrite] = [
            Delete(keys[0], at_ms=self.now_ms),
            Set(keys[1], 4, chance.randbytes(3)),
            Touch(keys[2], self.now_ms),
        ]
        return Several((record, *chance.sample(others, chance.randint(0, 3))))

    def _single(self) -> Record:
        chance, request = self.random, self._request()
        key = self._key()
        deadline = chance.choice((0, 0, self.now_ms + chance.randint(1, 99_999)))
        if chance.random() < 0.5:
            item = self.plain.items.get(key)
            version = item.version if item and chance.random() < 0.8 else chance.randrange(len(self.log) + 1)
            return chance.choice(
                (
                    Set(key, chance.choice((2, 4, 16)), chance.randbytes(5), deadline, b"map", request, self.now_ms),
                    Delete(key, request, self.now_ms),
                    Touch(key, deadline, request, self.now_ms),
                    Expired(((key, version), (self._key(), version))),
                )
            )
        return self._lock_or_owner(request)

    def _lock_or_owner(self, request: RequestId) -> Record:
        chance, name = self.random, self.random.choice(NAMES[:3])
        held = self.plain.locks.get(name)
        code = held.code if held and chance.random() < 0.8 else 77 << 16
        deadline = self.now_ms + chance.randint(1, 99_999)
        unit = chance.choice(UNITS)
        owner = self.plain.owners.get(unit)
        actor, incarnation, epoch = chance.randint(0, 1), chance.choice("xy"), chance.randint(1, 3)
        if owner and chance.random() < 0.6:
            actor, incarnation, epoch = owner.actor, owner.incarnation, owner.epoch
        return chance.choice(
            (
                Lock(name, chance.randrange(1 << 16), deadline, 0, request, self.now_ms),
                Lock(name, chance.randrange(1 << 16), deadline, code, request, self.now_ms),
                Unlock(name, code, request, self.now_ms),
                Own(unit, actor, incarnation, epoch + 1),
                Release(unit, actor, incarnation, epoch),
                WriteRefused(chance.randrange(256), chance.randrange(-1, len(self.log)), request, self.now_ms),
                BARRIER,
            )
        )

    def _key(self) -> ItemKey:
        chance = self.random
        return ItemKey(chance.randrange(2), chance.choice(HASHES), chance.choice(NAMES))

    def _request(self) -> RequestId:
        chance = self.random
        if chance.random() < 0.3:
            return NOBODYS
        client = chance.randint(1, CLIENTS)
        self._sequences[client] += 1
        sequence = self._sequences[client]
        return RequestId(client, sequence, chance.randint(max(0, sequence - 6), sequence))


def check_walk(seed: int, steps: int, also: KvState | None = None) -> Walk:
    """Walk, and fold the log from where it was needed as snapshots ended, and from anywhere before that: AssertionError
    unless all come to the same.

    ``also``: another state, to fold the whole log.
    """
    walk = Walk(seed)
    walk.run(steps)
    assert_equal(walk.whole, walk.plain, CLIENTS, steps)
    for begin in (*walk.needed, *(walk.random.randint(0, begin) for begin in walk.needed)):
        part = MemoryState(f"seed {seed} from {begin}")
        part.apply(list(enumerate(walk.log))[begin:])
        assert part.whole
        assert_equal(part, walk.plain, CLIENTS, steps)
        assert (part.mark, part.needed_from) == (walk.whole.mark, walk.whole.needed_from)
        assert part.live_bytes == walk.whole.live_bytes
    if also is not None:
        also.apply(enumerate(walk.log))
        assert_equal(also, walk.plain, CLIENTS, steps)
    return walk
