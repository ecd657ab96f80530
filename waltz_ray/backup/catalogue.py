"""What a place has of a backup: whose it is, the newest run that came to its end, and its pieces."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from waltz_ray.backup.format import ASIDE, IDENTITY, BackupPiece, Identity, Manifest, manifest_name, manifest_number
from waltz_ray.backup.pieces import parse_piece
from waltz_ray.backup.target import Target
from waltz_ray.errors import Corruption, InvalidInput
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.storage.layout import HEADER_BYTES

__all__ = ["Catalogue", "finished_backup", "load_piece", "read_catalogue"]


@dataclass(frozen=True)
class Catalogue:
    """``sizes``: of all objects, by name. ``damaged``: what is wrong with manifests that are newer than ``newest``.
    ``identity`` None: nothing is there; ``newest`` None: no run has come to its end."""

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
    newest, damaged = None, []
    numbers = [number for name in sizes if (number := manifest_number(name)) is not None]
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
    return Catalogue(sizes, identity, newest, tuple(damaged))


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


def load_piece(target: Target, identity: Identity, partition_id: int, piece: BackupPiece) -> RecordBatch:
    """The records of a piece, with their times, after every checksum has been looked at. Corruption."""
    name = piece.name(partition_id)
    place = target.place(name)
    try:
        raw = target.read(name)
    except FileNotFoundError as error:
        raise Corruption(place, 0, "the piece is missing") from error
    batch = parse_piece(raw, place, identity.cluster_key, partition_id, piece.first_id, piece.next_id)
    if hashlib.sha256(raw).hexdigest() != piece.sha256 or HEADER_BYTES + batch.size_bytes != piece.record_bytes:
        raise Corruption(place, 0, "its checksum is not the one in the manifest")
    return batch
