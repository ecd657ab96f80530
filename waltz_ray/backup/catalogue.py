"""What a place has of a backup: whose it is, and the newest run that came to its end."""

from __future__ import annotations

from dataclasses import dataclass

from waltz_ray.backup.format import ASIDE, IDENTITY, Identity, Manifest, manifest_name, manifest_number
from waltz_ray.backup.target import Target
from waltz_ray.errors import Corruption, InvalidInput

__all__ = ["Catalogue", "finished_backup", "read_catalogue"]


@dataclass(frozen=True)
class Catalogue:
    """``sizes``: of all objects, by name. ``damaged``: what is wrong with manifests that are newer than ``newest``.
    ``identity`` None: nothing is there; ``newest`` None: no run has come to its end."""

    sizes: dict[str, int]
    identity: Identity | None = None
    newest: Manifest | None = None
    damaged: tuple[Corruption, ...] = ()


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
