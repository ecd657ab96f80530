"""Reading closed segments again, so that rot is found while a peer still has a good copy.

A segment is checked piece by piece, outside of any lock: its two headers, every index entry, every record's place, ID,
partition and checksum, and the data's own. Nothing is changed here but the log's knowledge: ``report_rot`` where
records are bad, and an index that disagrees with good records is made anew. The newest segment is left alone; a start
and its readers look at that, and it is not yet synced.

A record's checksum covers its data. So data that is not what its client's checksum says, in a record that is whole,
has not rotted: it was written like this, on every replica (a server refuses it; what was imported may have some). It
is told in the log, once for a segment and pass, and is no damage that a peer could mend.

A segment may be cut, removed or replaced while it is read. Whatever is met then is no damage: the log is asked, with
its lock, whether this is still the segment that it was (``PartitionLog.closed``), before anything is believed.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from enum import Enum

import numpy as np

from waltz_ray.errors import Corruption, DiskFull, InvalidInput, OutOfResources, StorageError
from waltz_ray.protocol.records import Int64s, RecordBatch, bad_data
from waltz_ray.storage.disk import Disk, enough_resources, is_shortage
from waltz_ray.storage.layout import HEADER_BYTES, INDEX_ENTRY_BYTES, Scan, scan_records
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.reading import read_records
from waltz_ray.storage.scrub_plan import ScrubPlan, ScrubTarget
from waltz_ray.storage.segment import SegmentView, read_index
from waltz_ray.storage.store import ReplicaStore

__all__ = ["PIECE_BYTES", "Scrub", "SegmentCheck", "Verdict", "first_bad_data"]

log = logging.getLogger(__name__)

PIECE_BYTES = 128 * 1024
"""Read at a time: a few milliseconds in which other threads may have to wait for the interpreter."""


def first_bad_data(batch: RecordBatch) -> int:
    """Position of the first record whose data has not the checksum that its client gave it, or -1."""
    bad = bad_data(list(batch.datas()), batch.fields["data_checksum"].astype(np.uint32))
    batch.forget_derived()
    return bad[0] if bad else -1


class Verdict(Enum):
    """What a check of a segment came to."""

    SOUND = "sound"
    MENDED = "its index was wrong and has been made anew"
    ROTTEN = "records are bad"
    GONE = "it is not the segment any more that it was"
    LATER = "it could not be read just now"


class SegmentCheck:
    """The check of one closed segment of ``partition``, [first_id, end_id) as it was at ``epoch``.

    ``pieces`` reads it; whatever that raises is ``explained``.
    """

    def __init__(self, disk: Disk, partition: PartitionLog, epoch: int, first_id: int, end_id: int) -> None:
        self._disk, self._partition, self._epoch = disk, partition, epoch
        self.first_id, self.end_id = first_id, end_id
        self._good_id, self._good_end = first_id, HEADER_BYTES  # so far all records before these are sound
        self._warned = False

    def pieces(self) -> Iterator[int]:
        """The bytes of each piece after it was checked. Corruption or OSError at the first thing that is wrong."""
        view = self._view()
        self._check_ends(view)
        handle = self._disk.open(view.path, "read")
        try:
            while self._good_id < self.end_id:
                batch = self._piece(view)
                self._disk.unneeded(handle, batch.size_bytes, self._good_end)
                self._good_id, self._good_end = batch.end_id, self._good_end + batch.size_bytes
                yield batch.size_bytes + len(batch) * INDEX_ENTRY_BYTES
        finally:
            self._disk.close(handle)
        if self._good_end != view.end:
            raise Corruption(view.index_path, HEADER_BYTES, "its entries leave bytes of the segment out")

    def _view(self) -> SegmentView:
        return self._partition.view_closed(self.first_id, self.end_id)

    def _check_ends(self, view: SegmentView) -> None:
        for path in (view.path, view.index_path):
            self._partition.read_header(path, self.first_id)
        entries_end = HEADER_BYTES + view.count * INDEX_ENTRY_BYTES
        if self._disk.file_size(view.index_path) != entries_end:
            raise Corruption(view.index_path, entries_end, f"it has not the length of {view.count} entries")

    def _piece(self, view: SegmentView) -> RecordBatch:
        batch = read_records(self._disk, view, self._partition.partition_id, self._good_id, self.end_id, PIECE_BYTES)
        bad = -1 if self._warned else first_bad_data(batch)
        if bad >= 0:
            self._warned = True
            what = f"the data of transaction {self._good_id + bad} has not the checksum that its client gave it"
            log.warning("%s: %s, and was written like this: the record itself is whole", view.path, what)
        return batch

    def explained(self, error: Corruption | OSError) -> Verdict:
        """Records or index: who is to blame? The log is told, if this is still the same segment. DiskFull; OSError
        for a shortage, which says nothing of the segment."""
        try:
            view = self._view()
            self._partition.read_header(view.path, self.first_id)
            scan = self._scan_on(view)
            if scan.reason is None and scan.end == view.end:
                mended = self._partition.mend_index(self._epoch, self.first_id, self.end_id, self._offsets(view, scan))
                return Verdict.MENDED if mended else Verdict.GONE
            good_id = self._good_id + len(scan.offsets) - 1
            why = scan.reason or "bytes that are no record behind the last record"
            damage = Corruption(view.path, scan.end, why)
        except OSError as unreadable:
            if is_shortage(unreadable):
                raise
            good_id, damage = self._good_id - 1, self._unreadable(unreadable)
        except Corruption as bad_header:
            good_id, damage = self.first_id - 1, bad_header
        reported = self._partition.report_rot(self._epoch, self.first_id, self.end_id, damage, good_id)
        return Verdict.ROTTEN if reported else Verdict.GONE

    def _scan_on(self, view: SegmentView) -> Scan:
        """Without the index, from where it was right."""
        handle = self._disk.open(view.path, "read")
        try:
            place = self._partition.partition_id, self._good_id, self._good_end, self.end_id
            return scan_records(self._disk, handle, *place)
        finally:
            self._disk.close(handle)

    def _offsets(self, view: SegmentView, scan: Scan) -> Int64s:
        before = self._good_id - self.first_id
        if not before:
            return scan.offsets
        handle = self._disk.open(view.index_path, "read")
        try:
            return np.concatenate([read_index(self._disk, handle, 0, before), scan.offsets])
        finally:
            self._disk.close(handle)

    def _unreadable(self, error: OSError) -> Corruption:
        path = self._partition.segment_path(self.first_id)
        return Corruption(path, self._good_end, f"cannot be read: {error.strerror or error}")


class Scrub:
    """One store's scrub. ``step`` does a piece of it and says how long to pause; a thread or a simulator calls it."""

    def __init__(self, store: ReplicaStore, plan: ScrubPlan, now_s: Callable[[], float]) -> None:
        self._store, self._plan, self._now_s = store, plan, now_s
        self._check: SegmentCheck | None = None
        self._pieces: Iterator[int] = iter(())

    def step(self) -> float:
        """Check a piece, or begin a pass; the seconds until the next step. SyncFailed: end the process."""
        plan, now_s = self._plan, self._now_s()
        if plan.damaged_before:
            plan.suspect(self._those(plan.damaged_before))
        target = plan.current
        if target is None:
            wait_s = plan.wait_for_pass_s(now_s)
            if wait_s <= 0.0:
                plan.begin(now_s, self._store.now_ms(), self._targets())
            return wait_s
        if self._check is None:
            self._check = self._begin(target)
            self._pieces = iter(()) if self._check is None else self._check.pieces()
        size_bytes, verdict = self._next_piece()
        if size_bytes:
            plan.has_checked(size_bytes)
            return plan.has_read(self._now_s(), size_bytes)
        self._ended(target, verdict)
        return 0.0

    def close(self) -> None:
        """Give back what is open."""
        self._check, self._pieces = None, iter(())

    def _next_piece(self) -> tuple[int, Verdict]:
        """Its bytes; 0, and what the check came to, if there is none any more."""
        try:
            with enough_resources(self._store.directory):
                try:
                    return next(self._pieces, 0), Verdict.SOUND
                except (Corruption, OSError) as error:
                    if self._check is None or (isinstance(error, OSError) and is_shortage(error)):
                        raise
                    return 0, self._check.explained(error)
        except (OutOfResources, DiskFull) as error:
            log.warning("a segment is not checked in this pass: %s", error)
            return 0, Verdict.LATER

    def _ended(self, target: ScrubTarget, verdict: Verdict) -> None:
        if verdict in (Verdict.MENDED, Verdict.ROTTEN):
            self._plan.found(target.partition_id, target.first_id)
            what = f"the segment of {target.first_id} to {target.end_id - 1}: {verdict.value}"
            log.warning("scrub: partition %d: %s", target.partition_id, what)
        if verdict is Verdict.MENDED:
            self._plan.repaired(target.partition_id, target.first_id)
        self.close()
        self._plan.done(self._store.now_ms())

    def _those(self, segments: Sequence[tuple[int, int]]) -> list[ScrubTarget]:
        targets = {
            (target.partition_id, target.first_id): target
            for partition_id in {partition_id for partition_id, _ in segments} & set(self._store.served_ids)
            for target in self._targets_of(partition_id)
        }
        return [targets[segment] for segment in segments if segment in targets]

    def _targets(self) -> list[ScrubTarget]:
        return [target for partition_id in self._store.served_ids for target in self._targets_of(partition_id)]

    def _targets_of(self, partition_id: int) -> list[ScrubTarget]:
        targets = []
        with contextlib.suppress(StorageError, OSError):  # removed, lost, or not to be opened: the next pass has it
            found = self._store.partition(partition_id)
            for first_id, end_id in found.closed()[1]:
                size_bytes = (end_id - first_id) * INDEX_ENTRY_BYTES
                with contextlib.suppress(OSError):  # to be told when it is looked at
                    size_bytes += found.view_closed(first_id, end_id).end - HEADER_BYTES
                targets.append(ScrubTarget(partition_id, first_id, end_id, size_bytes))
        return targets

    def _begin(self, target: ScrubTarget) -> SegmentCheck | None:
        """None if there is nothing to check: it is gone, known to be rotten, or not to be opened just now."""
        try:
            found = self._store.partition(target.partition_id)
        except (InvalidInput, OutOfResources, Corruption, OSError):
            return None
        epoch, closed = found.closed()
        if (target.first_id, target.end_id) not in closed or target.first_id in found.rotten:
            return None
        return SegmentCheck(self._store.disk.disk, found, epoch, target.first_id, target.end_id)
