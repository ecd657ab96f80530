"""Whether the replicas of a cluster hold the same log, from their directories alone (``waltz verify`` of a cluster's).

A copy may end before the others do (its replica was away) without anything being wrong, and records above its own
local low-water mark may even be other ones, if it has not heard of the newest session: they were never committed and
are cut when it joins again. What may not be: two copies that both claim other records, and a committed transaction
that fewer than a quorum hold. What was committed is known from the low-water marks in the control files; whatever a
quorum holds may have been.

Contents are compared by digests of blocks of records, made while the directories are verified, and record by record
where two digests differ or where a copy ends inside a block.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from waltz_ray.protocol.ids import NO_SESSION
from waltz_ray.protocol.records import Int64s
from waltz_ray.storage.control_file import ControlEntry
from waltz_ray.storage.disk import Disk
from waltz_ray.storage.layout import HEADER_BYTES, index_path, scan_records, segment_ids, segment_path
from waltz_ray.storage.segment import read_index

__all__ = ["CopyOf", "LogDigest", "PartitionComparison", "Standing", "compare_copies"]

_BLOCK = 256  # records
_CHUNK_BYTES = 1 << 20


class LogDigest:
    """Digests of the records ``first_id``, ``first_id`` + 1 ... of one partition in blocks, by the block's number.

    A block has as many records wherever a log begins; one of which not all records were seen has none.
    """

    def __init__(self, first_id: int = 0) -> None:
        self.first_id = self.end_id = first_id
        self.blocks: dict[int, bytes] = {}
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, disk: Disk, handle: int, offsets: Int64s, end: int) -> None:
        """The next records, at ``offsets`` of one file, the last up to ``end``."""
        bounds = [*offsets.tolist(), end]
        done = 0
        while done < len(offsets):
            count = min(_BLOCK - self.end_id % _BLOCK, len(offsets) - done)
            for at in range(bounds[done], bounds[done + count], _CHUNK_BYTES):
                self._hash.update(disk.pread(handle, min(_CHUNK_BYTES, bounds[done + count] - at), at))
            done += count
            self.end_id += count
            if self.end_id % _BLOCK == 0:
                if self.end_id - _BLOCK >= self.first_id:
                    self.blocks[self.end_id // _BLOCK - 1] = self._hash.digest()
                self._hash = hashlib.blake2b(digest_size=16)


@dataclass(frozen=True)
class CopyOf:
    """One replica's copy of a partition: ``folder`` has its segments, ``digest`` what was found good in them."""

    replica: str
    folder: str
    entry: ControlEntry | None
    digest: LogDigest

    @property
    def last_id(self) -> int:
        return self.digest.end_id - 1

    @property
    def never_used(self) -> bool:
        """No session was ever opened there: what a replica has of a partition that others hold."""
        return self.entry is not None and self.session_id == NO_SESSION and not self.digest.end_id

    @property
    def session_id(self) -> int:
        return -1 if self.entry is None else self.entry.session_id

    @property
    def local_low_water_mark(self) -> int:
        return -1 if self.entry is None else self.entry.local_low_water_mark


@dataclass(frozen=True)
class Standing:
    """One copy beside the others. ``behind``: committed transactions that it does not have yet; those before
    ``first_id`` were trimmed away."""

    replica: str
    last_id: int
    behind: int = 0
    differs_from: int | None = None
    first_id: int = 0


@dataclass(frozen=True)
class PartitionComparison:
    """``committed_id``: the last transaction that was or may have been committed. ``errors``: what cannot be right."""

    partition_id: int
    committed_id: int
    standings: tuple[Standing, ...]
    errors: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        if self.errors:
            return "WRONG"
        return "BEHIND" if any(standing.behind for standing in self.standings) else "ok"


def compare_copies(
    disk: Disk,
    partition_id: int,
    copies: Sequence[CopyOf],
    replicas: int,
    elsewhere: int,
    running: bool = False,
    at_least: int | None = None,
) -> PartitionComparison:
    """``replicas``: how many hold the partition; ``elsewhere``: so many of them may not be seen here and hold anything.
    ``at_least``: how many held it at any time (None: as many), so that a quorum of these has what was ever committed.

    ``running``: the copies were read one after the other while records came in, so that a mark in one may be above the
    end of another that was read before it.
    """
    quorum = replicas // 2 + 1
    forks: dict[tuple[str, str], int] = {}
    for n, first in enumerate(copies):
        for second in copies[n + 1 :]:
            at = _first_difference(disk, partition_id, first, second)
            if at is not None:
                forks[first.replica, second.replica] = forks[second.replica, first.replica] = at
    marked_id = max((copy.entry.low_water_mark for copy in copies if copy.entry is not None), default=-1)
    held = sorted((copy.last_id for copy in copies), reverse=True)
    committed_id = max(marked_id, held[quorum - 1] if len(held) >= quorum else -1)
    errors = _contradictions(copies, forks)
    holders = _holders(copies, forks, marked_id)
    fewest = replicas if at_least is None else at_least
    if not running and marked_id >= 0 and holders + elsewhere < fewest // 2 + 1:
        errors.append(
            f"transaction {marked_id} was committed, and {holders} of {len(copies)} copies have it; "
            f"{fewest // 2 + 1} of {fewest} must"
        )
    standings = tuple(_standing(copy, copies, forks, committed_id) for copy in copies)
    return PartitionComparison(partition_id, committed_id, standings, tuple(errors))


def _contradictions(copies: Sequence[CopyOf], forks: dict[tuple[str, str], int]) -> list[str]:
    found = []
    for n, first in enumerate(copies):
        for second in copies[n + 1 :]:
            at = forks.get((first.replica, second.replica))
            if at is not None and not _left_behind(first, second, at) and not _left_behind(second, first, at):
                found.append(f"{first.replica} and {second.replica} differ from transaction {at} on")
    return found


def _left_behind(copy: CopyOf, other: CopyOf, at: int) -> bool:
    """Whether the copy's records from ``at`` on may be ones that were never committed, and that a session cuts."""
    return at > copy.local_low_water_mark and copy.session_id < other.session_id


def _agreeing(copy: CopyOf, copies: Iterable[CopyOf], forks: dict[tuple[str, str], int], last_id: int) -> int:
    """How many copies have the records up to ``last_id`` that this one has, itself included."""
    return sum(
        other.last_id >= last_id and forks.get((copy.replica, other.replica), last_id + 1) > last_id for other in copies
    )


def _holders(copies: Sequence[CopyOf], forks: dict[tuple[str, str], int], last_id: int) -> int:
    return max((_agreeing(copy, copies, forks, last_id) for copy in copies if copy.last_id >= last_id), default=0)


def _standing(copy: CopyOf, copies: Sequence[CopyOf], forks: dict[tuple[str, str], int], committed_id: int) -> Standing:
    """Where it differs from one that is newer, what it has from there on is not the log's."""
    differs_from = min(
        (
            at
            for other in copies
            if (at := forks.get((copy.replica, other.replica))) is not None and _left_behind(copy, other, at)
        ),
        default=None,
    )
    good_id = copy.last_id if differs_from is None else differs_from - 1
    return Standing(
        copy.replica, copy.last_id, max(0, committed_id - good_id), differs_from, first_id=copy.digest.first_id
    )


def _first_difference(disk: Disk, partition_id: int, first: CopyOf, second: CopyOf) -> int | None:
    """The first transaction that both have, not with the same bytes."""
    start = max(first.digest.first_id, second.digest.first_id)
    end = min(first.digest.end_id, second.digest.end_id)
    while start < end:
        block = start // _BLOCK
        stop = min((block + 1) * _BLOCK, end)
        one, other = first.digest.blocks.get(block), second.digest.blocks.get(block)
        if one is None or one != other:
            records = [_records(disk, copy.folder, partition_id, start, stop) for copy in (first, second)]
            pairs = enumerate(zip(*records, strict=False))  # one may have been cut since, if its replica runs
            at = next((start + n for n, (mine, its) in pairs if mine != its), None)
            if at is not None:
                return at
        start = stop
    return None


def _records(disk: Disk, folder: str, partition_id: int, first_id: int, end_id: int) -> list[bytes]:
    """The bytes of each record of [first_id, end_id), all of which have been found good."""
    found: list[bytes] = []
    ids = segment_ids(disk.listdir(folder)) if first_id < end_id else []
    for segment_id, next_id in zip(ids, [*ids[1:], end_id], strict=False):
        if max(segment_id, first_id) < min(next_id, end_id):
            found += _of_segment(
                disk, folder, partition_id, segment_id, max(segment_id, first_id), min(next_id, end_id)
            )
    return found


def _of_segment(disk: Disk, folder: str, partition_id: int, segment_id: int, first_id: int, end_id: int) -> list[bytes]:
    known_id, offset = _known_place(disk, folder, segment_id, first_id)
    handle = disk.open(segment_path(folder, segment_id), "read")
    try:
        scan = scan_records(disk, handle, partition_id, known_id, offset, end_id)
        if known_id + len(scan.offsets) < end_id:  # the index is not right; that is told elsewhere
            known_id = segment_id
            scan = scan_records(disk, handle, partition_id, known_id, HEADER_BYTES, end_id)
        bounds = np.append(scan.offsets, scan.end)[first_id - known_id :].tolist()
        return [disk.pread(handle, end - start, start) for start, end in pairwise(bounds)]
    finally:
        disk.close(handle)


def _known_place(disk: Disk, folder: str, segment_id: int, first_id: int) -> tuple[int, int]:
    """The last record at or before ``first_id`` whose place the index knows, and that place."""
    path = index_path(folder, segment_id)
    if disk.exists(path):
        handle = disk.open(path, "read")
        try:
            entry = read_index(disk, handle, first_id - segment_id, first_id - segment_id + 1)
        except OSError:  # that is told elsewhere
            return segment_id, HEADER_BYTES
        finally:
            disk.close(handle)
        if len(entry) and entry[0] >= HEADER_BYTES:
            return first_id, int(entry[0])
    return segment_id, HEADER_BYTES
