"""Whether a backup can be restored: every byte of it is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from waltz_ray.backup.catalogue import Catalogue, finished_backup, load_piece
from waltz_ray.backup.format import Manifest
from waltz_ray.backup.run import Shown
from waltz_ray.backup.target import Target
from waltz_ray.errors import Corruption

__all__ = ["BackupReport", "damages_of", "verify_backup"]


@dataclass
class BackupReport:
    """``damages``: of manifests and of pieces, the first of each piece. ``unnamed``: objects that belong to no finished
    run; the next run uses or deletes them."""

    manifest: Manifest
    damages: list[Corruption] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.damages


def verify_backup(target: Target, shown: Shown) -> BackupReport:
    """The newest run, also if another one comes to its end meanwhile.

    InvalidInput if there is no backup, Corruption if it cannot be said what it has; DataUnavailable if a space was
    deleted and taken out of the backup meanwhile.
    """
    catalogue, manifest = finished_backup(target)
    report = BackupReport(manifest, list(catalogue.damaged))
    report.damages += damages_of(target, catalogue, manifest, shown)
    known = manifest.names()
    report.unnamed = [name for name in catalogue.sizes if name.startswith("pieces/") and name not in known]
    return report


def damages_of(target: Target, catalogue: Catalogue, manifest: Manifest, shown: Shown) -> Iterator[Corruption]:
    """What is missing or too short first, then what is wrong in what is there. DataUnavailable as ``load_piece``."""
    pieces = [(p, piece) for p, backup in sorted(manifest.partitions.items()) for piece in backup.pieces]
    shown.begin("bytes checked", sum(piece.size for _, piece in pieces))
    sizes = catalogue.sizes
    there = [(p, piece) for p, piece in pieces if sizes.get(piece.name(p)) == piece.size]
    # Or a run that has come to its end since has their records elsewhere.
    missing = [(p, piece) for p, piece in pieces if piece.name(p) not in sizes]
    for p, piece in pieces:
        size, place = sizes.get(piece.name(p), piece.size), target.place(piece.name(p))
        if size != piece.size:
            yield Corruption(place, min(size, piece.size), f"it has {size} bytes, not {piece.size}")
    for p, piece in [*missing, *there]:
        try:
            load_piece(target, manifest, p, piece)
        except Corruption as damage:
            yield damage
        shown.done(piece.size)
