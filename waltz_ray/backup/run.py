"""One run of a backup: what is new since the last one, and a manifest of all there is.

Crash story. Objects are written whole and never changed (``target.py``). A run, in this order:

==========================================  =======================================================================
step                                        killed behind it
==========================================  =======================================================================
``backup.json``, if it is not there         a backup without a run; the next run goes on
hold the records that are about to be read  a hold that nobody needs; the next run of this backup takes it over
pieces, one by one                          pieces that no manifest names; the next run takes those that it would
                                            write itself, after it has looked at every byte, and deletes the others
the manifest: from here on it counts        the manifest before and pieces that it alone names; the next run
                                            deletes them
older manifests, then what no manifest      some of them; the next run deletes the rest
names, are deleted
the hold is released, or raised             as above
==========================================  =======================================================================

So at any moment the newest manifest, and all that it names, is there. What is cut short is the time: a run reads up to
the marks that were committed when it began.

The last piece of a partition may be a short one. The next run writes it anew, longer, with the records it has from here
and not from the cluster, which may have trimmed them since; full pieces are never written again.

After a recovery that has accepted a loss (``waltz recover``) a log may have other records under IDs that it had before.
A log shares all that is before a record that it has in common with what it was, so it is enough to look at the last
one: of what the backup has, when the cluster was recovered since its last run, and of each piece that a killed run has
left, of which nobody knows when it was written.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from waltz_ray.backup.catalogue import Catalogue, load_piece, read_catalogue
from waltz_ray.backup.format import (
    ASIDE,
    IDENTITY,
    BackupPiece,
    Identity,
    Manifest,
    PartitionBackup,
    manifest_name,
    manifest_number,
    piece_of,
)
from waltz_ray.backup.pace import Pace
from waltz_ray.backup.pieces import PieceBuilder, described, parse_piece
from waltz_ray.backup.source import BackupSource
from waltz_ray.backup.target import Target
from waltz_ray.errors import ClusterMismatch, CoordinationError, Corruption, DataUnavailable, InvalidInput, Trimmed
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.protocol.spaces import SpaceState, SpaceTable
from waltz_ray.protocol.times import NO_TIMES, joined_times
from waltz_ray.storage.layout import HEADER_BYTES

__all__ = ["PIECE_BYTES", "BackupChoices", "Shown", "Summary", "back_up", "hold_name"]

PIECE_BYTES = 64 * 1024 * 1024
"""A piece is finished by the batch of records that takes it past this size; it is held in memory until then."""


class Shown(Protocol):
    """Who is told how far it is."""

    def begin(self, what: str, total: int) -> None: ...
    def done(self, count: int) -> None:
        """So many more are."""


@dataclass(frozen=True)
class BackupChoices:
    """``keep_hold``: what this run has not backed up stays held when it ends, for the next one."""

    piece_bytes: int = PIECE_BYTES
    keep_hold: bool = False


@dataclass
class Summary:
    """What a run has done. ``transactions``, ``written_bytes``: new in this run; ``total_*``: in the whole backup."""

    cluster: str
    manifest: int = 0
    partitions: int = 0
    transactions: int = 0
    pieces_written: int = 0
    pieces_resumed: int = 0
    written_bytes: int = 0
    total_transactions: int = 0
    total_bytes: int = 0
    hold: str = ""
    next_ids: dict[int, int] = field(default_factory=dict)


def hold_name(backup: uuid.UUID) -> str:
    return f"backup.{backup}"


def back_up(
    source: BackupSource,
    target: Target,
    choices: BackupChoices,
    pace: Pace,
    shown: Shown,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> Summary:
    """What is committed now and not in the backup is, when this returns.

    InvalidInput if something else is there, or if records were trimmed before a run could read them; ClusterMismatch if
    it is another cluster's backup; Corruption if it is damaged where it has to be read; CoordinationError while another
    run is under way; DataUnavailable, DiskFull, StorageError: in each case the backup is what it was, and another try
    goes on from what is there.
    """
    identity = _identity(source, target)
    with source.locked(identity.backup) as check_lock:
        return _Run(source, target, choices, pace, shown, identity).run(check_lock, now_ms())


def _identity(source: BackupSource, target: Target) -> Identity:
    found = read_catalogue(target).identity or _begun(source, target)
    if found.cluster_key != source.cluster_key:
        raise ClusterMismatch(
            f"{target.shown} is the backup of another cluster, {found.cluster!r} (their keys differ); "
            "give another place"
        )
    return found


def _begun(source: BackupSource, target: Target) -> Identity:
    """Whose backup this is from now on. Of two first runs one makes it: the lock has the name of the place, for the
    backup has no name yet, and the place is looked at once more under it."""
    with source.locked(uuid.uuid5(source.cluster_key, target.shown)):
        found = read_catalogue(target).identity
        if found is None:
            found = Identity(uuid.uuid4(), source.cluster, source.cluster_key)
            target.write(IDENTITY, [found.encode()])
        return found


class _Run:
    def __init__(
        self, source: BackupSource, target: Target, choices: BackupChoices, pace: Pace, shown: Shown, identity: Identity
    ) -> None:
        self._source, self._target, self._choices = source, target, choices
        self._pace, self._shown, self._identity = pace, shown, identity
        self._catalogue = self._looked_at()
        self._before = self._catalogue.newest
        self._recovery = source.recovery()
        self._hold, self._why = hold_name(identity.backup), f"waltz backup {target.shown}"
        self._summary = Summary(source.cluster)
        self._left: dict[tuple[int, int], list[tuple[int, str]]] = {}
        """What killed runs have left: (partition, first ID) -> [(next ID, name)]."""
        named = self._before.names() if self._before is not None else set()
        for name in sorted(self._catalogue.sizes.keys() - named):
            if (place := piece_of(name)) is not None:
                self._left.setdefault(place[:2], []).append((place[2], name))

    def _looked_at(self) -> Catalogue:
        """What the place has now. Who knows it by another name, or has another cluster, knows nothing of our locks."""
        catalogue = read_catalogue(self._target)
        if catalogue.identity != self._identity:
            raise CoordinationError(
                f"another backup has been begun in {self._target.shown} meanwhile; give each backup a place of its own"
            )
        return catalogue

    def run(self, check_lock: Callable[[], None], made_ms: int) -> Summary:
        try:
            table, ends, begins = self._held()
            counters = self._source.counters()  # after the ends: no record below them has a higher one
            known = self._before.partitions if self._before is not None else {}
            self._shown.begin("transactions", sum(ends[p] - begins[p] for p in ends))
            partitions: dict[int, PartitionBackup] = {}
            for p in table.kept:
                try:
                    partitions[p] = self._partition(p, known.get(p), begins[p], ends[p], counters.generations.get(p, 0))
                except DataUnavailable:
                    if p not in self._source.spaces().gone:
                        raise
            table = _without(table, partitions)
            partitions = {p: each for p, each in partitions.items() if p not in table.gone}
            manifest = Manifest(
                self._catalogue.next_number,
                made_ms,
                self._identity,
                self._source.replica_count,
                self._source.config,
                counters.client_id,
                counters.server_id,
                table,
                partitions,
                self._source.documents(),
                self._recovery,
            )
            self._finish(manifest, check_lock)
        except BaseException:
            if not self._choices.keep_hold:
                with suppress(CoordinationError):  # it stays, and keeps too much, until the next run takes it over
                    check_lock()  # without the lock it may be another run's by now
                    self._source.release(self._hold)
            raise
        return self._summary

    def _held(self) -> tuple[SpaceTable, dict[int, int], dict[int, int]]:
        """(the spaces, where each partition ends now, from where on it will be read); what is in between is held."""
        while True:
            table = self._source.spaces()
            begins = self._hold_from(table)
            try:
                ends = {p: self._source.end(p) for p in table.kept}
            except DataUnavailable:
                if self._source.spaces().gone == table.gone:
                    raise
                continue  # a space was deleted meanwhile
            for p, end in ends.items():
                if end < begins[p]:
                    raise DataUnavailable(
                        f"partition {p} ends with transaction {end - 1}, and the backup has {begins[p] - 1} already: "
                        "no server answers for it just now, or the cluster has lost records"
                    )
            return table, ends, begins

    def _hold_from(self, table: SpaceTable) -> dict[int, int]:
        """By partition the first record that is not in the backup, or the first there is; from there on all is held."""
        known = self._before.partitions if self._before is not None else {}
        while True:
            trimmed = self._source.trim_marks()
            begins = {p: known[p].next_id if p in known else trimmed.get(p, 0) for p in table.kept}
            for p, begin in begins.items():
                if begin < trimmed.get(p, 0):
                    raise InvalidInput(
                        f"partition {p}: transactions {begin} to {trimmed[p] - 1} were trimmed before they were backed "
                        f"up, so {self._target.shown} cannot go on; begin another backup in an empty place, with --hold"
                    )
            try:
                self._source.hold(self._hold, begins, self._why)
            except Trimmed:
                continue  # since the marks were read
            return begins

    def _partition(
        self, p: int, known: PartitionBackup | None, begin: int, end: int, generation: int
    ) -> PartitionBackup:
        first_id = begin if known is None else known.first_id
        pieces = [] if known is None else list(known.pieces)
        if pieces and self._before is not None and self._before.recovery != self._recovery:
            self._check_recovered(p, load_piece(self._target, self._before, p, pieces[-1]))
        if begin < end:
            short = pieces.pop() if pieces and pieces[-1].size < self._choices.piece_bytes else None
            at = begin if short is None else short.first_id
            while (found := self._left_behind(p, at, begin, end)) is not None:
                pieces.append(found)
                self._summary.pieces_resumed += 1
                self._shown.done(found.next_id - max(at, begin))
                at = found.next_id
            if at < end:
                pieces += self._new_pieces(p, short if at < begin else None, max(at, begin), end)
        self._summary.transactions += end - begin
        return PartitionBackup(first_id, end, generation, tuple(pieces))

    def _left_behind(self, p: int, at: int, begin: int, end: int) -> BackupPiece | None:
        """A piece that a killed run has written, and that this one would write at ``at``: whole, and a full one or the
        last."""
        for next_id, name in reversed(self._left.get((p, at), [])):
            full = next_id < end and self._catalogue.sizes[name] >= self._choices.piece_bytes
            if next_id > begin and (full or next_id == end):
                try:
                    piece, batch = _described(name, self._target, self._identity.cluster_key)
                except Corruption:
                    continue  # it is deleted in the end
                if self._in_the_log(batch):
                    return piece
        return None

    def _check_recovered(self, p: int, batch: RecordBatch) -> None:
        """InvalidInput if the recovery has given up what the backup has, of which these are the last records."""
        if self._source.trim_marks().get(p, 0) > batch.last_id:
            why = f"{batch.last_id}, the last one of the backup, was trimmed before it could be compared"
        elif not self._in_the_log(batch):
            why = f"{batch.last_id} is another one than in the backup: the recovery has lost what was there"
        else:
            return
        raise InvalidInput(
            f"the cluster was recovered from its disks since the last run, and transaction {why} (partition {p}), so "
            f"{self._target.shown} cannot go on; begin another backup in an empty place"
        )

    def _in_the_log(self, batch: RecordBatch) -> bool:
        """Whether the log has these records: it has the last of them."""
        (found,) = self._source.read(batch.partition_id, batch.last_id, batch.end_id)
        return bytes(found.records) == bytes(batch.since(batch.last_id).records)

    def _new_pieces(self, p: int, short: BackupPiece | None, at: int, end: int) -> list[BackupPiece]:
        """Pieces of the records [at, end), the first of them with those of the short piece in front."""
        found: list[BackupPiece] = []
        key = self._identity.cluster_key
        builder, before = PieceBuilder(key, p, at), None
        if short is not None:
            assert self._before is not None
            before = load_piece(self._target, self._before, p, short)
            builder = PieceBuilder(key, p, short.first_id)
            builder.add(before)
        for batch in self._source.read(p, at, end):
            self._pace.took(batch.size_bytes)
            self._shown.done(len(batch))
            builder.add(batch)
            if builder.size >= self._choices.piece_bytes or batch.end_id == end:
                found.append(self._written(p, builder, before))
                builder, before = PieceBuilder(key, p, batch.end_id), None
        return found

    def _written(self, p: int, builder: PieceBuilder, before: RecordBatch | None) -> BackupPiece:
        new_id = builder.first_id if before is None else before.end_id
        times = self._source.times(p, new_id, builder.next_id)
        # Several replicas may have been asked, of which not all know the same.
        piece, parts = builder.finish(joined_times((NO_TIMES if before is None else before.times, times)))
        self._target.write(piece.name(p), parts)
        self._summary.pieces_written += 1
        self._summary.written_bytes += piece.size
        return piece

    def _finish(self, manifest: Manifest, check_lock: Callable[[], None]) -> None:
        """The manifest counts; what it does not name goes; the hold is let go."""
        check_lock()
        names = self._looked_at().sizes
        if any((number := manifest_number(name)) is not None and number >= manifest.number for name in names):
            raise CoordinationError(f"another run of the backup in {self._target.shown} has come to its end meanwhile")
        self._target.write(manifest_name(manifest.number), [manifest.encode()])
        kept = manifest.names()
        manifests = [name for name in names if manifest_number(name) is not None]
        pieces = [name for name in names if piece_of(name.removesuffix(ASIDE)) is not None and name not in kept]
        others = [name for name in names if name.endswith(ASIDE) and name not in pieces]
        self._target.delete([*manifests, *pieces, *others])
        next_ids = {p: each.next_id for p, each in manifest.partitions.items()}
        if self._choices.keep_hold:
            self._source.advance(self._hold, next_ids, self._why)
            self._summary.hold = self._hold
        else:
            self._source.release(self._hold)
        all_pieces = [piece for each in manifest.partitions.values() for piece in each.pieces]
        self._summary.manifest, self._summary.partitions = manifest.number, len(manifest.partitions)
        self._summary.total_transactions = sum(each.next_id - each.first_id for each in manifest.partitions.values())
        self._summary.total_bytes = sum(piece.size for piece in all_pieces)
        self._summary.next_ids = next_ids


def _described(name: str, target: Target, cluster_key: uuid.UUID) -> tuple[BackupPiece, RecordBatch]:
    place = piece_of(name)
    assert place is not None
    raw = target.read(name)
    batch = parse_piece(raw, target.place(name), cluster_key, *place)
    return described(place[1], place[2], HEADER_BYTES + batch.size_bytes, [raw], batch.times), batch


def _without(table: SpaceTable, partitions: Mapping[int, PartitionBackup]) -> SpaceTable:
    """The spaces of whose partitions none is missing stay; the others were deleted while their records were read."""

    def as_it_is(name: str) -> SpaceState:
        space = table.spaces[name]
        return space.state if all(p in partitions for p in space.partitions) else SpaceState.GONE

    spaces = {name: replace(space, state=as_it_is(name)) for name, space in table.spaces.items()}
    return SpaceTable(table.partitions, spaces)
