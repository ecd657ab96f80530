"""The state of a kv partition as its owner asks for it, and one in memory. Pure.

``KvState`` is what a keeper sees; ``TableState`` answers it from any ``Tables``; ``MemoryState`` has these in memory,
for tests, the simulation and Spark's tasks; ``projections/kv_state.py`` has them in a file. The last two are equal to
whoever asks: one test runs over both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Protocol

from waltz_ray.errors import ProjectionFailed, WireError
from waltz_ray.kv.fold import fold, fold_sets, needed_from
from waltz_ray.kv.fold_clients import Clients
from waltz_ray.kv.model import (
    ALL_SECTIONS,
    SECTIONS,
    Item,
    ItemKey,
    LockHeld,
    Ownership,
    Record,
    SnapshotChunk,
    SnapshotItem,
)
from waltz_ray.kv.records import SetRow, decode_record, set_rows
from waltz_ray.kv.routing import Unit
from waltz_ray.kv.tables import (
    CHANGED_BYTES,
    FoldMarks,
    Table,
    Tables,
    changed_at,
    item_key,
    item_key_of,
    item_of,
    key_in_sections,
    lock_key,
    lock_name,
    lock_of,
    name_key,
    ownership_of,
    section_of,
    unit_key,
)

__all__ = ["Folded", "KvState", "MemoryState", "TableState", "apply_records"]

Folded = Record | list[SetRow]
"""What a transaction says, as it is folded."""

_RECORD_BYTES = 40  # of the log, beside a record's data
_PAGE_BYTES = 256 * 1024
_ANY_BYTES = 1 << 62


class KvState(Protocol):
    """One partition, up to and including the transaction ``mark``. For one thread."""

    @property
    def mark(self) -> int:
        """The last transaction folded, -1: none."""

    @property
    def whole(self) -> bool:
        """Is everything known? Not so if the first transaction folded was not the log's first, until a snapshot of each
        section that was begun after it has ended."""

    @property
    def snapshot_begun(self) -> int:
        """The begin of the snapshot that is open, -1: none."""

    @property
    def needed_from(self) -> int:
        """The log before this transaction, the oldest of the begins of the sections' last whole snapshots, is not
        needed any more. -1: all of it is."""

    def oldest_sections(self, count: int) -> int:
        """So many, a bit for each: those that have no whole snapshot first, then those whose is the oldest."""

    @property
    def live_bytes(self) -> int:
        """Of the state: about what a snapshot of all its sections takes in the log."""

    @property
    def tail_bytes(self) -> int:
        """Of the log, but for chunks, from where it is needed on."""

    @property
    def since_snapshot_bytes(self) -> int:
        """The same from the begin of the last whole snapshot on, of whatever section; an abandoned one is none."""

    @property
    def newest_ms(self) -> int:
        """The latest time at which a client's write was decided, milliseconds since 1970, 0: none. After a snapshot,
        to the minute."""

    def item(self, key: ItemKey) -> Item | None:
        """Also if its deadline is over."""

    def items_of_hash(self, map_hash: int, key_hash: int, limit: int = 2) -> list[tuple[ItemKey, Item]]:
        """The first ``limit`` by name, also expired ones."""

    def scan(
        self, map_hash: int, prefix: bytes, after: bytes, limit: int, most_bytes: int = _ANY_BYTES
    ) -> list[tuple[ItemKey, Item]]:
        """By name, names above ``after``; from the first if that is empty. Also expired items. No more once their
        values have ``most_bytes``.

        It may be more than ``limit``: items of one name (with odd hashes) are not parted, and one without a name is
        not counted, so that the last name is always a place to go on from.
        """

    def lock(self, name: bytes) -> LockHeld | None:
        """Also if its deadline is over."""

    def ownership(self, unit: Unit) -> Ownership | None: ...

    def request(self, client: int, sequence: int) -> int | None:
        """The version that this write got, or the number of its refusal (``fold_clients.refusal_of``); None: it is not
        known, or settled, or forgotten."""

    def settled(self, client: int) -> int:
        """All its writes below this one have their answers, and nothing is remembered of them; 0: it is not known."""

    def expired(self, now_ms: int, limit: int) -> list[tuple[ItemKey, int]]:
        """Items whose deadline is ``now_ms`` or earlier, and their versions; the earliest first."""

    def expired_locks(self, now_ms: int, limit: int) -> list[tuple[bytes, int]]:
        """Locks whose deadline is ``now_ms`` or earlier, and their codes; the earliest first."""

    def apply(self, transactions: Iterable[tuple[int, bytes]]) -> None:
        """Fold these, (ID, data), which follow the mark; all of them and the mark, or nothing.

        A state that has nothing may begin with any transaction, see ``whole``. ProjectionFailed, naming partition and
        ID, for one that does not follow, for data that is no record, and if it cannot be kept.
        """

    def reset(self) -> None:
        """Forget everything: the log begins behind the mark now."""

    def snapshot_items(self, sections: int = ALL_SECTIONS) -> Iterator[SnapshotItem]:
        """These sections, a bit for each, for chunks of the snapshot that is open: begin only after its begin is
        folded.

        ``apply`` may be called meanwhile. Each entry is as it was at some time after the begin, not all at the same: a
        fold needs no more, because it replaces nothing newer.
        """

    def close(self) -> None: ...


class TableState(ABC):
    """A ``KvState`` of tables. ``label`` says whose it is, in errors."""

    page_entries = 1024
    """So many entries of a snapshot are looked at together."""

    def __init__(self, label: str) -> None:
        self.label = label

    @property
    @abstractmethod
    def tables(self) -> Tables:
        """To look at, until something is applied."""

    @abstractmethod
    def keep(self, records: Sequence[tuple[int, int, Folded]]) -> None:
        """Do ``apply_records`` with these, in one transaction."""

    @property
    @abstractmethod
    def clients(self) -> Clients:
        """To look at."""

    @property
    @abstractmethod
    def marks(self) -> FoldMarks:
        """To look at."""

    @property
    def mark(self) -> int:
        return self.marks.mark

    @property
    def whole(self) -> bool:
        return self.marks.whole

    @property
    def snapshot_begun(self) -> int:
        return self.marks.begun

    @property
    def needed_from(self) -> int:
        return needed_from(self.marks)

    def oldest_sections(self, count: int) -> int:
        by_age = sorted(range(SECTIONS), key=self.marks.ended.__getitem__)
        return sum(1 << section for section in by_age[:count])

    @property
    def live_bytes(self) -> int:
        return self.marks.live_bytes

    @property
    def tail_bytes(self) -> int:
        return self.marks.log_bytes - min(self.marks.ended_bytes)

    @property
    def since_snapshot_bytes(self) -> int:
        return self.marks.log_bytes - max(self.marks.ended_bytes)

    @property
    def newest_ms(self) -> int:
        return self.marks.newest_ms

    def item(self, key: ItemKey) -> Item | None:
        value = self.tables.get(Table.ITEMS, item_key(key))
        return None if value is None else item_of(value)

    def items(self) -> Iterator[tuple[ItemKey, Item]]:
        """All of them, also expired ones; nothing may be applied meanwhile."""
        for key, value in self.tables.seek(Table.ITEMS, b""):
            yield item_key_of(key), item_of(value)

    def items_of_hash(self, map_hash: int, key_hash: int, limit: int = 2) -> list[tuple[ItemKey, Item]]:
        first = item_key(ItemKey(map_hash, key_hash, b""))
        return [(item_key_of(key), item_of(value)) for key, value in self.tables.under(Table.ITEMS, first, limit)]

    def scan(
        self, map_hash: int, prefix: bytes, after: bytes, limit: int, most_bytes: int = _ANY_BYTES
    ) -> list[tuple[ItemKey, Item]]:
        wanted, passed = (name_key(item_key(ItemKey(map_hash, 0, name))) for name in (prefix, after))
        found: list[tuple[ItemKey, Item]] = []
        counted = size = 0
        for key, hashes in self.tables.seek(Table.NAMES, max(wanted, passed)):
            if not key.startswith(wanted) or counted >= limit or (counted and size >= most_bytes):
                break
            if after and key == passed:
                continue
            name = key[4:]
            for at in range(0, len(hashes), 4):
                item = ItemKey(map_hash, int.from_bytes(hashes[at : at + 4], "big"), name)
                value = self.tables.get(Table.ITEMS, item_key(item))
                assert value is not None, f"{self.label}: {item} has a name, and is not there"
                found.append((item, item_of(value)))
                counted += name != b""
                size += len(found[-1][1].data)
        return found

    def lock(self, name: bytes) -> LockHeld | None:
        value = self.tables.get(Table.LOCKS, lock_key(name))
        return None if value is None else lock_of(value)

    def ownership(self, unit: Unit) -> Ownership | None:
        value = self.tables.get(Table.OWNERS, unit_key(unit))
        return None if value is None else ownership_of(value)

    def request(self, client: int, sequence: int) -> int | None:
        return self.clients.request(client, sequence)

    def settled(self, client: int) -> int:
        return self.clients.settled(client)

    def expired(self, now_ms: int, limit: int) -> list[tuple[ItemKey, int]]:
        found = []
        for key in self._over(Table.DEADLINES, now_ms, limit):
            value = self.tables.get(Table.ITEMS, key)
            assert value is not None, f"{self.label}: {key!r} has a deadline, and is not there"
            found.append((item_key_of(key), changed_at(value)))
        return found

    def expired_locks(self, now_ms: int, limit: int) -> list[tuple[bytes, int]]:
        found = []
        for key in self._over(Table.LOCK_DEADLINES, now_ms, limit):
            value = self.tables.get(Table.LOCKS, key)
            assert value is not None, f"{self.label}: lock {key!r} has a deadline, and is not there"
            found.append((lock_name(key), lock_of(value).code))
        return found

    def _over(self, table: Table, now_ms: int, limit: int) -> list[bytes]:
        """Keys behind the deadlines up to now."""
        last = now_ms.to_bytes(8, "big")
        found = takewhile(lambda entry: entry[0][:8] <= last, self.tables.seek(table, b""))
        return [key[8:] for key, _ in islice(found, limit)]

    def apply(self, transactions: Iterable[tuple[int, bytes]]) -> None:
        records: list[tuple[int, int, Folded]] = []
        mark = self.mark
        for transaction_id, data in transactions:
            try:
                record = set_rows(data) or decode_record(data)
            except WireError as error:
                raise ProjectionFailed(
                    f"{self.label}: transaction {transaction_id} is no kv record: {error}; who has appended it there?"
                ) from None
            if transaction_id != mark + 1 and mark >= 0:
                raise ProjectionFailed(
                    f"{self.label}: transaction {transaction_id} does not follow {mark}, the last that was folded"
                )
            records.append((transaction_id, len(data), record))
            mark = transaction_id
        if records:
            self.keep(records)

    def snapshot_items(self, sections: int = ALL_SECTIONS) -> Iterator[SnapshotItem]:
        if sections >> section_of(Table.OWNERS, b"") & 1:  # locks and clients are in the same
            yield from self._entries(Table.OWNERS)
            yield from self._entries(Table.LOCKS)
            for client, entry in self.clients.entries():
                yield SnapshotItem(Table.CLIENTS, client, entry, self.mark)
        start = key_in_sections(b"", sections)
        while start is not None:
            page, behind = self._page(Table.ITEMS, start, sections)
            yield from page
            start = None if behind is None else key_in_sections(behind, sections)

    def _entries(self, table: Table) -> Iterator[SnapshotItem]:
        start: bytes | None = b""
        while start is not None:
            page, start = self._page(table, start, ALL_SECTIONS)
            yield from page

    def _page(self, table: Table, start: bytes, sections: int) -> tuple[list[SnapshotItem], bytes | None]:
        """Entries from ``start`` on, up to one of another section, and where to go on; None: there are no more."""
        found: list[SnapshotItem] = []
        size = 0
        for key, value in self.tables.seek(table, start):
            if len(found) == self.page_entries or size >= _PAGE_BYTES or not sections >> section_of(table, key) & 1:
                return found, key
            found.append(SnapshotItem(table, key, value[CHANGED_BYTES:], changed_at(value)))
            size += len(value)
        return found, None


def apply_records(tables: Tables, records: Sequence[tuple[int, int, Folded]]) -> None:
    """Fold (ID, bytes of its data, what it says), and move the marks."""
    marks = tables.marks
    if marks.mark < 0 and records[0][0] > 0:
        marks.whole = False
    for transaction_id, size, record in records:
        if isinstance(record, list):
            fold_sets(tables, transaction_id, record)
        else:
            fold(tables, transaction_id, record)
        if not isinstance(record, SnapshotChunk):
            marks.log_bytes += size + _RECORD_BYTES
    marks.mark = records[-1][0]


class _MemoryTables:
    """Tables in dicts; what is sought is sorted when it is."""

    def __init__(self) -> None:
        self.marks = FoldMarks()
        self.clients = Clients()
        self._entries: dict[int, dict[bytes, bytes]] = {table: {} for table in Table}
        self._sorted: dict[int, list[bytes]] = {}

    def get(self, table: int, key: bytes, /) -> bytes | None:
        return self._entries[table].get(key)

    def put(self, table: int, key: bytes, value: bytes, /) -> None:
        entries = self._entries[table]
        if key not in entries:
            self._sorted.pop(table, None)
        entries[key] = value

    def delete(self, table: int, key: bytes, /) -> None:
        if self._entries[table].pop(key, None) is not None:
            self._sorted.pop(table, None)

    def seek(self, table: int, key: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        entries = self._entries[table]
        keys = self._sorted.get(table)
        if keys is None:
            keys = self._sorted[table] = sorted(entries)
        for at in range(bisect_left(keys, key), len(keys)):
            yield keys[at], entries[keys[at]]

    def under(self, table: int, prefix: bytes, limit: int, /) -> list[tuple[bytes, bytes]]:
        return [*islice(takewhile(lambda entry: entry[0].startswith(prefix), self.seek(table, prefix)), limit)]

    def clear(self, table: int, /) -> None:
        self._entries[table].clear()
        self._sorted.pop(table, None)


class MemoryState(TableState):
    """In memory, gone with it."""

    def __init__(self, label: str = "a kv partition in memory") -> None:
        super().__init__(label)
        self._tables = _MemoryTables()

    @property
    def tables(self) -> Tables:
        return self._tables

    @property
    def clients(self) -> Clients:
        return self._tables.clients

    @property
    def marks(self) -> FoldMarks:
        return self._tables.marks

    def keep(self, records: Sequence[tuple[int, int, Folded]]) -> None:
        apply_records(self._tables, records)

    def reset(self) -> None:
        self._tables = _MemoryTables()

    def close(self) -> None:
        pass
