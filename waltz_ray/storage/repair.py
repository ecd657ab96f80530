"""Fetching a rotten closed segment from a peer, while its partition goes on.

Only a segment at or below the replica's own low-water mark is repaired (``log_rules.may_be_fetched``). Its records are
committed, so that any peer whose mark has passed them has the very same bytes and tells them to anybody (session -1).
Each is checked: place, ID, partition, checksum; together they are exactly [first_id, end_id), so they join what
is before and behind. What is whole in the rotten file must be equal; so must what another peer says of the records
that are not. If two copies differ and both have right checksums, nothing is overwritten and a person is told: that
must never be.

On-disk story
    The records go into ``<first ID>.seg.new``, their offsets into ``<first ID>.idx.new``; both are synced. Then, with
    the log's lock and only if the segment is still what it was, both are renamed over the old files, first the
    segment, and the folder is synced. Readers open files by name for every piece, so they read the old file or the new
    one, which differ in rotten bytes only; one that met rot in the old file starts over.

    ===========================  ======================================  ==============================================
    crash                        leaves                                  the next start
    ===========================  ======================================  ==============================================
    before the renames           the rotten files, and ``.new`` ones     removes ``.new``; the rot is found again
    between the renames          the new segment, the old index, or      a wrong index is made anew from the segment
                                 either name as before
    before the folder is synced  each name old or new                    as above: both segments are of this place, and
                                                                         what was acknowledged is in either, rot aside
    ===========================  ======================================  ==============================================

    Journal entries of the segment are no danger: they write the same bytes at the same place.
"""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from waltz_ray.errors import CopiesDisagree, Corruption, PeerUnavailable
from waltz_ray.protocol.records import RECORD_HEADER_BYTES, RECORD_OVERHEAD_BYTES, RecordBatch, first_bad_record, split
from waltz_ray.storage import log_rules as rules
from waltz_ray.storage.disk import Disk, DurableDisk, enough_resources, is_shortage
from waltz_ray.storage.layout import HEADER_BYTES, INDEX_ENTRY_BYTES, MAX_RECORD_BYTES, SegmentHeader, is_whole
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.scrub import PIECE_BYTES

__all__ = ["RepairSource", "check_fetched", "check_may_be_fetched", "repair_segment"]

_SYNC_BYTES = 8 * 1024 * 1024  # so that no sync of the log has to wait for a whole segment of ours


class RepairSource(Protocol):
    """Another replica. ``name`` is for people."""

    name: str

    def read(self, partition_id: int, first_id: int, end_id: int, max_bytes: int) -> RecordBatch:
        """Records from ``first_id`` on that it knows to be committed. PeerUnavailable, with the reason."""


def check_fetched(batch: RecordBatch, partition_id: int, first_id: int, end_id: int) -> None:
    """Records that a peer sent are those that were asked for, and whole: PeerUnavailable if not."""
    right = batch.partition_id == partition_id and batch.first_id == first_id and 0 < len(batch) <= end_id - first_id
    if not right:
        raise PeerUnavailable(f"it has not sent transaction {first_id} of partition {partition_id}")
    bad = first_bad_record(batch)
    if bad >= 0:
        raise PeerUnavailable(f"transaction {first_id + bad} is damaged there, too, or was on the way")


def repair_segment(
    disk: DurableDisk, cluster_key: uuid.UUID, partition: PartitionLog, first_id: int, sources: Sequence[RepairSource]
) -> Iterator[int]:
    """Fetch the rotten segment of ``partition`` that begins with ``first_id``; the bytes of each piece that is done.

    When it ends the segment is whole, or is not there any more. PeerUnavailable (later, perhaps), CopiesDisagree (a
    person has to look), DiskFull, OutOfResources: nothing was changed, the rotten files are as they were."""
    epoch, closed = partition.closed()
    bounds = next((one for one in closed if one[0] == first_id), None)
    if bounds is None:
        return
    end_id = bounds[1]
    check_may_be_fetched(partition, end_id)
    header = _header(cluster_key, partition, first_id)
    with enough_resources(partition.segment_path(first_id)), _Copy(disk, partition, header) as copy:
        while copy.next_id < end_id:
            batch, others = _fetch(partition.partition_id, copy.next_id, end_id, sources)
            if not copy.old.has(copy.end, batch.records):
                _compare(batch, copy.old.whole_records(batch, copy.end), "this replica")
                _ask_another(batch, others)
            copy.write(batch)
            yield batch.size_bytes
        copy.finish()
        partition.replace_closed(epoch, first_id, end_id, copy.install)


def check_may_be_fetched(partition: PartitionLog, end_id: int) -> None:
    """PeerUnavailable if the mark has been lowered since the rot was found."""
    if not rules.may_be_fetched(partition.local_low_water_mark, end_id):
        raise PeerUnavailable(f"records up to {end_id - 1} are above this replica's low-water mark")


def _fetch(
    partition_id: int, first_id: int, end_id: int, sources: Sequence[RepairSource]
) -> tuple[RecordBatch, Sequence[RepairSource]]:
    """Of the first source that has them, and the sources behind it."""
    reasons = []
    for position, source in enumerate(sources):
        try:
            batch = source.read(partition_id, first_id, end_id, PIECE_BYTES)
            check_fetched(batch, partition_id, first_id, end_id)
        except PeerUnavailable as error:
            reasons.append(f"{source.name}: {error}")
        else:
            return batch, sources[position + 1 :]
    raise PeerUnavailable("; ".join(reasons) or "there is no other replica to ask")


def _ask_another(batch: RecordBatch, sources: Sequence[RepairSource]) -> None:
    """What is about to replace rotten records must be what another peer has, too, if one answers."""
    partition_id, first_id, end_id = batch.partition_id, batch.first_id, batch.end_id
    for source in sources:
        try:
            other = source.read(partition_id, first_id, end_id, batch.size_bytes)
            check_fetched(other, partition_id, first_id, end_id)
        except PeerUnavailable:
            continue
        _compare(batch, dict(enumerate(split(other.records, other.lengths), first_id)), source.name)
        return


def _compare(batch: RecordBatch, others: Mapping[int, bytes | memoryview], whose: str) -> None:
    """CopiesDisagree if one of ``others``, whole records by ID, is another one than that of ``batch``."""
    for transaction_id, mine in enumerate(split(batch.records, batch.lengths), batch.first_id):
        if others.get(transaction_id, mine) != mine:
            raise CopiesDisagree(
                f"partition {batch.partition_id}: transaction {transaction_id} of {whose} differs from a peer's, and "
                "both have right checksums: nothing is overwritten, compare the replicas with `waltz verify`"
            )


def _header(cluster_key: uuid.UUID, partition: PartitionLog, first_id: int) -> SegmentHeader:
    """What the segment's files say it is, most of them; without a creation time where none can be read."""
    segment = partition.segment_path(first_id)
    found: Counter[SegmentHeader] = Counter()
    for path in (segment, *(f"{segment[: -len('.seg')]}{suffix}" for suffix in (".idx", ".tix"))):
        with contextlib.suppress(Corruption, OSError):
            found[partition.read_header(path, first_id)] += 1
    unknown = SegmentHeader(1, cluster_key, partition.partition_id, first_id)
    return found.most_common(1)[0][0] if found else unknown


class _OldFiles:
    """The rotten segment and its index, as far as they can be read."""

    def __init__(self, disk: Disk, path: str, idx_path: str, first_id: int) -> None:
        self._disk, self._first_id = disk, first_id
        self._handles = contextlib.ExitStack()
        self._segment, self._index = self._open(path), self._open(idx_path)

    def _open(self, path: str) -> int | None:
        with contextlib.suppress(OSError):
            handle = self._disk.open(path, "read")
            self._handles.callback(self._disk.close, handle)
            return handle
        return None

    def close(self) -> None:
        self._handles.close()

    def has(self, offset: int, records: bytes | memoryview) -> bool:
        """Whether these bytes are there."""
        return self._read(self._segment, len(records), offset) == records

    def whole_records(self, batch: RecordBatch, offset: int) -> dict[int, bytes]:
        """Those of the IDs of ``batch`` that are whole, where the index says they are, or where the new ones go."""
        found: dict[int, bytes] = {}
        for transaction_id, start in enumerate(batch.offsets[:-1].tolist(), batch.first_id):
            at = HEADER_BYTES + (transaction_id - self._first_id) * INDEX_ENTRY_BYTES
            entry = int.from_bytes(self._read(self._index, INDEX_ENTRY_BYTES, at), "big")
            for place in (entry, offset + start):
                record = self._whole_record(transaction_id, place)
                if record:
                    found[transaction_id] = record
        return found

    def _whole_record(self, transaction_id: int, offset: int) -> bytes:
        head = self._read(self._segment, RECORD_HEADER_BYTES, offset)
        data_length = int.from_bytes(head[28:32], "big")
        if int.from_bytes(head[:8], "big") != transaction_id or data_length > MAX_RECORD_BYTES:
            return b""
        record = self._read(self._segment, data_length + RECORD_OVERHEAD_BYTES, offset)
        return record if len(record) > RECORD_HEADER_BYTES and is_whole(memoryview(record)) else b""

    def _read(self, handle: int | None, size: int, offset: int) -> bytes:
        if handle is None or not HEADER_BYTES <= offset < 1 << 62:
            return b""
        try:
            return self._disk.pread(handle, size, offset)
        except OSError as error:
            if is_shortage(error):
                raise
            return b""


class _Copy:
    """The new files of a segment, while they are made; removed on the way out unless they were installed."""

    def __init__(self, disk: DurableDisk, partition: PartitionLog, header: SegmentHeader) -> None:
        self._disk = disk
        self._path = partition.segment_path(header.first_id)
        self._index_path = f"{self._path[: -len('.seg')]}.idx"
        self._header = header
        self.next_id, self.end, self._synced = header.first_id, HEADER_BYTES, HEADER_BYTES
        self._handles = contextlib.ExitStack()

    def __enter__(self) -> _Copy:
        try:
            self._segment, self._index = self._begin(f"{self._path}.new"), self._begin(f"{self._index_path}.new")
            self.old = _OldFiles(self._disk.disk, self._path, self._index_path, self._header.first_id)
        except BaseException:
            self._remove()
            raise
        self._handles.callback(self.old.close)
        return self

    def _begin(self, path: str) -> int:
        handle = self._disk.create(path)
        self._handles.callback(self._disk.disk.close, handle)
        self._disk.pwrite(handle, path, self._header.encode(), 0)
        return handle

    def write(self, batch: RecordBatch) -> None:
        """The next records."""
        path = f"{self._path}.new"
        self._disk.pwrite(self._segment, path, batch.records, self.end)
        entries = (batch.offsets[:-1] + self.end).astype(">i8").tobytes()
        at = HEADER_BYTES + (batch.first_id - self._header.first_id) * INDEX_ENTRY_BYTES
        self._disk.pwrite(self._index, f"{self._index_path}.new", entries, at)
        self.next_id, self.end = batch.end_id, self.end + batch.size_bytes
        if self.end - self._synced >= _SYNC_BYTES:
            self._disk.fdatasync(self._segment, path)
            self._synced = self.end

    def finish(self) -> None:
        """All of it is durable under the new names."""
        self._disk.fsync(self._segment, f"{self._path}.new")
        self._disk.fsync(self._index, f"{self._index_path}.new")

    def install(self) -> None:
        """In place of the rotten files."""
        self._disk.rename(f"{self._path}.new", self._path)
        self._disk.rename(f"{self._index_path}.new", self._index_path)
        self._disk.fsync_directory(self._path.rpartition("/")[0])

    def __exit__(self, *error: object) -> None:
        self._remove()

    def _remove(self) -> None:
        self._handles.close()
        if not self._disk.failed:  # else the process ends, and the next start removes them
            self._disk.unlink(f"{self._path}.new")
            self._disk.unlink(f"{self._index_path}.new")
