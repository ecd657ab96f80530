"""(state, transaction) -> state: what each record of a kv space does to a partition's tables. Pure.

A fold may begin with the log's first transaction or with any other: once a snapshot of each section that was begun
since has ended, both come to the same, and ``FoldMarks.whole`` says so. What makes it so, while a snapshot is open or
the fold is not whole:

- A chunk says how an entry was at some time after the begin, and comes later. So nothing newer is replaced by it, and
  what was removed since (a tombstone) is remembered: by a fold that is whole from the begin to the end, by another one
  from where it began until it is.
- Some records change an entry only if it is as they say (Touch, Expired, a lock's renewal, Unlock, Release). A fold
  that is not whole may not have the entry yet. They are *deferred* as well: done to what the chunk brings.
- What is known of a client's requests is merged: the larger of its marks, and the union of what is not settled.

Chunks of any other snapshot than the open one count for nothing; the next begin abandons one that has not ended.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

from waltz_ray.kv.fold_clients import Clients, last_write_ms, refused_number
from waltz_ray.kv.fold_entries import put_item, put_lock, put_owner, remove
from waltz_ray.kv.model import (
    SECTIONS,
    Delete,
    Expired,
    ItemKey,
    Lock,
    LockHeld,
    Own,
    Ownership,
    Record,
    Release,
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
from waltz_ray.kv.records import SetRow, decode_record, encode_record
from waltz_ray.kv.tables import (
    FoldMarks,
    Table,
    Tables,
    changed_at,
    item_key,
    item_of,
    item_value,
    lock_key,
    lock_of,
    lock_value,
    number,
    owner_value,
    ownership_of,
    unit_key,
)

__all__ = [
    "chunk_counts",
    "fold",
    "fold_sets",
    "has_expired",
    "is_deferred",
    "is_had_under",
    "is_news",
    "is_whole",
    "keeps_tombstones",
    "lets_go",
    "needed_from",
]

_ASKED_FOR = (Set, Delete, Touch, Lock, Unlock, WriteRefused)  # by clients
_DEFERRED = struct.Struct(">qI")


# ---- rules


def is_news(stored: bytes | None, tombstone: bytes | None, version: int) -> bool:
    """Does a chunk's entry of that version count, beside what is stored and what was removed since?"""
    newer_is_there = stored is not None and changed_at(stored) >= version
    was_removed = tombstone is not None and changed_at(tombstone) >= version
    return not newer_is_there and not was_removed


def chunk_counts(marks: FoldMarks, snapshot: int) -> bool:
    """Is that the snapshot which was begun last, and has not ended?"""
    return marks.begun >= 0 and snapshot == marks.begun


def is_whole(marks: FoldMarks) -> bool:
    """At a snapshot's end: is now every section known?"""
    return marks.whole or needed_from(marks) >= 0


def needed_from(marks: FoldMarks) -> int:
    """A fold that begins there comes to the same: the oldest of the sections' last snapshots. -1: with the log."""
    return min(marks.ended)


def keeps_tombstones(marks: FoldMarks) -> bool:
    """Must be remembered what is removed?"""
    return marks.begun >= 0 or not marks.whole


def is_deferred(tables: Tables, table: Table, key: bytes, stored: bytes | None) -> bool:
    """May a chunk still bring what a record is about?"""
    if not keeps_tombstones(tables.marks):
        return False
    place = _place(table, key)
    if tables.get(Table.DEFERRED, place) is not None:
        return True
    return stored is None and tables.get(Table.TOMBSTONES, place) is None


def has_expired(stored: bytes, version: int) -> bool:
    """Is it still the item that the owner has seen expire?"""
    return changed_at(stored) == version


def is_had_under(held: LockHeld, code: int) -> bool:
    """Has the lock gone to nobody else since?"""
    return held.code == code


def lets_go(owner: Ownership, release: Release) -> bool:
    """Is it the owner who releases, and not one before him?"""
    return (owner.actor, owner.incarnation, owner.epoch) == (release.actor, release.incarnation, release.epoch)


# ---- records


def fold(tables: Tables, transaction_id: int, record: Record) -> None:
    """Change ``tables`` as ``record`` says. Does not move the mark."""
    if isinstance(record, Set):
        key = item_key(record.key)
        value = item_value(transaction_id, record.type, record.deadline_ms, record.map_name, record.data)
        put_item(tables, key, value)
        _settle(tables, Table.ITEMS, key)
    elif isinstance(record, Delete):
        _removed(tables, transaction_id, Table.ITEMS, item_key(record.key))
    elif isinstance(record, Touch):
        _touch(tables, transaction_id, record)
    elif isinstance(record, Several):
        for write in record.writes:
            fold(tables, transaction_id, write)
    elif isinstance(record, Expired):
        for item, version in record.items:
            _expire(tables, transaction_id, item, version)
    elif isinstance(record, Lock):
        _lock(tables, transaction_id, record)
    elif isinstance(record, Unlock):
        _unlock(tables, transaction_id, record)
    elif isinstance(record, Own):
        _own(tables, transaction_id, record)
    elif isinstance(record, Release):
        _release(tables, transaction_id, record)
    elif isinstance(record, SnapshotBegin):
        _begin(tables, transaction_id, record.sections)
    elif isinstance(record, SnapshotChunk):
        if chunk_counts(tables.marks, record.snapshot):
            for entry in record.items:
                _restore(tables, entry)
    elif isinstance(record, SnapshotEnd) and chunk_counts(tables.marks, record.snapshot):
        _end(tables)
    if isinstance(record, _ASKED_FOR):
        if record.at_ms:
            _time_was(tables.marks, tables.clients, record.at_ms)
        if record.request.client:
            number = refused_number(record.code, record.version) if isinstance(record, WriteRefused) else transaction_id
            tables.marks.live_bytes += tables.clients.remember(record.request, number, record.at_ms)


def fold_sets(tables: Tables, transaction_id: int, rows: Sequence[SetRow]) -> None:
    """``fold`` of a transaction of sets, as ``records.set_rows`` has them: what costs actors most while many write."""
    version, marks, clients = number(transaction_id), tables.marks, tables.clients
    last_ms, chunks_may_come = 0, keeps_tombstones(marks)
    for key, item, client, sequence, settled, at_ms in rows:
        put_item(tables, key, version + item)
        if chunks_may_come:
            _settle(tables, Table.ITEMS, key)
        if at_ms != last_ms:  # they were decided together
            last_ms = at_ms
            _time_was(marks, clients, at_ms)
        if client:
            marks.live_bytes += clients.remember((client, sequence, settled), transaction_id, at_ms)


def _time_was(marks: FoldMarks, clients: Clients, at_ms: int) -> None:
    """When something was decided, by the clock of who decided it."""
    marks.newest_ms = max(marks.newest_ms, at_ms)
    marks.live_bytes += clients.forget_idle(at_ms)


def _touch(tables: Tables, transaction_id: int, record: Touch) -> None:
    key = item_key(record.key)
    stored = _seen(tables, transaction_id, Table.ITEMS, key, record)
    if stored is not None:
        item = item_of(stored)
        put_item(tables, key, item_value(transaction_id, item.type, record.deadline_ms, item.map_name, item.data))


def _expire(tables: Tables, transaction_id: int, item: ItemKey, version: int) -> None:
    key = item_key(item)
    stored = _seen(tables, transaction_id, Table.ITEMS, key, Expired(((item, version),)))
    if stored is not None and has_expired(stored, version):
        _removed(tables, transaction_id, Table.ITEMS, key)


def _lock(tables: Tables, transaction_id: int, record: Lock) -> None:
    key = lock_key(record.name)
    if not record.renewed:
        put_lock(tables, key, lock_value(transaction_id, transaction_id << 16 | record.random, record.deadline_ms))
        _settle(tables, Table.LOCKS, key)
        return
    stored = _seen(tables, transaction_id, Table.LOCKS, key, record)
    if stored is not None and is_had_under(lock_of(stored), record.renewed):
        put_lock(tables, key, lock_value(transaction_id, record.renewed, record.deadline_ms))


def _unlock(tables: Tables, transaction_id: int, record: Unlock) -> None:
    key = lock_key(record.name)
    stored = _seen(tables, transaction_id, Table.LOCKS, key, record)
    if stored is not None and is_had_under(lock_of(stored), record.code):
        _removed(tables, transaction_id, Table.LOCKS, key)


def _own(tables: Tables, transaction_id: int, record: Own) -> None:
    key = unit_key(record.unit)
    owner = Ownership(record.actor, record.incarnation, record.epoch, transaction_id)
    put_owner(tables, key, owner_value(transaction_id, owner))
    _settle(tables, Table.OWNERS, key)


def _release(tables: Tables, transaction_id: int, record: Release) -> None:
    key = unit_key(record.unit)
    stored = _seen(tables, transaction_id, Table.OWNERS, key, record)
    if stored is None:  # of a finer unit, which nobody has had yet
        owner = Ownership(record.actor, record.incarnation, record.epoch, transaction_id, released=True)
    else:
        owner = ownership_of(stored)
        if not lets_go(owner, record):
            return
        owner = Ownership(owner.actor, owner.incarnation, owner.epoch, owner.version, released=True)
    put_owner(tables, key, owner_value(transaction_id, owner))


# ---- snapshots


def _begin(tables: Tables, transaction_id: int, sections: int) -> None:
    marks = tables.marks
    marks.begun, marks.begun_sections, marks.begun_bytes = transaction_id, sections, marks.log_bytes
    _forget_removed(tables)  # since an abandoned one began


def _end(tables: Tables) -> None:
    marks = tables.marks
    ended, ended_bytes = list(marks.ended), list(marks.ended_bytes)
    for section in range(SECTIONS):
        if marks.begun_sections >> section & 1:
            ended[section], ended_bytes[section] = marks.begun, marks.begun_bytes
    marks.ended, marks.ended_bytes = tuple(ended), tuple(ended_bytes)
    marks.begun, marks.begun_sections = -1, 0
    marks.whole = is_whole(marks)
    _forget_removed(tables)


def _forget_removed(tables: Tables) -> None:
    """No chunk that counts can be from before it was removed."""
    if tables.marks.whole:
        tables.clear(Table.TOMBSTONES)
        tables.clear(Table.DEFERRED)


def _restore(tables: Tables, entry: SnapshotItem) -> None:
    """What a chunk says of one entry."""
    table, key, data, version = entry
    if table == Table.CLIENTS:
        tables.marks.live_bytes += tables.clients.merge(key, data)
        tables.marks.newest_ms = max(tables.marks.newest_ms, last_write_ms(data))
        return
    place = _place(table, key)
    deferred = tables.get(Table.DEFERRED, place)
    stored = tables.get(table, key) if deferred is None else None  # what is deferred was done to nothing that counts
    if not is_news(stored, tables.get(Table.TOMBSTONES, place), version):
        return
    _PUTS[table](tables, key, number(version) + data)
    if deferred is not None:
        tables.delete(Table.DEFERRED, place)
        for transaction_id, record in _parted(deferred):
            if transaction_id > version:
                fold(tables, transaction_id, record)


_PUTS: dict[int, Callable[[Tables, bytes, bytes], None]] = {
    Table.ITEMS: put_item,
    Table.LOCKS: put_lock,
    Table.OWNERS: put_owner,
}


def _place(table: int, key: bytes) -> bytes:
    return bytes((table,)) + key


def _seen(tables: Tables, transaction_id: int, table: Table, key: bytes, record: Record) -> bytes | None:
    """What is stored, for a record that changes it only if it is there; which is deferred if that may still come."""
    stored = tables.get(table, key)
    if is_deferred(tables, table, key, stored):
        place = _place(table, key)
        data = encode_record(record)
        before = tables.get(Table.DEFERRED, place) or b""
        tables.put(Table.DEFERRED, place, before + _DEFERRED.pack(transaction_id, len(data)) + data)
    return stored


def _parted(deferred: bytes) -> Iterator[tuple[int, Record]]:
    position = 0
    while position < len(deferred):
        transaction_id, length = _DEFERRED.unpack_from(deferred, position)
        position += _DEFERRED.size
        yield transaction_id, decode_record(deferred[position : position + length])
        position += length


def _settle(tables: Tables, table: Table, key: bytes) -> None:
    """Whatever a chunk brings of it will be older."""
    if keeps_tombstones(tables.marks):
        tables.delete(Table.DEFERRED, _place(table, key))


def _removed(tables: Tables, transaction_id: int, table: Table, key: bytes) -> None:
    remove(tables, table, key)
    if keeps_tombstones(tables.marks):
        _settle(tables, table, key)
        tables.put(Table.TOMBSTONES, _place(table, key), number(transaction_id))
