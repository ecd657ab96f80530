"""The state of a kv partition in a file: ``kv/state.py`` with the tables of LMDB."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, cast

import lmdb

from waltz_ray.errors import ProjectionFailed
from waltz_ray.kv.fold_clients import Clients
from waltz_ray.kv.model import SECTIONS
from waltz_ray.kv.state import Folded, TableState, apply_records
from waltz_ray.kv.tables import FOLD_VERSION, FoldMarks, Table, Tables
from waltz_ray.projections.projection_file import ProjectionFile

__all__ = ["LmdbState"]

_MARKS = struct.Struct(f">6q?q{2 * SECTIONS}q")
_MARKS_KEY = b"marks"
_NAMES: dict[int, bytes] = {table: table.name.lower().encode() for table in Table}


class _LmdbTables:
    """As one transaction sees them."""

    def __init__(
        self,
        transaction: lmdb.Transaction,
        databases: Mapping[int, Any],
        marks: FoldMarks,
        clients: Clients,
        damaged: Callable[[lmdb.Error], ProjectionFailed],
    ) -> None:
        self.marks = marks
        self.clients = clients
        self._transaction = transaction
        self._databases = databases
        self._damaged = damaged
        self._cursors: dict[int, lmdb.Cursor] = {}  # one is made anew in twice the time it takes to look
        self._get: Callable[..., Any] = transaction.get
        self._put, self._delete = transaction.put, transaction.delete

    def get(self, table: int, key: bytes, /) -> bytes | None:
        try:
            found: bytes | None = self._get(key, None, self._databases[table])
        except lmdb.Error as error:
            raise self._damaged(error) from error
        return found

    def put(self, table: int, key: bytes, value: bytes, /) -> None:
        self._put(key, value, True, True, False, self._databases[table])

    def delete(self, table: int, key: bytes, /) -> None:
        self._delete(key, db=self._databases[table])

    def seek(self, table: int, key: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        try:
            cursor = self._transaction.cursor(self._databases[table])
            if cursor.set_range(key):
                yield from cast("Iterator[tuple[bytes, bytes]]", cursor.iternext())  # no memoryviews: not ``buffers``
        except lmdb.Error as error:
            raise self._damaged(error) from error

    def under(self, table: int, prefix: bytes, limit: int, /) -> list[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        try:
            cursor = self._cursors.get(table)
            if cursor is None:
                cursor = self._cursors[table] = self._transaction.cursor(self._databases[table])
            there = cursor.set_range(prefix)
            while there and (key := cast(bytes, cursor.key())).startswith(prefix):
                found.append((key, cast(bytes, cursor.value())))
                there = len(found) < limit and cursor.next()
        except lmdb.Error as error:
            raise self._damaged(error) from error
        return found

    def clear(self, table: int, /) -> None:
        self._transaction.drop(self._databases[table], delete=False)


class LmdbState(TableState):
    """Partition ``partition`` of ``space`` in ``<directory>/<space>/<partition>.lmdb``.

    ``number``: the partition's in the cluster. ``recovery``: names the recovery from the disks that the cluster has had
    last, "" = none: its log need not be the one that was folded before. Closed by ``close``; if the process ends
    otherwise, the next one goes on from it all the same. StorageLocked if somebody has it open; ProjectionFailed if its
    disk does not take it.
    """

    def __init__(
        self,
        directory: Path,
        cluster_key: str,
        space: str,
        partition: int,
        number: int,
        boot: str | None = None,
        recovery: str = "",
    ) -> None:
        super().__init__(f"space {space!r}, partition {partition}")
        identity: dict[str, str | int] = {
            "cluster": cluster_key,
            "space": space,
            "partition": number,
            "fold": FOLD_VERSION,
        }
        if recovery:
            identity["recovery"] = recovery
        path = directory / space / f"{partition}.lmdb"
        self._file = ProjectionFile(path, identity, _NAMES.values(), boot)
        self._looked_at: _LmdbTables | None = None
        self._marks = FoldMarks()
        self._clients = Clients()
        try:
            self._begin_at_all()
        except BaseException:
            self._file.close()
            raise

    @property
    def tables(self) -> Tables:
        if self._looked_at is None:
            self._looked_at = _LmdbTables(
                self._file.reading(), self._databases, self._marks, self._clients, self._file.damaged
            )
        return self._looked_at

    @property
    def clients(self) -> Clients:
        return self._clients

    @property
    def marks(self) -> FoldMarks:
        return self._marks

    def keep(self, records: Sequence[tuple[int, int, Folded]]) -> None:
        clients: Clients | None = self._clients

        def change(transaction: lmdb.Transaction) -> tuple[FoldMarks, Clients]:
            nonlocal clients
            known = self._kept_clients(transaction) if clients is None else clients
            clients = None  # half changed, if this is called again
            tables = _LmdbTables(transaction, self._databases, copy(self._marks), known, self._file.damaged)
            apply_records(tables, records)
            for key, entry in tables.clients.taken_changes():
                if entry is None:
                    tables.delete(Table.CLIENTS, key)
                else:
                    tables.put(Table.CLIENTS, key, entry)
            transaction.put(_MARKS_KEY, _packed(tables.marks), db=self._file.database(b"meta"))
            return tables.marks, tables.clients

        self._looked_at = None
        try:
            self._marks, self._clients = self._file.write(change)
        except ProjectionFailed as error:
            raise ProjectionFailed(
                f"{self.label}, transactions {records[0][0]} to {records[-1][0]}: {error}"
            ) from error

    def reset(self) -> None:
        self._looked_at = None
        self._file.empty()
        self._begin()

    def close(self) -> None:
        self._looked_at = None
        self._file.close()

    def _begin_at_all(self) -> None:
        try:
            self._begin()
        except (lmdb.Error, struct.error):  # it was opened, and more cannot be read of it
            self.reset()

    def _begin(self) -> None:
        self._databases = {table: self._file.database(name) for table, name in _NAMES.items()}
        transaction = self._file.reading()
        found = transaction.get(_MARKS_KEY, db=self._file.database(b"meta"))
        self._marks = FoldMarks() if found is None else _unpacked(found)
        self._clients = self._kept_clients(transaction)

    def _kept_clients(self, transaction: lmdb.Transaction) -> Clients:
        return Clients(cast("Iterable[tuple[bytes, bytes]]", transaction.cursor(self._databases[Table.CLIENTS])))


def _packed(marks: FoldMarks) -> bytes:
    *numbers, ended, ended_bytes = vars(marks).values()
    return _MARKS.pack(*numbers, *ended, *ended_bytes)


def _unpacked(data: Any) -> FoldMarks:
    numbers: tuple[Any, ...] = _MARKS.unpack(data)
    marks = FoldMarks(*numbers[: -2 * SECTIONS])
    marks.ended, marks.ended_bytes = numbers[-2 * SECTIONS : -SECTIONS], numbers[-SECTIONS:]
    return marks
