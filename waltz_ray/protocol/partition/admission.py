"""From what clients propose to what the log takes: coalesce, check data, check locks, give IDs, make record bytes.

All batches that arrived in one turn of the server's loop are admitted together, in arrival order, in pieces of at
most about ``MAX_BATCH_BYTES``: small enough that client, server and replicas work on different pieces at one time. Nor
has a piece more than ``MAX_BATCH_RECORDS``, however short they are, or more than ``MAX_BATCH_LOCKS``: the loop must not
stand still for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, compress, pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from waltz_ray.protocol.checksum import crc32
from waltz_ray.protocol.locks import NO_CONFLICT, LockRequests, LockTable, OneByOne
from waltz_ray.protocol.partition.held_failures import LockFailures
from waltz_ray.protocol.records import (
    FEW_RECORDS,
    AppendBatch,
    Int32s,
    Int64s,
    LockColumns,
    RecordBatch,
    bad_data,
    build_records,
    few_records,
    offsets_of,
    split,
)
from waltz_ray.protocol.value import value

__all__ = [
    "MAX_BATCH_BYTES",
    "MAX_BATCH_RECORDS",
    "Admitted",
    "Arrival",
    "admit",
    "admit_columns",
    "arrivals",
    "pieces",
]

MAX_BATCH_BYTES = 1024 * 1024
MAX_BATCH_RECORDS = 4096  # what a client sends in one batch by default
MAX_BATCH_LOCKS = 4 * MAX_BATCH_RECORDS
_FEW_LOCKS = 256  # with more, columns are faster for a single record, too

Hashes = Sequence[int]
Integer = TypeVar("Integer", bound=np.integer[Any])


@value(eq=False)
class Arrival:
    """One client's batch and the connection it came by."""

    connection_id: int
    batch: AppendBatch


@value(eq=False)
class Admitted:
    """``records`` is None when nothing passed."""

    records: RecordBatch | None
    lock_failures: list[LockFailures]
    damaged: list[Arrival]  # the data does not match its checksum: refused whole
    estimates: Int64s | None = None  # of each record: the last transaction under one of its locks; None = no locks


def arrivals(connection_id: int, batch: AppendBatch) -> list[Arrival]:
    """``batch``, cut where it has too many records or locks for one piece. Each part has its own fate."""
    if len(batch) <= MAX_BATCH_RECORDS and batch.lock_count <= MAX_BATCH_LOCKS:
        return [Arrival(connection_id, batch)]
    offsets = offsets_of(batch.lengths)
    return [Arrival(connection_id, _part(batch, start, end, offsets)) for start, end in pairwise(_bounds(batch))]


def _bounds(batch: AppendBatch) -> list[int]:
    """Where its parts begin, and its end; one record is never split."""
    bounds, locks = [0], batch.lock_ends
    while (start := bounds[-1]) < len(batch):
        fitting = int(np.searchsorted(locks, locks[start] + MAX_BATCH_LOCKS, side="right")) - 1
        bounds.append(max(start + 1, min(start + MAX_BATCH_RECORDS, fitting, len(batch))))
    return bounds


def _part(batch: AppendBatch, start: int, end: int, offsets: Int64s) -> AppendBatch:
    return AppendBatch(
        batch.client_id,
        batch.generation,
        batch.partition_id,
        batch.sequence_numbers[start:end],
        batch.client_marks[start:end],
        batch.headers[start:end],
        batch.lengths[start:end],
        batch.checksums[start:end],
        memoryview(batch.body)[int(offsets[start]) : int(offsets[end])],
        *(_part_of_locks(locks, start, end) for locks in (batch.write_locks, batch.read_locks, batch.append_locks)),
    )


def _part_of_locks(locks: LockColumns, start: int, end: int) -> LockColumns:
    if not len(locks.hashes):
        return locks
    offsets = locks.offsets[start : end + 1]
    return LockColumns(offsets - offsets[0], locks.hashes[int(offsets[0]) : int(offsets[-1])])


def pieces(arrivals: list[Arrival]) -> Iterator[list[Arrival]]:
    """Runs of arrivals of about MAX_BATCH_BYTES, MAX_BATCH_RECORDS and MAX_BATCH_LOCKS (none of them is split)."""
    run: list[Arrival] = []
    size = count = locks = 0
    for arrival in arrivals:
        batch = arrival.batch
        size += len(batch.body)
        count += len(batch.lengths)
        locks += batch.lock_count
        if run and (size > MAX_BATCH_BYTES or count > MAX_BATCH_RECORDS or locks > MAX_BATCH_LOCKS):
            yield run
            run, size, count, locks = [], len(batch.body), len(batch.lengths), batch.lock_count
        run.append(arrival)
    if run:
        yield run


def admit(arrivals: list[Arrival], partition_id: int, first_id: int, locks: LockTable) -> Admitted:
    """Decide every transaction of ``arrivals``; those that pass get IDs from ``first_id`` on."""
    few = sum(len(arrival.batch.lengths) for arrival in arrivals) <= FEW_RECORDS
    if few and sum(arrival.batch.lock_count for arrival in arrivals) <= _FEW_LOCKS:
        return _admit_few(arrivals, partition_id, first_id, OneByOne(locks))
    return admit_columns(arrivals, partition_id, first_id, locks)


def admit_columns(arrivals: list[Arrival], partition_id: int, first_id: int, locks: LockTable) -> Admitted:
    """``admit`` for many records: no work in Python for each."""
    proposals = _Proposals(arrivals)
    damaged = proposals.damaged()
    if len(damaged) == len(arrivals):
        return Admitted(None, [], damaged)
    if damaged:
        proposals = _Proposals([a for a in arrivals if a not in damaged])
    if not any(a.batch.has_locks for a in proposals.arrivals):
        return Admitted(proposals.records(partition_id, first_id), [], damaged)
    verdicts = locks.admit(_lock_requests(proposals.arrivals), first_id)
    if verdicts.passed.all():
        return Admitted(proposals.records(partition_id, first_id), [], damaged, verdicts.conflicts)
    failures = _failures(proposals.arrivals, verdicts.passed, verdicts.conflicts)
    records = proposals.records(partition_id, first_id, verdicts.passed) if verdicts.passed.any() else None
    return Admitted(records, failures, damaged, verdicts.conflicts[verdicts.passed])


class _Proposal(NamedTuple):
    sequence_number: int
    mark: int
    header: int
    checksum: int
    data: memoryview


def _admit_few(arrivals: list[Arrival], partition_id: int, first_id: int, locks: OneByOne) -> Admitted:
    """``admit`` for a few records: one at a time, with plain integers.

    Columns pay off from a dozen records on; below that every numpy call costs more than it saves, above all in a server
    that waits between two turns: its caches are cold by then, and the columns' way leads through thirty functions.
    """
    rows: list[tuple[int, int, int, int, int, memoryview]] = []
    failures: list[LockFailures] = []
    damaged: list[Arrival] = []
    estimates: list[int] = []
    locked = False
    for arrival in arrivals:
        batch = arrival.batch
        proposals = list(_proposals(batch))
        if any(crc32(one.data) != one.checksum for one in proposals):
            damaged.append(arrival)
            continue
        failed: list[tuple[int, int]] = []
        wanted = _locks_of(batch)
        locked = locked or wanted is not None
        for index, one in enumerate(proposals):
            estimate = NO_CONFLICT
            if wanted is not None:
                write, read, append = wanted[index]
                estimate = locks.estimate((*write, *read))
                if estimate > one.mark:
                    failed.append((one.sequence_number, estimate))
                    continue
                if write or append:
                    locks.update((*write, *append), first_id + len(rows))
            estimates.append(estimate)
            origin = batch.client_id, batch.generation, one.sequence_number
            rows.append((*origin, one.header, one.checksum, one.data))
        if failed:
            numbers, conflicts = zip(*failed, strict=True)
            columns = np.array(numbers, np.int32), np.array(conflicts, np.int64)
            failures.append(LockFailures(arrival.connection_id, batch.client_id, *columns))
    records = few_records(partition_id, first_id, rows) if rows else None
    return Admitted(records, failures, damaged, np.array(estimates, np.int64) if locked and rows else None)


def _proposals(batch: AppendBatch) -> Iterator[_Proposal]:
    body, start = memoryview(batch.body), 0
    columns = (batch.sequence_numbers, batch.client_marks, batch.headers, batch.checksums, batch.lengths)
    for number, mark, header, checksum, length in zip(*(column.tolist() for column in columns), strict=True):
        yield _Proposal(number, mark, header, checksum, body[start : start + length])
        start += length


def _locks_of(batch: AppendBatch) -> list[tuple[Hashes, Hashes, Hashes]] | None:
    """The (write, read, append) lock hashes of each transaction; None if there are none at all."""
    if not batch.has_locks:
        return None
    kinds = (batch.write_locks, batch.read_locks, batch.append_locks)
    return list(zip(*(columns.of_each(len(batch)) for columns in kinds), strict=True))


class _Proposals:
    """The columns of several batches as one, and the data of each transaction."""

    def __init__(self, arrivals: list[Arrival]) -> None:
        self.arrivals = arrivals
        batches = [a.batch for a in arrivals]
        self._parts = list(chain.from_iterable(split(b.body, b.lengths) for b in batches))
        self._checksums = _concatenated([b.checksums for b in batches])

    def damaged(self) -> list[Arrival]:
        """Those with data that differs from its checksum."""
        bad = bad_data(self._parts, self._checksums)
        if not bad:
            return []
        ends = np.cumsum([len(a.batch) for a in self.arrivals])
        return [self.arrivals[i] for i in np.unique(np.searchsorted(ends, bad, side="right")).tolist()]

    def records(self, partition_id: int, first_id: int, passed: npt.NDArray[np.bool_] | None = None) -> RecordBatch:
        """Of all, or of those that have passed."""
        batches = [a.batch for a in self.arrivals]
        columns = (
            _concatenated([b.sequence_numbers for b in batches]),
            _concatenated([b.headers for b in batches]),
            _concatenated([b.lengths for b in batches]),
            self._checksums,
        )
        parts = self._parts
        if len(batches) == 1:
            client_ids: Int32s | int = batches[0].client_id
            generations: Int32s | int = batches[0].generation
        else:
            counts = [len(b) for b in batches]
            client_ids = np.repeat(np.array([b.client_id for b in batches], dtype=np.int32), counts)
            generations = np.repeat(np.array([b.generation for b in batches], dtype=np.int32), counts)
        if passed is not None:
            parts = list(compress(parts, passed.tolist()))
            columns = (columns[0][passed], columns[1][passed], columns[2][passed], columns[3][passed])
            if not isinstance(client_ids, int) and not isinstance(generations, int):
                client_ids, generations = client_ids[passed], generations[passed]
        return build_records(partition_id, first_id, client_ids, generations, columns, parts)


def _concatenated(parts: list[npt.NDArray[Integer]]) -> npt.NDArray[Integer]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _lock_requests(arrivals: list[Arrival]) -> LockRequests:
    batches = [a.batch for a in arrivals]
    return LockRequests(
        _concatenated([b.client_marks for b in batches]),
        _joined([(b.write_locks, len(b)) for b in batches]),
        _joined([(b.read_locks, len(b)) for b in batches]),
        _joined([(b.append_locks, len(b)) for b in batches]),
    )


def _joined(columns: list[tuple[LockColumns, int]]) -> LockColumns:
    """The lock columns of several batches (with their numbers of transactions) as one."""
    if not any(len(c.hashes) for c, _ in columns):
        return LockColumns()
    if len(columns) == 1:
        return columns[0][0]
    counts = [np.diff(c.offsets) if len(c.hashes) else np.zeros(n, dtype=np.int32) for c, n in columns]
    offsets = offsets_of(np.concatenate(counts)).astype(np.int32)
    return LockColumns(offsets, np.concatenate([c.hashes for c, _ in columns]))


def _failures(arrivals: list[Arrival], passed: npt.NDArray[np.bool_], conflicts: Int64s) -> list[LockFailures]:
    failures: list[LockFailures] = []
    start = 0
    for arrival in arrivals:
        end = start + len(arrival.batch)
        failed = ~passed[start:end]
        if failed.any():
            sequence_numbers = arrival.batch.sequence_numbers[failed]
            conflicting = conflicts[start:end][failed]
            failures.append(LockFailures(arrival.connection_id, arrival.batch.client_id, sequence_numbers, conflicting))
        start = end
    return failures
