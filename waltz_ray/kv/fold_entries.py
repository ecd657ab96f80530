"""Items, locks and owners put into a partition's tables and removed, with what is kept to find them by. Pure."""

from __future__ import annotations

from waltz_ray.kv.tables import Table, Tables, item_deadline, lock_deadline, name_key

__all__ = ["put_item", "put_lock", "put_owner", "remove"]

_NEVER = bytes(8)


def put_item(tables: Tables, key: bytes, value: bytes) -> None:
    """``value`` of ``tables.item_value``, whatever was there before."""
    before = tables.get(Table.ITEMS, key)
    deadline = item_deadline(value)
    if before is None:
        _name(tables, key)
        tables.marks.live_bytes += len(key) + len(value)
    else:
        tables.marks.live_bytes += len(value) - len(before)
        old = item_deadline(before)
        if old not in (_NEVER, deadline):
            tables.delete(Table.DEADLINES, old + key)
    tables.put(Table.ITEMS, key, value)
    if deadline != _NEVER:
        tables.put(Table.DEADLINES, deadline + key, b"")


def put_lock(tables: Tables, key: bytes, value: bytes) -> None:
    """``value`` of ``tables.lock_value``."""
    _without_lock_deadline(tables, key)
    _count(tables, Table.LOCKS, key, value)
    tables.put(Table.LOCK_DEADLINES, lock_deadline(value) + key, b"")


def put_owner(tables: Tables, key: bytes, value: bytes) -> None:
    """``value`` of ``tables.owner_value``."""
    _count(tables, Table.OWNERS, key, value)


def remove(tables: Tables, table: Table, key: bytes) -> None:
    """An item or a lock, if it is there."""
    before = tables.get(table, key)
    if before is None:
        return
    if table is Table.LOCKS:
        _without_lock_deadline(tables, key)
    else:
        if item_deadline(before) != _NEVER:
            tables.delete(Table.DEADLINES, item_deadline(before) + key)
        _unname(tables, key)
    tables.delete(table, key)
    tables.marks.live_bytes -= len(key) + len(before)


def _count(tables: Tables, table: Table, key: bytes, value: bytes) -> None:
    before = tables.get(table, key)
    tables.marks.live_bytes += len(value) - len(before) if before is not None else len(key) + len(value)
    tables.put(table, key, value)


def _without_lock_deadline(tables: Tables, key: bytes) -> None:
    before = tables.get(Table.LOCKS, key)
    if before is not None:
        tables.delete(Table.LOCK_DEADLINES, lock_deadline(before) + key)


def _name(tables: Tables, key: bytes) -> None:
    """Also under its name."""
    name, key_hash = name_key(key), key[4:8]
    hashes = tables.get(Table.NAMES, name)
    tables.put(Table.NAMES, name, key_hash if hashes is None else hashes + key_hash)


def _unname(tables: Tables, key: bytes) -> None:
    name, key_hash = name_key(key), key[4:8]
    hashes = tables.get(Table.NAMES, name) or b""
    at = hashes.find(key_hash)
    while at % 4 and at >= 0:  # parts of two hashes that lie side by side
        at = hashes.find(key_hash, at + 1)
    left = hashes if at < 0 else hashes[:at] + hashes[at + 4 :]  # there may be many: of clients that give no names
    if left:
        tables.put(Table.NAMES, name, left)
    else:
        tables.delete(Table.NAMES, name)
