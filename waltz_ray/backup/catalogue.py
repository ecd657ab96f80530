"""What a place has of a backup: whose it is, the newest run that came to its end, and its pieces."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from waltz_ray.backup.format import (
    ASIDE,
    IDENTITY,
    MANIFESTS,
    BackupPiece,
    Identity,
    Manifest,
    manifest_name,
    manifest_number,
)
from waltz_ray.backup.pieces import parse_piece
from waltz_ray.backup.target import Target
from waltz_ray.errors import Corruption, DataUnavailable, InvalidInput
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.storage.layout import HEADER_BYTES

__all__ = ["Catalogue", "finished_backup", "load_piece", "read_catalogue"]


@dataclass(frozen=True)
class Catalogue:
    """``sizes``: of all objects, by name, listed after ``newest`` was read. ``damaged``: what is wrong with manifests
    that are newer than ``newest``. ``identity`` None: nothing is there; ``newest`` None: no run has come to its end."""

    sizes: dict[str, int]
    identity: Identity | None = None
    newest: Manifest | None = None
    damaged: tuple[Corruption, ...] = ()

    @property
    def next_number(self) -> int:
        """No manifest has such a high one, damaged or not."""
        return 1 + max((number for name in self.sizes if (number := manifest_number(name)) is not None), default=-1)


def read_catalogue(target: Target) -> Catalogue:
    """InvalidInput if there is something else than a backup; Corruption if nobody can say what the backup has."""
    sizes = target.names()
    if IDENTITY not in sizes:
        others = sorted(name for name in sizes if name != IDENTITY + ASIDE)
        if others:
            raise InvalidInput(f"{target.shown} is no backup, and has {others[0]} in it; give a place that is empty")
        return Catalogue(sizes)
    try:
        identity = Identity.decode(target.read(IDENTITY))
    except ValueError as error:
        raise Corruption(target.place(IDENTITY), 0, str(error)) from error
    newest, damaged = _newest_manifest(target, identity)
    sizes = target.names()  # once more: what a manifest names does not change any more, and may go with the next run
    return Catalogue(sizes, identity, newest, tuple(damaged))


def _newest_manifest(target: Target, identity: Identity) -> tuple[Manifest | None, list[Corruption]]:
    """The newest whole one, and what is wrong with those that are newer. Corruption."""
    before = None
    while True:
        names = target.names(MANIFESTS)
        try:
            return _newest_of(target, identity, names)
        except FileNotFoundError as error:
            if names == before:
                raise Corruption(target.place(MANIFESTS), 0, "a manifest is listed that is not there") from error
            before = names  # a run has come to its end since they were listed: it deletes those before its own


def _newest_of(target: Target, identity: Identity, names: Iterable[str]) -> tuple[Manifest | None, list[Corruption]]:
    newest, damaged = None, []
    numbers = [number for name in names if (number := manifest_number(name)) is not None]
    for number in sorted(numbers, reverse=True):
        place = target.place(manifest_name(number))
        try:
            newest = Manifest.decode(target.read(manifest_name(number)))
        except ValueError as error:
            damaged.append(Corruption(place, 0, str(error)))
            continue
        if newest.identity != identity or newest.number != number:
            raise Corruption(place, 0, "it is of another backup, or of another run")
        break
    if damaged and newest is None:
        raise damaged[0]
    return newest, damaged


def finished_backup(target: Target) -> tuple[Catalogue, Manifest]:
    """The same for who wants to read the backup: InvalidInput if there is none, or none that was finished."""
    catalogue = read_catalogue(target)
    if catalogue.identity is None:
        raise InvalidInput(f"{target.shown} holds no backup; make one with: waltz backup {target.shown}")
    if catalogue.newest is None:
        raise InvalidInput(
            f"{target.shown}: no run of this backup has come to its end; go on with: waltz backup {target.shown}"
        )
    return catalogue, catalogue.newest


def load_piece(target: Target, manifest: Manifest, partition_id: int, piece: BackupPiece) -> RecordBatch:
    """The records of a piece of that manifest, with their times, after every checksum has been looked at.

    A run that has come to its end since then has written the last, short piece of a partition anew, longer, and deleted
    it: its records are read from there. Corruption; DataUnavailable if the run has left them out, with their space.
    """
    here, number = piece, manifest.number
    while True:
        try:
            batch = _load(target, manifest.identity, partition_id, here)
            return batch.slice(piece.first_id - here.first_id, piece.next_id - here.first_id)
        except FileNotFoundError as error:
            newest, _ = _newest_manifest(target, manifest.identity)
            if newest is None or newest.number <= number:
                raise Corruption(target.place(here.name(partition_id)), 0, "the piece is missing") from error
            here, number = _successor(target, newest, partition_id, piece), newest.number


def _successor(target: Target, newest: Manifest, partition_id: int, piece: BackupPiece) -> BackupPiece:
    """Who has the piece's records now."""
    if partition_id not in newest.partitions:
        raise DataUnavailable(
            f"the space of partition {partition_id} was deleted, and a run has taken it out of {target.shown} "
            "meanwhile; give the same command again"
        )
    for each in newest.partitions[partition_id].pieces:
        if each.first_id <= piece.first_id and piece.next_id <= each.next_id:
            return each
    raise Corruption(target.place(piece.name(partition_id)), 0, "the piece is missing")


def _load(target: Target, identity: Identity, partition_id: int, piece: BackupPiece) -> RecordBatch:
    """FileNotFoundError; Corruption."""
    name = piece.name(partition_id)
    place, raw = target.place(name), target.read(name)
    batch = parse_piece(raw, place, identity.cluster_key, partition_id, piece.first_id, piece.next_id)
    if hashlib.sha256(raw).hexdigest() != piece.sha256 or HEADER_BYTES + batch.size_bytes != piece.record_bytes:
        raise Corruption(place, 0, "its checksum is not the one in the manifest")
    return batch
