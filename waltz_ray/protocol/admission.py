"""From what clients propose to what the log takes: coalesce, check data, check locks, give IDs, make record bytes.

All batches that arrived in one turn of the server's loop are admitted together, in arrival order, in pieces of at
most about ``MAX_BATCH_BYTES`` (the best size per fdatasync, FACTS.md "Disk and CPU").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from waltz_ray.protocol.locks import LockRequests, LockTable
from waltz_ray.protocol.records import (
    AppendBatch,
    Int32s,
    Int64s,
    LockColumns,
    RecordBatch,
    build_records,
    first_bad_data,
    offsets_of,
)

__all__ = ["MAX_BATCH_BYTES", "Admitted", "Arrival", "LockFailures", "admit", "pieces"]

MAX_BATCH_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """One client's batch and the connection it came by."""

    connection_id: int
    batch: AppendBatch


@dataclass(frozen=True, slots=True, eq=False)
class LockFailures:
    """Transactions of one connection that failed the lock check, with the conflicting transaction IDs."""

    connection_id: int
    sequence_numbers: Int32s
    conflicts: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class Admitted:
    """``records`` is None when nothing passed."""

    records: RecordBatch | None
    lock_failures: list[LockFailures]
    damaged: list[Arrival]  # the data does not match its checksum: refused whole


def pieces(arrivals: list[Arrival]) -> Iterator[list[Arrival]]:
    """Runs of arrivals of about MAX_BATCH_BYTES (one arrival is never split)."""
    run: list[Arrival] = []
    size = 0
    for arrival in arrivals:
        if run and size + len(arrival.batch.body) > MAX_BATCH_BYTES:
            yield run
            run, size = [], 0
        run.append(arrival)
        size += len(arrival.batch.body)
    if run:
        yield run


def admit(arrivals: list[Arrival], partition_id: int, first_id: int, locks: LockTable) -> Admitted:
    """Decide every transaction of ``arrivals``; those that pass get IDs from ``first_id`` on."""
    damaged = [a for a in arrivals if first_bad_data(a.batch.body, a.batch.lengths, a.batch.checksums) >= 0]
    if damaged:
        arrivals = [a for a in arrivals if a not in damaged]
    if not any(a.batch.has_locks for a in arrivals):
        records = _records(arrivals, None, partition_id, first_id) if arrivals else None
        return Admitted(records, [], damaged)
    verdicts = locks.admit(_lock_requests(arrivals), first_id)
    if verdicts.passed.all():
        return Admitted(_records(arrivals, None, partition_id, first_id), [], damaged)
    failures = _failures(arrivals, verdicts.passed, verdicts.conflicts)
    records = _records(arrivals, verdicts.passed, partition_id, first_id) if verdicts.passed.any() else None
    return Admitted(records, failures, damaged)


def _concatenated(parts: list[Int32s]) -> Int32s:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _records(
    arrivals: list[Arrival], passed: np.ndarray[tuple[int], np.dtype[np.bool_]] | None, partition_id: int, first_id: int
) -> RecordBatch:
    batches = [a.batch for a in arrivals]
    counts = [len(b) for b in batches]
    sequence_numbers = _concatenated([b.sequence_numbers for b in batches])
    headers = _concatenated([b.headers for b in batches])
    lengths = _concatenated([b.lengths for b in batches])
    checksums = np.concatenate([b.checksums for b in batches])
    client_ids = np.repeat(np.array([b.client_id for b in batches], dtype=np.int32), counts)
    generations = np.repeat(np.array([b.generation for b in batches], dtype=np.int32), counts)
    body = batches[0].body if len(batches) == 1 else b"".join([b.body for b in batches])
    if passed is not None:
        bounds = offsets_of(lengths).tolist()
        view = memoryview(body)
        body = b"".join([view[bounds[i] : bounds[i + 1]] for i in np.nonzero(passed)[0].tolist()])
        sequence_numbers, headers, lengths, checksums, client_ids, generations = (
            column[passed] for column in (sequence_numbers, headers, lengths, checksums, client_ids, generations)
        )
    return build_records(
        partition_id, first_id, client_ids, generations, (sequence_numbers, headers, lengths, checksums), body
    )


def _lock_requests(arrivals: list[Arrival]) -> LockRequests:
    batches = [a.batch for a in arrivals]
    return LockRequests(
        np.concatenate([b.client_marks for b in batches]),
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


def _failures(
    arrivals: list[Arrival], passed: np.ndarray[tuple[int], np.dtype[np.bool_]], conflicts: Int64s
) -> list[LockFailures]:
    failures: list[LockFailures] = []
    start = 0
    for arrival in arrivals:
        end = start + len(arrival.batch)
        failed = ~passed[start:end]
        if failed.any():
            sequence_numbers = arrival.batch.sequence_numbers[failed]
            failures.append(LockFailures(arrival.connection_id, sequence_numbers, conflicts[start:end][failed]))
        start = end
    return failures
