"""One partition of one replica: an append-only log of records in segments, with a fence.

On-disk story (``segment.py`` for the files, ``control_file.py`` for fence and marks, ``recovery.py`` for the start)

===========================  ==========================================  ==========================================
step                         what a crash leaves                         what the next start does
===========================  ==========================================  ==========================================
append (not yet synced)      any part of the new records                 keeps the whole ones from the front: they
                                                                         were not acknowledged, either is right
sync                         all records that were written before it     nothing
index write                  entries missing or torn                     scans from the last good one
roll                         old segment complete; the new one absent,   removes a new one without header
                             without header, or empty
open_session                 the old fence or the new one; the records   nothing. The first segment is made before the
                             that made the vote are durable either way   first fence: "fence but no files" is damage
make_anew                    records partly or all gone, the fence       "lost" again (and makes it anew again), or an
                             still lost; or the new one, and no record   empty log with the new fence
trim, begin_at               ``trimming.py``                             ``trimming.py``
truncate                     marks lowered; newest files gone in order   log ends anywhere between old and new end, the
                                                                         caller was not answered and cuts again
set_low_water_mark           old or new marks                            nothing
replace_closed               what ``repair.py`` tells: the rotten        finds the rot again, or nothing
                             segment, or the one that was fetched
===========================  ==========================================  ==========================================

A partition whose fence is lost (both slots of its control entry damaged, ``fence_lost``) takes part in nothing: it
could take orders of a server that was replaced long ago, and without its low-water mark a rotten record would look like
a torn one. It can only be made anew, empty, and only when ZooKeeper says that this replica never joined a session:
nobody counts on it then, whatever it had promised, exactly as for a replica that comes with an empty disk.

Nothing is reported durable before the flush that covers it. A failed flush ends the store (``DurableDisk``).
Between an append and its flush other threads may take its records away: a cut, a damage that a reader finds. Each of
these changes ``_line``, the number that ``append`` returns; ``is_durable`` says whether what was appended under it is
still there, all of it, and flushed. Only then may it be acknowledged.

Locking: one lock per partition for the state below. ``fdatasync`` of records and all reading happen without it;
at most one sync runs at a time (``_syncing``), and whatever closes or shortens files waits for it to finish.
A reader whose files were cut meanwhile notices by ``_epoch`` and starts over.

Rot in a closed segment that lies at or below the mark does not end the log (``log_rules.may_be_fetched``): it is noted
in ``rotten``, reads of its bad records are refused with SegmentRotten, and ``repair.py`` puts a peer's copy in its
place.

A lack of file handles or memory is no damage: a read then raises OutOfResources and the log stays as it is. Where it
(or a full disk) interrupts a roll or a cut, no segment is active; whatever needs one next cuts to ``last_id`` again.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise

import numpy as np

from waltz_ray.config import StorageConfig
from waltz_ray.errors import (
    Corruption,
    DiskFull,
    InvalidInput,
    OutOfResources,
    PartitionDamaged,
    SegmentRotten,
    Trimmed,
)
from waltz_ray.protocol import trimming
from waltz_ray.protocol.ids import NO_TRANSACTION
from waltz_ray.protocol.records import Int64s, RecordBatch
from waltz_ray.protocol.times import times_within
from waltz_ray.storage import log_rules as rules
from waltz_ray.storage.control_file import NEVER_OPENED, ControlEntry, ControlFile
from waltz_ray.storage.disk import DurableDisk, enough_resources
from waltz_ray.storage.journal import Journal
from waltz_ray.storage.layout import SegmentHeader, index_path, segment_path
from waltz_ray.storage.page_cache import PageCache
from waltz_ray.storage.pending_sync import PendingSync
from waltz_ray.storage.reading import closed_view, read_records, scan_view
from waltz_ray.storage.recovery import (
    Recovered,
    begin_anew,
    cut_files,
    open_files,
    read_header,
    remove_below,
    write_index_file,
)
from waltz_ray.storage.segment import ActiveSegment, SegmentView
from waltz_ray.storage.time_index import MOST_AHEAD_MS
from waltz_ray.storage.time_lookup import TimeLookup
from waltz_ray.storage.trimming import Beginning, write_beginning

__all__ = ["PartitionLog"]

_ONE_RECORD = np.zeros(1, dtype=np.int64)  # the offsets of one


class PartitionLog:
    """One partition of one replica. Made by ``ReplicaStore.partition``; every method may be called by any thread.

    ``first_id`` is where the log begins (0, until something is trimmed), ``last_id`` the last valid transaction ID
    (``first_id`` - 1 = none), ``synced_id`` the last that is known to be durable,
    ``damaged`` what is wrong with the records after ``last_id``, or None. ``fence_lost``: what is wrong if both slots
    of the control entry are damaged (then ``damaged`` says so, too). ``is_open``: a session was opened since this
    object was made. ``rotten``: closed segments, by first ID, that are to be fetched from a peer, and why; replaced as
    a whole when it changes. All methods raise SyncFailed once a flush has failed.
    """

    def __init__(
        self,
        disk: DurableDisk,
        folder: str,
        cluster_key: uuid.UUID,
        partition_id: int,
        control: ControlFile,
        journal: Journal,
        page_cache: PageCache,
        config: StorageConfig,
    ) -> None:
        self.partition_id = partition_id
        self.is_open = False
        self._disk, self._folder, self._cluster_key = disk, folder, cluster_key
        self._control, self._journal, self._page_cache, self._config = control, journal, page_cache, config
        self._lock = threading.RLock()
        self._quiet_again = threading.Condition(self._lock)
        self._waiters = 0
        self._syncing = False
        self._epoch = 0  # of the files: a reader whose files were changed under it starts over
        self._line = 0  # of the records: how often any that had been appended were taken away again
        self._limit_bytes = config.segment_size_bytes
        self._left_below = False  # segments that were dropped may have files still
        self._begins_at: int | None = None  # it is being emptied (``begin_at``): with this record it goes on
        self.last_id = -1
        self.rotten: dict[int, Corruption] = {}
        self.fence_lost: Corruption | None = None
        try:
            self._entry = control.entry(partition_id)
        except Corruption as lost:
            self.fence_lost, self._entry = lost, NEVER_OPENED
            self._adopt(Recovered([], None, -1, lost))
            return
        with enough_resources(folder):
            self._adopt(open_files(disk, folder, cluster_key, partition_id, self._entry, config.repair))

    def _adopt(self, found: Recovered) -> None:
        known = {**self.rotten, **found.rotten}
        self.rotten = {first_id: known[first_id] for first_id in found.segments[:-1] if first_id in known}
        if found.last_id < self.last_id or found.damaged is not None:
            self._line += 1
        self._segments, self._active, self.first_id = found.segments, found.active, found.first_id
        self.last_id = self.synced_id = found.last_id
        self.damaged = found.damaged

    def _shorten(self, last_id: int) -> None:
        """What is behind ``last_id`` is not there any more, or not right."""
        self._line += 1
        self.last_id, self.synced_id = last_id, min(self.synced_id, last_id)

    @property
    def session_id(self) -> int:
        """The highest session this replica has accepted; -1 = none yet."""
        return self._entry.session_id

    @property
    def low_water_mark(self) -> int:
        return self._entry.low_water_mark

    @property
    def local_low_water_mark(self) -> int:
        return self._entry.local_low_water_mark

    def open_session(self, session_id: int) -> int:
        """Fence off every lower session, durably; the records held become durable too, for they are a vote.

        Returns the session that was current before. Fenced if ``session_id`` is lower than that; equal is a reconnect.
        InvalidInput if it is absurdly far ahead; PartitionDamaged if the fence is lost.
        """
        with self._quiet():
            self.check_fence()
            previous = self.session_id
            rules.check_new_session(self, session_id)
            if self.damaged is not None and self.damaged.unreadable and self._active is None:
                self._look_again()
            self.prove_vote()
            if self.damaged is None:
                self._make_writable()
            entry = self._entry._replace(session_id=session_id)
            self._control.write(self.partition_id, entry)
            self._entry = entry
            self.is_open = True
            return previous

    def _look_again(self) -> None:
        """The disk did not give all of it, and nothing of that has been cut since: a line, or a controller, may have
        failed for a moment, and with it every copy that there is."""
        with enough_resources(self._folder):
            place = self._disk, self._folder, self._cluster_key, self.partition_id
            self._epoch += 1
            self._adopt(open_files(*place, self._entry, self._config.repair))

    def prove_vote(self) -> None:
        """The records held become durable, for they are a vote. With the lock held and nothing else going on."""
        self._sync_here()

    def make_anew(self, session_id: int) -> None:
        """Begin again with ``session_id`` and no records, where the fence was lost. ZooKeeper's word that this replica
        has never joined a session (or has been replaced since) is the caller's to have.

        Fenced or InvalidInput for a session number that cannot be.
        """
        with self._quiet():
            self._disk.check()
            assert self.fence_lost is not None
            rules.check_new_session(self, session_id)
            self.first_id = 0
            self._adopt(self._cut(-1))  # before there is a fence: nothing that is left may ever vote
            entry = ControlEntry(session_id, -1, -1)
            self._control.make_anew(self.partition_id, entry)
            self._entry, self.fence_lost, self.is_open = entry, None, True

    def check_fence(self) -> None:
        """PartitionDamaged if the fence is lost."""
        if self.fence_lost is not None:
            raise PartitionDamaged(
                f"{self.fence_lost}: the fence and the marks of partition {self.partition_id} are lost, so this "
                "replica serves it no more; let it be copied from its peers: waltz replace-replica"
            )

    def append(self, session_id: int, batch: RecordBatch) -> int:
        """Write ``batch`` behind the last record. Not durable before ``sync``; returns what ``is_durable`` asks for.

        Fenced (another session), NotContiguous, PartitionDamaged, InvalidInput (of another partition), RecordsChanged,
        DiskFull, OutOfResources: in each case nothing of the batch is left and a later append may succeed.
        """
        with self._lock:
            while self._syncing and self._must_wait(batch):
                self._wait()
            self._disk.check()
            rules.check_append(self, session_id, batch)
            if not len(batch):
                return self._line
            started = self._make_writable()
            before = started.mark()
            try:
                self._write(batch)
            except (DiskFull, OutOfResources):
                if self._active is started:
                    started.undo(before)
                    if not self._syncing:  # a running sync is writing index entries itself
                        started.cut_index()
                else:
                    self._adopt(self._cut(self.last_id))
                raise
            self.last_id = batch.last_id
            return self._line

    def is_durable(self, session_id: int, line: int, last_id: int) -> bool:
        """Whether the records up to ``last_id`` that ``append`` returned ``line`` for are all there still, and
        durable, and their session is the one in force."""
        with self._lock:
            return line == self._line and last_id <= self.synced_id and session_id == self.session_id

    def _make_writable(self) -> ActiveSegment:
        """The active segment: made for a new partition, opened again where a full disk interrupted a roll or a cut."""
        if self._active is None:
            self._adopt(self._cut(self.last_id))
            if self._active is None:
                assert self.damaged is not None
                raise self.damaged
        return self._active

    def _must_wait(self, batch: RecordBatch) -> bool:
        limit = self._limit_bytes
        return self._active is not None and rules.must_wait_for_sync(self._active.end, batch.size_bytes, limit)

    def _write(self, batch: RecordBatch) -> None:
        """A piece per segment: the record that takes a segment past its size is the last one in it."""
        limit = self._limit_bytes
        view, done = memoryview(batch.records), 0
        if self._active is not None and self._active.end + batch.size_bytes <= limit:  # nearly always
            self._write_piece(self._active, _ONE_RECORD if len(batch) == 1 else batch.offsets[:-1], view)
            self._active.times.note(batch.times, batch.size_bytes)
            done = len(batch)
        while done < len(batch):
            offsets = batch.offsets
            if self._active is None or self._active.end > limit:
                self._roll(batch.first_id + done)
            active = self._active
            assert active is not None
            room = limit - active.end + int(offsets[done])
            stop = min(int(np.searchsorted(offsets, room, side="right")), len(batch))
            start, end = int(offsets[done]), int(offsets[stop])
            self._write_piece(active, offsets[done:stop] - start, view[start:end])
            active.times.note(times_within(batch.times, batch.first_id + done, batch.first_id + stop), end - start)
            done = stop
        if self._active is not None:
            self._active.allocate_ahead(self._config.preallocate_bytes, limit, batch.size_bytes)

    def _write_piece(self, active: ActiveSegment, offsets: Int64s, body: memoryview) -> None:
        start = active.end
        active.write(offsets, body)
        self._page_cache.written(active.path, start, body.nbytes)

    def _roll(self, first_id: int) -> None:
        last_ms = None
        if self._active is not None:
            self._active.times.end()
            self._active.finish()
            last_ms, self._active = self._active.times.last_ms, None
            self.synced_id = max(self.synced_id, min(first_id - 1, self.last_id))
        header = SegmentHeader(self._disk.disk.now_ms(), self._cluster_key, self.partition_id, first_id)
        self._active = ActiveSegment.create(self._disk, self._folder, header)
        self._active.times.last_ms = last_ms
        self._segments.append(first_id)

    def sync(self) -> int:
        """Make every record appended so far durable; returns the last durable ID."""
        pending = self.begin_sync()
        if pending is not None:
            try:
                pending.flush()
                self.synced(pending)
            finally:
                self.end_sync()
        return self.synced_id

    def begin_sync(self) -> PendingSync | None:
        """What has to be made durable, by either way, before ``end_sync``; None if everything is already.

        The log takes records meanwhile, but no file of it is closed or cut. Several logs: in ascending order.
        """
        with self._lock:
            target = self.last_id
            self.wait_until_quiet()
            self._disk.check()
            if self.synced_id >= min(target, self.last_id) or self._active is None:  # less, if it was cut meanwhile
                return None
            self._syncing = True
            return PendingSync(self._disk, self.partition_id, self._active, self.synced_id + 1, self.last_id)

    def end_sync(self) -> None:
        """Whether or not it has become durable."""
        with self._lock:
            self._syncing = False
            if self._waiters:
                self._quiet_again.notify_all()

    def synced(self, pending: PendingSync) -> None:
        """Note that ``pending`` is durable. No lock: until ``end_sync`` the segment's files are not closed or cut."""
        active, durable_id = pending.segment, pending.last_id
        with self._lock:
            self.synced_id = min(max(self.synced_id, durable_id), self.last_id)
            start = active.flushed_count
            if durable_id + 1 - active.first_id - start < self._config.index_flush_interval:
                return
            entries = active.unflushed(durable_id)
        try:
            active.write_index(start, entries)
        except DiskFull:
            active.cut_index()  # the records are durable; the index gets these entries with the next sync
            return
        with self._lock:
            active.index_written(len(entries))

    def _sync_here(self) -> None:
        """Sync with the lock held and nothing else going on."""
        self._disk.check()
        if self.synced_id < self.last_id:
            active = self._make_writable()
            if self.synced_id < self.last_id:  # not if it had to be opened again: that syncs, too
                self._disk.fdatasync(active.handle, active.path)
                self.synced_id = self.last_id

    def _quiet(self) -> _Quiet:
        return _Quiet(self)

    def wait_until_quiet(self) -> None:
        """With the lock held: until no sync is running."""
        while self._syncing:
            self._wait()

    def wait_to_change_files(self) -> None:
        """With the lock held: a running sync ends before any file is closed, shortened or removed."""
        self.wait_until_quiet()

    def _wait(self) -> None:
        self._waiters += 1
        try:
            self._quiet_again.wait()
        finally:
            self._waiters -= 1

    def read(self, first_id: int, end_id: int, max_bytes: int) -> RecordBatch:
        """Records from ``first_id`` on: one at least, whole, below ``end_id``, up to ``max_bytes``, of one segment.

        Every record is checked. Corruption (and the partition is ``damaged`` from then on) if one is bad; Trimmed if
        ``first_id`` is before the log's; InvalidInput if it is behind its end or the range is empty; OutOfResources.
        """
        mended = False
        while True:
            with self._lock:
                self._disk.check()
                self.check_fence()
                if self.damaged is not None:
                    raise self.damaged
                if 0 <= first_id < self.first_id:
                    raise Trimmed(self.partition_id, first_id, self.first_id)
                if not 0 <= first_id <= self.last_id or end_id <= first_id:
                    raise InvalidInput(
                        f"partition {self.partition_id}: records [{first_id}, {end_id}) were asked for, "
                        f"the log ends with {self.last_id}"
                    )
                if self._active is None:
                    self._make_writable()
                    continue  # it may end, or begin, elsewhere now
                epoch, position = self._epoch, int(np.searchsorted(self._segments, first_id, side="right")) - 1
                end_id = min(end_id, self.last_id + 1)
                bounds = self._segments[position : position + 2]
                view = self._active.snapshot() if len(bounds) == 1 and self._active else None
                path = segment_path(self._folder, bounds[0])
            try:
                with enough_resources(path):
                    view = view or self.view_closed(*bounds)
                    return read_records(self._disk.disk, view, self.partition_id, first_id, end_id, max_bytes)
            except (Corruption, OSError) as error:
                damage = error if isinstance(error, Corruption) else Corruption(path, 0, f"cannot be read: {error}")
                self._explain(damage, epoch, position, first_id, mended)
                mended = True

    def times(self) -> TimeLookup:
        """When the records that are here now were appended."""
        with self._lock:
            times = self._active.times if self._active is not None else None
            in_doubt = times is None or times.in_doubt
            ends_ms = times.doubt_ends_ms if times is not None else None
            place = self._disk.disk, self._folder, self._cluster_key, self.partition_id
            return TimeLookup(*place, tuple(self._segments), self.last_id + 1, in_doubt, ends_ms)

    def _explain(self, damage: Corruption, epoch: int, position: int, first_id: int, mended: bool) -> None:
        """A read failed. Returns if it is worth another try: the log was cut meanwhile, or only the index was wrong."""
        with self._quiet():
            if self.was_cut_since(epoch):
                return
            known = self.rotten.get(self._segments[position])
            if known is not None:
                raise SegmentRotten.of(known)
            active = self._active if position == len(self._segments) - 1 else None
            good_id, rotten = first_id - 1, damage
            try:
                with enough_resources(damage.file):
                    view = active.snapshot() if active else self.view_closed(*self._segments[position : position + 2])
                    scan = scan_view(self._disk.disk, view, self.partition_id)
                    if scan.reason is None and not mended:
                        return self._mend_index(active, position, scan.offsets)
                if scan.reason is not None:
                    good_id = view.first_id + len(scan.offsets) - 1
                    rotten = Corruption(view.path, scan.end, scan.reason)
            except OSError as error:
                good_id = self._segments[position] - 1
                rotten = Corruption(damage.file, damage.offset, f"{damage.reason} ({error})")
            except Corruption as bad_header:  # the index is made anew with the segment's, which is wrong as well
                good_id, rotten = self._segments[position] - 1, bad_header
            raise self._has_rotted(position, rotten, good_id)

    def _has_rotted(self, position: int, damage: Corruption, good_id: int) -> Corruption:
        """Records of a segment are bad, up to ``good_id`` they are not. What is to be said to who wants them."""
        bounds = self._segments[position : position + 2]
        if len(bounds) == 2 and self._config.repair and rules.may_be_fetched(self.local_low_water_mark, bounds[1]):
            self.rotten = {**self.rotten, bounds[0]: damage}
            return SegmentRotten.of(damage)
        self.damaged = damage
        self._shorten(min(self.last_id, good_id))
        return damage

    def was_cut_since(self, epoch: int) -> bool:
        """Whether files were cut or made anew since a reader looked at ``epoch``: what it met is then no damage."""
        return self._epoch != epoch

    # ---- closed segments, for who checks and repairs them ---------------------------------------------------

    def closed(self) -> tuple[int, list[tuple[int, int]]]:
        """An epoch, and the records [first ID, end ID) of each segment that will not change any more and is synced;
        none of a log that is damaged."""
        with self._lock:
            whole = self.damaged is None and self._active is not None
            return self._epoch, list(pairwise(self._segments)) if whole else []

    def view_closed(self, first_id: int, end_id: int) -> SegmentView:
        """To be read without the lock; it may be cut, removed or replaced meanwhile. OSError if it is not there."""
        paths = segment_path(self._folder, first_id), index_path(self._folder, first_id)
        return closed_view(self._disk.disk, *paths, first_id, end_id)

    def segment_path(self, first_id: int) -> str:
        """Where the segment is that begins with ``first_id``."""
        return segment_path(self._folder, first_id)

    def read_header(self, path: str, first_id: int) -> SegmentHeader:
        """The header of a segment or an index of this partition. Corruption, OSError."""
        return read_header(self._disk.disk, path, self._cluster_key, self.partition_id, first_id)

    def _position_of(self, epoch: int, first_id: int, end_id: int) -> int | None:
        """Of a closed segment that is what it was at ``epoch``; with the lock."""
        position = int(np.searchsorted(self._segments, first_id))
        same = not self.was_cut_since(epoch) and self._segments[position : position + 2] == [first_id, end_id]
        return position if same and self.damaged is None else None

    def report_rot(self, epoch: int, first_id: int, end_id: int, damage: Corruption, good_id: int) -> bool:
        """Somebody has read the closed segment and found bad records behind ``good_id``. False if it is not the same
        segment any more: then that was no damage."""
        with self._quiet():
            self._disk.check()
            position = self._position_of(epoch, first_id, end_id)
            if position is not None and first_id not in self.rotten:
                self._has_rotted(position, damage, good_id)
            return position is not None

    def mend_index(self, epoch: int, first_id: int, end_id: int, offsets: Int64s) -> bool:
        """The same, and all records are whole, at ``offsets``: the index is made anew. DiskFull, OutOfResources."""
        with self._quiet():
            self._disk.check()
            position = self._position_of(epoch, first_id, end_id)
            if position is not None:
                self._mend_index(None, position, offsets)
            return position is not None

    def replace_closed(self, epoch: int, first_id: int, end_id: int, install: Callable[[], None]) -> bool:
        """``install`` puts other files, with the same records, in the place of a closed segment's; readers that had the
        old ones open start over. False, and nothing is done, if it is not the same segment any more."""
        with self._quiet():
            self._disk.check()
            if self._position_of(epoch, first_id, end_id) is None:
                return False
            install()
            self._epoch += 1
            self.rotten = {first: why for first, why in self.rotten.items() if first != first_id}
            return True

    def _mend_index(self, active: ActiveSegment | None, position: int, offsets: Int64s) -> None:
        if active is not None:
            active.rewrite_index(offsets)
            return
        first_id = self._segments[position]
        header = self.read_header(segment_path(self._folder, first_id), first_id)
        write_index_file(self._disk, self._folder, header, offsets)

    def truncate(self, session_id: int, last_id: int) -> None:
        """Keep records with IDs <= ``last_id`` only; durable, marks included. Damage above ``last_id`` is gone with it.

        Fenced; Corruption if records up to ``last_id`` are damaged themselves; Trimmed if the log begins further on
        (whoever orders this does not know yet what was trimmed). No effect if the log is shorter.
        """
        with self._quiet():
            self._disk.check()
            rules.check_session(self, session_id)
            if last_id < -1:
                raise InvalidInput(f"partition {self.partition_id}: cannot be cut to transaction {last_id}")
            if last_id < self.first_id - 1:
                raise Trimmed(self.partition_id, last_id + 1, self.first_id)
            if last_id > self.last_id or (last_id == self.last_id and self.damaged is None and self._active):
                self._sync_here()
                return
            self._lower_marks(last_id)
            self._shorten(last_id)
            rotten = self.rotten
            self._adopt(self._cut(last_id))
            if self._active is not None and self._active.first_id in rotten:
                self._look_at_newest(self._active)  # where the cut is, a closed segment has become the newest
            if self.damaged is not None:
                raise self.damaged

    def _lower_marks(self, last_id: int) -> None:
        entry = self._entry
        lows = min(entry.low_water_mark, last_id), min(entry.local_low_water_mark, last_id)
        self._set_entry(ControlEntry(entry.session_id, *lows))

    def begin_at(self, session_id: int, first_id: int) -> None:
        """Give up all records, durably: the log is empty and its next one is ``first_id``. What was before that has
        been trimmed away where this replica would be copied from. What it has behind that may be of no session that was
        published: the caller's to know. Fenced; InvalidInput; DiskFull, OutOfResources: who needs the log next goes on
        with it, for some of the records may be gone.
        """
        with self._quiet():
            self._disk.check()
            rules.check_session(self, session_id)
            if first_id < 0:
                raise InvalidInput(f"partition {self.partition_id}: cannot begin with transaction {first_id}")
            self._lower_marks(first_id - 1)
            self._shorten(min(self.last_id, first_id - 1))
            self._begin_anew(first_id)

    def _begin_anew(self, first_id: int) -> None:
        self._begins_at = first_id
        self._adopt(self._cut(first_id - 1))

    def trim(self, mark: int) -> None:
        """Drop the closed segments of which every record is below ``mark``, and the newest one with them if all that
        is in it may go: then another one is begun.

        Nothing else of the log changes; a log that is damaged, or is being written anew, is left as it is. DiskFull,
        OutOfResources: to be done again.
        """
        with self._quiet():
            self._disk.check()
            if self._left_below:
                self._remove_below()
            if self.damaged is not None or self._active is None:
                return
            if mark > self.last_id >= self._active.first_id:
                try:
                    self._roll_here()
                except DiskFull:
                    if self.damaged is None:
                        self._begin_anew(self.last_id + 1)  # all of it may go, and that makes room before it needs any
                        return
                    raise
            dropped = trimming.segments_below(self._segments, mark)
            if dropped:
                self._drop(self._segments[dropped])

    def _drop(self, first_id: int) -> None:
        place = self._disk, self._folder, self._cluster_key, self.partition_id
        self._journal.forget(self.partition_id)
        try:
            write_beginning(*place, Beginning(first_id))
        except DiskFull:
            # What makes room needs a little of it: that of the zeros that were written ahead, or of an index that goes.
            if self._active is None or not self._active.give_back():
                self._disk.unlink(index_path(self._folder, self._segments[0]))
            write_beginning(*place, Beginning(first_id))
        self._epoch += 1
        self.first_id = first_id
        self._segments = [segment_id for segment_id in self._segments if segment_id >= first_id]
        self.rotten = {segment_id: why for segment_id, why in self.rotten.items() if segment_id >= first_id}
        self._remove_below()

    def _remove_below(self) -> None:
        self._left_below = True
        with enough_resources(self._folder):
            remove_below(self._disk, self._folder, self.first_id)
        self._left_below = False

    def may_trim(self, mark: int) -> bool:
        """Whether ``trim`` may have something to do; without the lock."""
        return self.first_id < mark or self._left_below

    def keep_small(self, most_bytes: int | None, oldest_ms: int | None) -> None:
        """Segments are closed by the first record that takes them past ``most_bytes``, if that is less than usual
        (None = as usual); the newest one now if it was made before ``oldest_ms`` and has records.

        So that what may go, by size or by age, can: only whole segments are dropped. DiskFull, OutOfResources.
        """
        with self._quiet():
            self._disk.check()
            usual = self._config.segment_size_bytes
            self._limit_bytes = usual if most_bytes is None else min(usual, most_bytes)
            active = self._active
            if active is None or not active.count or self.damaged is not None:
                return
            if active.end > self._limit_bytes or (oldest_ms is not None and self._may_be_older(active, oldest_ms)):
                self._roll_here()

    def _may_be_older(self, active: ActiveSegment, oldest_ms: int) -> bool:
        """Whether it was made before then, or by a clock that was ahead, so that nobody knows when."""
        return not oldest_ms <= active.header.created_ms <= self._disk.disk.now_ms() + MOST_AHEAD_MS

    def _roll_here(self) -> None:
        """Close the newest segment with the lock held and nothing else going on."""
        self._sync_here()
        try:
            self._roll(self.last_id + 1)
        except (DiskFull, OutOfResources):
            self._adopt(self._cut(self.last_id))
            raise

    def excess(self, oldest_ms: int | None, most_bytes: int | None) -> int:
        """The first record to keep: those before it were appended before ``oldest_ms``, or there are more than
        ``most_bytes`` without them (None = no matter). In whole segments, as far as size goes. OutOfResources.
        """
        with self._lock:
            end_id = self.last_id + 1
            first_id = self._segments[0] if self._segments else end_id
        if oldest_ms is not None:
            first_id = max(first_id, self.times().first_id_at(oldest_ms))
        sizes = {} if most_bytes is None else self.segment_sizes()
        if most_bytes is not None and sizes:
            first_id = max(first_id, trimming.by_size([*sizes], [*sizes.values()], most_bytes))
        return min(first_id, end_id)

    def segment_sizes(self) -> dict[int, int]:
        """The bytes of each segment, by its first ID, oldest first; none where none is active. OutOfResources."""
        with self._lock:
            segments, active = list(self._segments), self._active
        if not segments or active is None:
            return {}
        with enough_resources(self._folder):
            return {**{segment_id: self._size_of(segment_id) for segment_id in segments[:-1]}, segments[-1]: active.end}

    def _size_of(self, segment_id: int) -> int:
        path = segment_path(self._folder, segment_id)
        try:
            return self._disk.disk.file_size(path)
        except FileNotFoundError:  # dropped meanwhile, by another thread
            return 0

    def _look_at_newest(self, active: ActiveSegment) -> None:
        with enough_resources(active.path):
            scan = scan_view(self._disk.disk, active.snapshot(), self.partition_id)
        if scan.reason is not None:
            self.damaged = Corruption(active.path, scan.end, scan.reason)
            self._shorten(active.first_id + len(scan.offsets) - 1)

    def set_low_water_mark(self, session_id: int, low: int, local_low: int) -> None:
        """Record the cluster's and this replica's mark, durably, the records below them first.

        Fenced; PartitionDamaged if damage was met below them; InvalidInput.
        """
        with self._quiet():
            self._disk.check()
            rules.check_marks(self, session_id, low, local_low)
            self._sync_here()
            if self._active is not None:
                self._complete(self._active)
            self._set_entry(ControlEntry(session_id, low, local_low))

    def _complete(self, active: ActiveSegment) -> None:
        """A checkpoint: from here on a reader finds the records in the segment, without the journal, and a start need
        not look at the index before this point."""
        if self._journal.holds(self.partition_id):
            self._disk.fdatasync(active.handle, active.path)
        try:
            active.flush_index()
        except DiskFull:
            active.cut_index()  # the next start looks at all of it

    def _set_entry(self, entry: ControlEntry) -> None:
        self._control.write(self.partition_id, entry)
        self._entry = entry

    def _cut(self, last_id: int) -> Recovered:
        self._let_go()
        with enough_resources(self._folder):
            place = self._disk, self._folder, self._cluster_key, self.partition_id
            if self._begins_at is None:
                return cut_files(*place, last_id, self.first_id)
            anew = begin_anew(*place, self._begins_at)
            self._begins_at = None
            return anew

    def _let_go(self) -> None:
        """Files are about to be cut or removed: none is open, and no journal brings back what goes."""
        self._epoch += 1
        if self._active is not None:
            self._active.abandon()
            self._active = None
        self._journal.forget(self.partition_id)

    def standing_still(self) -> AbstractContextManager[object]:
        """While it is entered nothing of the partition changes, its control entry neither. A sync may go on."""
        return self._lock

    def retire(self) -> None:
        """The partition is about to be removed: the files are closed, and whoever still has this object is refused."""
        with self._quiet():
            self._epoch += 1
            active, self._active = self._active, None
            if active is not None:
                active.abandon()
            self._journal.forget(self.partition_id)
            self._segments, self.rotten = [], {}
            self.damaged = Corruption(self._folder, 0, "the partition was removed: its space has been deleted")
            self._shorten(NO_TRANSACTION)

    def close(self) -> None:
        """Give back space written ahead, complete the index, close the files."""
        with self._quiet():
            active, self._active = self._active, None
            if active is None:
                return
            if self._disk.failed or self.damaged is not None:
                active.abandon()  # a failure has been reported, damage is left for a person to look at
                return
            try:
                active.finish()
            except DiskFull:
                active.abandon()  # only the index is incomplete: the next start completes it
            except BaseException:
                active.abandon()
                raise


class _Quiet:
    """The partition's lock, taken when no sync is running."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log

    def __enter__(self) -> None:
        self._log._lock.acquire()
        self._log.wait_to_change_files()

    def __exit__(self, *error: object) -> None:
        self._log._lock.release()
