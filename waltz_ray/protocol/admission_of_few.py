"""The admission of a few records: one at a time, with plain integers.

It decides what ``admission.admit_columns`` decides (a test compares the two). Columns pay off from a dozen records
on; below that every numpy call costs more than it saves, above all in a server that waits between two turns: its caches
are cold by then, and the columns' way leads through thirty functions of numpy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from waltz_ray.protocol.checksum import crc32
from waltz_ray.protocol.held_failures import LockFailures
from waltz_ray.protocol.locks import NO_CONFLICT, OneByOne
from waltz_ray.protocol.records import AppendBatch, Int64s, RecordBatch, few_records

if TYPE_CHECKING:
    from waltz_ray.protocol.admission import Arrival

__all__ = ["FewAdmitted", "admit_few"]

Hashes = Sequence[int]


class FewAdmitted(NamedTuple):
    """As ``admission.Admitted``."""

    records: RecordBatch | None
    lock_failures: list[LockFailures]
    damaged: list[Arrival]
    estimates: Int64s | None


class _Proposal(NamedTuple):
    sequence_number: int
    mark: int
    header: int
    checksum: int
    data: memoryview


def admit_few(arrivals: list[Arrival], partition_id: int, first_id: int, locks: OneByOne) -> FewAdmitted:
    """Decide every transaction of ``arrivals``; those that pass get IDs from ``first_id`` on."""
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
                locks.update((*write, *append), first_id + len(rows))
            estimates.append(estimate)
            origin = batch.client_id, batch.generation, one.sequence_number
            rows.append((*origin, one.header, one.checksum, one.data))
        if failed:
            numbers, conflicts = zip(*failed, strict=True)
            columns = np.array(numbers, np.int32), np.array(conflicts, np.int64)
            failures.append(LockFailures(arrival.connection_id, batch.client_id, *columns))
    records = few_records(partition_id, first_id, rows) if rows else None
    return FewAdmitted(records, failures, damaged, np.array(estimates, np.int64) if locked and rows else None)


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
