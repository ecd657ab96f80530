"""A backup becomes the directory of a new cluster: new by its key, with the same records, byte for byte.

All of the backup is looked at before anything is written. Then every replica gets its directory, through the same store
that a replica uses; the records are appended as a server would, in a session of number SEED_SESSION, and the low-water
marks are where they end. What a restore that was killed leaves: ``restored.py``.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

from waltz_ray.backup.catalogue import finished_backup, load_piece
from waltz_ray.backup.format import BackupPiece, Manifest
from waltz_ray.backup.pieces import UNKNOWN_MS, parse_times
from waltz_ray.backup.restored import RESTORED_HOLD, RestoredCluster, write_restored
from waltz_ray.backup.run import Shown
from waltz_ray.backup.target import Target
from waltz_ray.backup.verify import damages_of
from waltz_ray.config import ClusterConfig, ServerConfig, StorageConfig, build
from waltz_ray.coordination.hold_store import Hold
from waltz_ray.coordination.seeding import NO_TOPIC_USERS, SEED_SESSION, Seed
from waltz_ray.errors import Corruption, DataUnavailable, DiskFull, InvalidInput, StorageError
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.protocol.replica_sets import choose_sets, nowhere_in_particular
from waltz_ray.protocol.spaces import DEFAULT_SPACE
from waltz_ray.protocol.times import TimeMarks
from waltz_ray.small_files import make_directories
from waltz_ray.storage.disk import OsDisk
from waltz_ray.storage.partition_log import PartitionLog
from waltz_ray.storage.store import ReplicaStore

__all__ = ["Cut", "RestoreSummary", "restore"]


_RETENTION = {"retention_bytes", "retention_ms"}


@dataclass(frozen=True)
class Cut:
    """Where a partition ends in the restored cluster: before transaction ``first_id``, or before the first one that may
    have been appended at ``time_ms`` or later. ``partition_id`` None: every partition."""

    partition_id: int | None
    first_id: int | None = None
    time_ms: int | None = None


@dataclass
class RestoreSummary:
    """``hold``: what keeps retention from trimming what is old, "" if no space has one. ``next_ids``: by partition, the
    first ID that is not there. ``notes``: what else there is to do, a line each."""

    directory: str
    name: str
    cluster_key: str
    replicas: int
    transactions: int = 0
    hold: str = ""
    next_ids: dict[int, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


class DatedDisk(OsDisk):
    """Its clock says when the records that are being written were appended: segments are not younger than these."""

    def __init__(self) -> None:
        self.dated_ms: int | None = None

    def now_ms(self) -> int:
        return super().now_ms() if self.dated_ms is None else self.dated_ms


def restore(
    target: Target,
    into: str,
    shown: Shown,
    name: str = "",
    cuts: Sequence[Cut] = (),
    replicas: int | None = None,
) -> RestoreSummary:
    """The newest run of the backup, also if another one comes to its end meanwhile, in the directory ``into``, for
    ``waltz up``.

    InvalidInput if there is anything in ``into``, no backup, or no such cut; Corruption if the backup is damaged:
    nothing was written then, unless it was damaged after it had been looked at. DataUnavailable if a space was deleted
    and taken out of the backup meanwhile. These, DiskFull, StorageError: what was written says that it is not whole.
    """
    into = os.path.abspath(into)
    _check_empty(into)
    catalogue, manifest = finished_backup(target)
    config = _config(manifest, name, replicas)
    ends = _ends(target, manifest, cuts)
    damage = next(iter(catalogue.damaged), None) or next(damages_of(target, catalogue, manifest, shown), None)
    if damage is not None:
        raise Corruption(damage.file, damage.offset, f"{damage.reason}; nothing was restored")
    generations = {p: backup.generation for p, backup in manifest.partitions.items()}
    trim_marks = {p: backup.first_id for p, backup in manifest.partitions.items() if backup.first_id}
    ids = manifest.last_client_id, manifest.last_server_id
    hold, sets = _hold(manifest, target.shown), _sets(config, manifest.spaces.partitions)
    documents = manifest.documents or {}
    seed = Seed(uuid.uuid4(), manifest.spaces, *ids, generations, trim_marks, hold, sets, documents)
    restored = RestoredCluster(config, seed, ends, target.shown)
    _check_empty(into)  # once more: to look at the backup may take hours, and somebody else restores there, too
    try:
        make_directories(into, 0o755)
        write_restored(into, restored)
        _write_replicas(target, manifest, restored, into, shown)
        write_restored(into, restored.finished)
    except OSError as error:
        raise StorageError(f"{into} cannot be written: {error.strerror}; remove it and restore again") from error
    except DataUnavailable as error:
        raise DataUnavailable(f"{error}, after removing {into}, which is not whole") from error
    except DiskFull as error:
        raise DiskFull(f"{into}: no space left on the disk; remove it, make room and restore again") from error
    count = sum(ends[p] - backup.first_id for p, backup in manifest.partitions.items())
    held = "" if seed.hold is None else seed.hold.name
    notes = _notes(manifest.documents)
    return RestoreSummary(into, config.name, str(seed.cluster_key), config.replicas, count, held, ends, notes)


def _notes(documents: Mapping[str, str] | None) -> list[str]:
    if documents is None:
        return [
            "this backup was made by a version that did not back up rights: the new cluster has none, so who reaches "
            "a port may do everything there; set them with: waltz up --rights FILE, waltz topic access FILE"
        ]
    if NO_TOPIC_USERS not in documents.values():
        return []
    return [
        "passwords of topics' users are not in a backup: nobody produces or consumes until you set the users and "
        "rights of topics again: waltz topic access FILE"
    ]


def _hold(manifest: Manifest, origin: str) -> Hold | None:
    """Everything of the spaces that have a retention: old as they are, these records would be trimmed at once."""
    spaces = [space for space in manifest.spaces.present() if _RETENTION & space.settings.keys()]
    positions = {p: manifest.partitions[p].first_id for space in spaces for p in space.partitions}
    return Hold(RESTORED_HOLD, positions, f"restored from {origin}") if positions else None


def _check_empty(into: str) -> None:
    try:
        found = sorted(os.listdir(into))
    except FileNotFoundError:
        return
    except OSError as error:
        raise InvalidInput(f"{into} cannot be restored into: {error.strerror}; give another --into") from error
    if found:
        raise InvalidInput(
            f"{into} is not empty ({found[0]} is in it), and nothing is overwritten; give another --into"
        )


def _config(manifest: Manifest, name: str, replicas: int | None) -> ClusterConfig:
    """That of the cluster, as far as it goes on."""
    fields: Mapping[str, Any] = manifest.config
    count = manifest.replica_count if replicas is None else replicas
    replication = int(fields.get("replication", 0))
    return ClusterConfig(
        name=name or manifest.identity.cluster,
        partitions=manifest.spaces.spaces[DEFAULT_SPACE].count,
        replicas=count,
        replication=replication if replication <= count else 0,
        servers=int(fields.get("servers", ClusterConfig().servers)),
        storage=build(StorageConfig, dict(fields.get("storage", {}))),
        server=build(ServerConfig, dict(fields.get("server", {}))),
    )


def _sets(config: ClusterConfig, partitions: int) -> dict[int, tuple[int, ...]]:
    """Who gets which partition, where not everybody gets all; nobody knows yet where the replicas will be."""
    if not config.replication:
        return {}
    places = nowhere_in_particular(range(config.replicas))
    chosen = choose_sets(places, config.replication)
    return dict(enumerate(islice(chosen, partitions)))


def _ends(target: Target, manifest: Manifest, cuts: Sequence[Cut]) -> dict[int, int]:
    """Partition -> ID behind its last record. InvalidInput."""
    ends = {p: backup.next_id for p, backup in manifest.partitions.items()}
    for cut in sorted(cuts, key=lambda cut: cut.partition_id is not None):  # one partition's own goes before all
        if cut.partition_id is not None and cut.partition_id not in ends:
            raise InvalidInput(f"the backup has no partition {cut.partition_id}; it has {_few(sorted(ends))}")
        for p in ends if cut.partition_id is None else (cut.partition_id,):
            ends[p] = _end(target, manifest, p, cut)
    return ends


def _few(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (" ..." if len(numbers) > 8 else "")


def _end(target: Target, manifest: Manifest, p: int, cut: Cut) -> int:
    if cut.first_id is None:
        assert cut.time_ms is not None
        return _end_at(target, manifest, p, cut.time_ms)
    backup = manifest.partitions[p]
    if not backup.first_id <= cut.first_id <= backup.next_id:
        raise InvalidInput(
            f"partition {p} cannot end before transaction {cut.first_id}: the backup has {backup.first_id} to "
            f"{backup.next_id - 1}"
        )
    return cut.first_id


def _end_at(target: Target, manifest: Manifest, p: int, time_ms: int) -> int:
    """The first record that may have been appended at that time or later. Those of which nobody knows the time count as
    being as old as those before them."""
    backup, second_ms = manifest.partitions[p], time_ms // 1000 * 1000  # a mark is good for its second
    for piece in backup.pieces:
        if piece.last_ms is None or piece.last_ms < second_ms:
            continue
        for transaction_id, marked_ms in _times(target, manifest, p, piece):
            if marked_ms >= second_ms:
                return transaction_id
    return backup.next_id


def _times(target: Target, manifest: Manifest, p: int, piece: BackupPiece) -> TimeMarks:
    name, at = piece.name(p), piece.record_bytes
    try:
        raw = target.read(name, at)  # the times alone
    except FileNotFoundError:
        return load_piece(target, manifest, p, piece).times  # from where its records are now
    return parse_times(raw, target.place(name), at, piece.first_id, piece.next_id)


def _write_replicas(target: Target, manifest: Manifest, restored: RestoredCluster, into: str, shown: Shown) -> None:
    key, partitions = restored.seed.cluster_key, manifest.spaces.partitions
    total = sum(restored.next_ids[p] - backup.first_id for p, backup in manifest.partitions.items())
    shown.begin("transactions restored", total)
    with ExitStack() as stack:
        disks, stores = [], []
        for number in range(restored.config.replicas):
            disk = DatedDisk()
            directory = os.path.join(into, f"replica-{number}")
            store = ReplicaStore.create(disk, directory, key, partitions, restored.config.storage)
            stack.callback(store.close)
            disks.append(disk)
            stores.append(store)
        for p in sorted(manifest.partitions):
            logs = [
                (disks[number], stores[number].partition(p)) for number in restored.seed.sets.get(p, range(len(stores)))
            ]
            _write_partition(target, manifest, p, restored.next_ids[p], logs, shown)


def _write_partition(
    target: Target, manifest: Manifest, p: int, end: int, logs: list[tuple[DatedDisk, PartitionLog]], shown: Shown
) -> None:
    backup = manifest.partitions[p]
    pieces = [piece for piece in backup.pieces if piece.first_id < end]
    if not pieces:
        _begin(logs, backup.first_id)
    for piece in pieces:
        records = load_piece(target, manifest, p, piece).slice(0, end - piece.first_id)
        batches = dated(records)
        if piece is pieces[0]:
            _date(logs, batches[0].times)
            _begin(logs, backup.first_id)
        for batch in batches:
            _date(logs, batch.times)
            for _, log in logs:
                log.append(SEED_SESSION, batch)
        shown.done(len(records))
    for disk, log in logs:
        log.set_low_water_mark(SEED_SESSION, log.last_id, log.last_id)
        log.close()
        disk.dated_ms = None


def _begin(logs: list[tuple[DatedDisk, PartitionLog]], first_id: int) -> None:
    """Make the first segments."""
    for _, log in logs:
        log.open_session(SEED_SESSION)
        if first_id:
            log.begin_at(SEED_SESSION, first_id)


def _date(logs: list[tuple[DatedDisk, PartitionLog]], times: TimeMarks) -> None:
    """Segments that are made next begin with records of this time; where nobody knows it, of any."""
    for disk, _ in logs:
        if times or disk.dated_ms is None:
            disk.dated_ms = times[0][1] if times else UNKNOWN_MS


def dated(records: RecordBatch) -> list[RecordBatch]:
    """The records in pieces of one time each."""
    bounds = sorted({records.first_id, records.end_id, *(mark[0] for mark in records.times)})
    return [records.slice(low - records.first_id, high - records.first_id) for low, high in pairwise(bounds)]
