"""A backup's manifest, as a value and as bytes; and how its objects are named. Pure; docs/formats.md, "Backup".

::

    backup.json                      whose backup this is; written first, never changed
    manifests/<10 digits>.json       one of each run that came to its end; the newest whole one counts
    pieces/<p>/<first>-<next>.piece  the records [first, next) of partition p, immutable
    ...<anything>.new                what is being written; nobody looks at it
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from waltz_ray.protocol.spaces import Space, SpaceState, SpaceTable

__all__ = [
    "ASIDE",
    "IDENTITY",
    "MANIFESTS",
    "PIECES",
    "Identity",
    "Manifest",
    "PartitionBackup",
    "BackupPiece",
    "manifest_name",
    "manifest_number",
    "piece_of",
    "space_fields",
    "space_of",
]

IDENTITY = "backup.json"
MANIFESTS = "manifests"
PIECES = "pieces"
ASIDE = ".new"

_VERSION = 1
_MANIFEST = re.compile(rf"{MANIFESTS}/(\d{{10}})\.json")
_PIECE = re.compile(rf"{PIECES}/(\d+)/(\d{{19}})-(\d{{19}})\.piece")


@dataclass(frozen=True)
class BackupPiece:
    """The records [``first_id``, ``next_id``) of a partition, in one object.

    ``record_bytes``: its segment, header and records; ``size``: the object, with the times behind; ``sha256`` of the
    object. ``first_ms``, ``last_ms``: the times of its first and its last mark, None if nobody knows any.
    """

    first_id: int
    next_id: int
    record_bytes: int
    size: int
    sha256: str
    first_ms: int | None = None
    last_ms: int | None = None

    def name(self, partition_id: int) -> str:
        return f"{PIECES}/{partition_id}/{self.first_id:019d}-{self.next_id:019d}.piece"


@dataclass(frozen=True)
class PartitionBackup:
    """The records [``first_id``, ``next_id``) of a partition, in consecutive pieces. ``generation``: the last one given
    to it when they had been read, at least."""

    first_id: int
    next_id: int
    generation: int
    pieces: tuple[BackupPiece, ...] = ()


@dataclass(frozen=True)
class Identity:
    """Which backup this is (the name of its hold), and of which cluster, by name and key."""

    backup: uuid.UUID
    cluster: str
    cluster_key: uuid.UUID

    def encode(self) -> bytes:
        fields = {"backup": str(self.backup), "cluster": self.cluster, "cluster_key": str(self.cluster_key)}
        return _checked({"kind": "waltz backup", **fields})

    @classmethod
    def decode(cls, raw: bytes) -> Identity:
        """ValueError says what is wrong."""
        with _Reading():
            fields = _unchecked(raw, "waltz backup")
            return cls(uuid.UUID(fields["backup"]), str(fields["cluster"]), uuid.UUID(fields["cluster_key"]))


@dataclass(frozen=True)
class Manifest:
    """One run: what the cluster was, and what of it is here.

    ``config``: the fields of its ``ClusterConfig``; ``last_client_id``, ``last_server_id``: no record has a higher one.
    ``partitions`` has those of all spaces that are not gone, by their numbers in the cluster. ``documents``: rights and
    limits, as operators have set them (``coordination/seeding.py``); None: it was written before backups had them.
    ``recovery``: ``ClusterStore.recovery`` of the cluster then.
    """

    number: int
    made_ms: int
    identity: Identity
    replica_count: int
    config: Mapping[str, Any]
    last_client_id: int
    last_server_id: int
    spaces: SpaceTable
    partitions: Mapping[int, PartitionBackup] = field(default_factory=dict)
    documents: Mapping[str, str] | None = None
    recovery: str = ""

    def names(self) -> set[str]:
        """Of all its pieces."""
        return {piece.name(p) for p, backup in self.partitions.items() for piece in backup.pieces}

    def encode(self) -> bytes:
        return _checked(
            {
                "kind": "waltz backup manifest",
                "number": self.number,
                "made_ms": self.made_ms,
                "backup": str(self.identity.backup),
                "cluster": self.identity.cluster,
                "cluster_key": str(self.identity.cluster_key),
                "replicas": self.replica_count,
                "config": dict(self.config),
                "last_client_id": self.last_client_id,
                "last_server_id": self.last_server_id,
                "partition_count": self.spaces.partitions,
                "spaces": [space_fields(each) for each in sorted(self.spaces.spaces.values(), key=lambda s: s.first)],
                "partitions": {str(p): _partition_fields(each) for p, each in sorted(self.partitions.items())},
                **({} if self.documents is None else {"documents": dict(self.documents)}),
                **({"recovery": self.recovery} if self.recovery else {}),
            }
        )

    @classmethod
    def decode(cls, raw: bytes) -> Manifest:
        """ValueError says what is wrong."""
        with _Reading():
            fields = _unchecked(raw, "waltz backup manifest")
            cluster_key = uuid.UUID(fields["cluster_key"])
            spaces = {space.name: space for space in map(space_of, fields["spaces"])}
            manifest = cls(
                _count(fields, "number"),
                _count(fields, "made_ms"),
                Identity(uuid.UUID(fields["backup"]), str(fields["cluster"]), cluster_key),
                _count(fields, "replicas"),
                dict(fields["config"]),
                _count(fields, "last_client_id"),
                _count(fields, "last_server_id"),
                SpaceTable(_count(fields, "partition_count"), spaces),
                {int(p): _partition_of(each) for p, each in fields["partitions"].items()},
                None if fields.get("documents") is None else _texts(fields["documents"]),
                str(fields.get("recovery", "")),
            )
            _check(manifest)
            return manifest


def manifest_name(number: int) -> str:
    return f"{MANIFESTS}/{number:010d}.json"


def manifest_number(name: str) -> int | None:
    """None if no manifest is called so."""
    found = _MANIFEST.fullmatch(name)
    return int(found[1]) if found else None


def piece_of(name: str) -> tuple[int, int, int] | None:
    """(partition, first ID, next ID); None if no piece is called so."""
    found = _PIECE.fullmatch(name)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None


def _checked(fields: Mapping[str, Any]) -> bytes:
    """JSON with the version and a checksum of all else: of the same fields without spaces, by the order of names."""
    whole = {"version": _VERSION, **fields}
    return json.dumps({**whole, "sha256": _digest(whole)}, indent=1).encode() + b"\n"


def _unchecked(raw: bytes, kind: str) -> dict[str, Any]:
    fields = json.loads(raw)
    if not isinstance(fields, dict) or fields.get("kind") != kind or fields.get("version") != _VERSION:
        raise ValueError(f"it is no {kind} of version {_VERSION}")
    if fields.pop("sha256", None) != _digest(fields):
        raise ValueError("its checksum is wrong")
    return fields


def _digest(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


class _Reading:
    """What is missing or of another type is a ValueError, too."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyError | TypeError | AttributeError | RecursionError):
            raise ValueError(f"{type(error).__name__} {error}") from error


def _count(fields: Mapping[str, Any], name: str) -> int:
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be a whole number >= 0, not {value!r}")
    return value


def _texts(fields: Mapping[str, Any]) -> dict[str, str]:
    return {str(name): str(text) for name, text in fields.items()}


def space_fields(space: Space) -> dict[str, Any]:
    fields = {"name": space.name, "kind": space.kind, "first": space.first, "count": space.count}
    return {**fields, "state": space.state.value, "settings": dict(space.settings)}


def space_of(fields: Mapping[str, Any]) -> Space:
    settings = {str(name): _count(fields["settings"], name) for name in fields["settings"]}
    place = _count(fields, "first"), _count(fields, "count")
    return Space(str(fields["name"]), str(fields["kind"]), *place, SpaceState(fields["state"]), settings)


def _partition_fields(backup: PartitionBackup) -> dict[str, Any]:
    pieces = [[p.first_id, p.next_id, p.record_bytes, p.size, p.sha256, p.first_ms, p.last_ms] for p in backup.pieces]
    first = {"first_id": backup.first_id, "next_id": backup.next_id, "generation": backup.generation}
    return {**first, "pieces": pieces}


def _partition_of(fields: Mapping[str, Any]) -> PartitionBackup:
    pieces = []
    for first_id, next_id, record_bytes, size, sha256, first_ms, last_ms in fields["pieces"]:
        numbers = {"first_id": first_id, "next_id": next_id, "record_bytes": record_bytes, "size": size}
        times = {"first_ms": first_ms or 0, "last_ms": last_ms or 0}
        for name in (*numbers, *times):
            _count({**numbers, **times}, name)
        pieces.append(BackupPiece(first_id, next_id, record_bytes, size, str(sha256), first_ms, last_ms))
    marks = _count(fields, "first_id"), _count(fields, "next_id")
    return PartitionBackup(*marks, _count(fields, "generation"), tuple(pieces))


def _check(manifest: Manifest) -> None:
    if sorted(manifest.partitions) != manifest.spaces.kept:
        raise ValueError("its partitions are not those of its spaces")
    if manifest.replica_count < 1:
        raise ValueError("its cluster has no replica")
    for partition_id, backup in manifest.partitions.items():
        bounds = [backup.first_id, *(piece.next_id for piece in backup.pieces)]
        joined = all(piece.first_id == bound for piece, bound in zip(backup.pieces, bounds, strict=False))
        rising = all(low < high for low, high in pairwise(bounds))
        if not joined or not rising or bounds[-1] != backup.next_id:
            raise ValueError(f"the pieces of partition {partition_id} are not one behind the other")
