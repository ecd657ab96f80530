"""What a watch of the earliest begins with, where the log was compacted: the items of its snapshots. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from waltz_ray.kv.model import (
    BARRIER,
    Expired,
    Item,
    ItemKey,
    ItemWrite,
    Record,
    Several,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotEnd,
)
from waltz_ray.kv.state import MemoryState
from waltz_ray.kv.tables import Table, item_key_of

__all__ = ["WatchBeginning"]


class WatchBeginning:
    """Of one partition: its log folded up to where everything that is ``wanted`` is known. Only that is kept, until
    then."""

    def __init__(self, wanted: Callable[[ItemKey], bool]) -> None:
        self._wanted = wanted
        self._state = MemoryState("a watch")

    def items(self, transaction_id: int, record: Record) -> Iterable[tuple[ItemKey, Item]] | None:
        """After the next transaction: None if not all is known yet, else all there is as of it, by version; then this
        is over. The first transaction of all needs no beginning."""
        self._state.keep([(transaction_id, 0, self._part(record))])
        if not self._state.whole:
            return None
        return sorted(self._state.items(), key=lambda entry: entry[1].version)

    def _part(self, record: Record) -> Record:
        """What is wanted of it."""
        if isinstance(record, SnapshotChunk):
            items = (each for each in record.items if each.table == Table.ITEMS and self._wanted(item_key_of(each.key)))
            return SnapshotChunk(record.snapshot, tuple(items))
        if isinstance(record, Expired):
            return Expired(tuple(each for each in record.items if self._wanted(each[0])))
        if isinstance(record, Several):
            writes = tuple(each for each in record.writes if self._wanted(each.key))
            return Several(writes) if writes else BARRIER
        if isinstance(record, ItemWrite):
            return record if self._wanted(record.key) else BARRIER
        return record if isinstance(record, SnapshotBegin | SnapshotEnd) else BARRIER
