"""``waltz-restored.json`` in the directory of a restored cluster: what ``waltz up`` makes its nodes from, once.

It is written first, not ``complete``; then come the replicas' directories; then it is written again, complete. So a
restore that did not come to its end leaves a directory that says so, and that is not brought up. When ZooKeeper has the
cluster, the file is renamed: the logs go on from there, and nothing may begin from this again.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from waltz_ray.backup.format import space_fields, space_of
from waltz_ray.config import ClusterConfig, ServerConfig, StorageConfig, build
from waltz_ray.coordination.hold_store import Hold
from waltz_ray.coordination.seeding import Seed
from waltz_ray.errors import StorageError
from waltz_ray.protocol.spaces import DEFAULT_SPACE, SpaceTable
from waltz_ray.small_files import replace_small_file, sync_directory

__all__ = [
    "RESTORED",
    "RESTORED_HOLD",
    "RestoredCluster",
    "forget_restored",
    "read_restored",
    "write_restored",
]

RESTORED = "waltz-restored.json"
RESTORED_HOLD = "backup.restored"
"""The hold that a restored cluster begins with where its spaces have a retention: what is old would go at once."""

_USED = "waltz-restored.used.json"
_KIND = "waltz restored cluster"
_VERSION = 1


@dataclass(frozen=True)
class RestoredCluster:
    """``config``: of the cluster that was backed up, with this one's name and number of replicas; ``next_ids``: where
    each partition ends. ``origin``: the backup, for people."""

    config: ClusterConfig
    seed: Seed
    next_ids: Mapping[int, int]
    origin: str
    complete: bool = False

    @property
    def finished(self) -> RestoredCluster:
        return replace(self, complete=True)

    def _fields(self) -> dict[str, Any]:
        seed = self.seed
        return {
            "version": _VERSION,
            "kind": _KIND,
            "complete": self.complete,
            "origin": self.origin,
            "name": self.config.name,
            "replicas": self.config.replicas,
            "replication": self.config.replication,
            "servers": self.config.servers,
            "storage": vars(self.config.storage),
            "server": vars(self.config.server),
            "cluster_key": str(seed.cluster_key),
            "last_client_id": seed.last_client_id,
            "last_server_id": seed.last_server_id,
            "partition_count": seed.spaces.partitions,
            "spaces": [space_fields(each) for each in seed.spaces.spaces.values()],
            "generations": {str(p): generation for p, generation in sorted(seed.generations.items())},
            "hold": None if seed.hold is None else {str(p): first for p, first in seed.hold.positions.items()},
            "trim_marks": {str(p): mark for p, mark in sorted(seed.trim_marks.items())},
            "sets": {str(p): list(replica_ids) for p, replica_ids in sorted(seed.sets.items())},
            "documents": dict(seed.documents),
            "next_ids": {str(p): next_id for p, next_id in sorted(self.next_ids.items())},
        }

    @classmethod
    def _of(cls, fields: Mapping[str, Any]) -> RestoredCluster:
        if fields.get("kind") != _KIND or fields.get("version") != _VERSION:
            raise ValueError(f"it is no {_KIND} of version {_VERSION}")
        spaces = {space.name: space for space in map(space_of, fields["spaces"])}
        config = ClusterConfig(
            name=fields["name"],
            partitions=spaces[DEFAULT_SPACE].count,
            replicas=fields["replicas"],
            replication=fields.get("replication", 0),  # written since there are sets
            servers=fields["servers"],
            storage=build(StorageConfig, fields["storage"]),
            server=build(ServerConfig, fields["server"]),
        )
        origin, held = str(fields["origin"]), fields["hold"]
        hold = None if held is None else Hold(RESTORED_HOLD, _by_partition(held), f"restored from {origin}")
        seed = Seed(
            uuid.UUID(fields["cluster_key"]),
            SpaceTable(int(fields["partition_count"]), spaces),
            int(fields["last_client_id"]),
            int(fields["last_server_id"]),
            _by_partition(fields["generations"]),
            _by_partition(fields["trim_marks"]),
            hold,
            {int(p): tuple(map(int, replica_ids)) for p, replica_ids in fields.get("sets", {}).items()},
            {str(path): str(text) for path, text in fields.get("documents", {}).items()},  # since backups have them
        )
        next_ids = _by_partition(fields["next_ids"])
        return cls(config, seed, next_ids, origin, fields["complete"] is True)


def _by_partition(numbers: Mapping[str, Any]) -> dict[int, int]:
    return {int(p): int(number) for p, number in numbers.items()}


def read_restored(directory: str | os.PathLike[str]) -> RestoredCluster | None:
    """What was restored into the directory and not brought up yet; None if nothing was. StorageError if the restore did
    not come to its end, or if nobody can tell."""
    path = Path(directory) / RESTORED
    try:
        restored = RestoredCluster._of(json.loads(path.read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StorageError(f"{path} is damaged ({error}); remove {directory} and restore again") from error
    if not restored.complete:
        raise StorageError(
            f"the restore of {restored.origin} into {directory} did not come to its end; remove the directory and "
            "restore again"
        )
    return restored


def write_restored(directory: str | os.PathLike[str], restored: RestoredCluster) -> None:
    """Atomically, and durable when this returns. OSError."""
    text = json.dumps(restored._fields(), indent=1) + "\n"
    replace_small_file(Path(directory) / RESTORED, text, 0o644)  # who may do what in the cluster is in it


def forget_restored(directory: str | os.PathLike[str]) -> None:
    """ZooKeeper has the cluster: nothing begins from the file any more. Idempotent. OSError."""
    try:
        os.replace(Path(directory) / RESTORED, Path(directory) / _USED)
    except FileNotFoundError:
        return
    sync_directory(directory)
