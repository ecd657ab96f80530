"""A replica's storage directory: where it is, and whether it is the one that this replica had."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from waltz_ray.actors.full_disk import few
from waltz_ray.config import StorageConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.errors import ControlFileMissing, Corruption, ForeignStorage, NoNode
from waltz_ray.protocol.disaster import GivenUp, first_given_up
from waltz_ray.protocol.ids import NO_SESSION
from waltz_ray.storage.disk import Disk
from waltz_ray.storage.store import ReplicaStore

__all__ = ["joined_partitions", "open_storage", "replica_directory"]


def replica_directory(directory: str, replica_id: int) -> str:
    """The directory in which a replica of the cluster in ``directory`` stores."""
    return os.path.join(directory, f"replica-{replica_id}")


def open_storage(
    disk: Disk, directory: str, store: ClusterStore, replica_id: int, config: StorageConfig
) -> ReplicaStore:
    """The replica's storage, created on the very first start only (the table in ``storage_replica.py``).

    Errors say what to do.
    """
    info = store.info()
    try:
        storage = ReplicaStore.open(disk, directory, info.cluster_key, config)
    except ControlFileMissing as error:
        joined = joined_partitions(store, replica_id)
        if joined:
            raise ControlFileMissing(
                f"replica {replica_id}: {directory} holds no storage, but ZooKeeper says the replica has joined "
                f"sessions of partitions {few(joined)}: mount its disk, or have the replica rebuilt from its peers "
                f"with: waltz replace-replica {replica_id}"
            ) from error
        return ReplicaStore.create(disk, directory, info.cluster_key, info.partitions, config)
    try:
        _check_not_given_up(storage, store.given_up(), replica_id)
    except BaseException:
        storage.close()
        raise
    return storage


def _check_not_given_up(storage: ReplicaStore, given_up: Mapping[int, Sequence[GivenUp]], replica_id: int) -> None:
    """ForeignStorage if the disk was not there when the cluster was recovered without some of its records, and has
    these: it would vouch for them, though others have their IDs by now."""
    for p in given_up.keys() & set(storage.served_ids):
        try:
            log = storage.partition(p)
        except Corruption:
            continue  # it cannot tell, and vouches for nothing
        first_id = first_given_up(given_up[p], log.session_id, log.local_low_water_mark)
        if first_id is not None:
            raise ForeignStorage(
                f"replica {replica_id}: {storage.directory} was not there when the cluster was recovered from its "
                f"replicas, which gave up what it has of partition {p} from transaction {first_id} on; have it set "
                f"aside (renamed, not deleted) and copied from the others: "
                f"waltz replace-replica {replica_id} --set-files-aside"
            )


def joined_partitions(store: ClusterStore, replica_id: int) -> list[int]:
    """The partitions, but for those of deleted spaces, that count on what the replica has."""
    return [partition for partition in store.spaces.table().kept if _has_joined(store, partition, replica_id)]


def _has_joined(store: ClusterStore, partition: int, replica_id: int) -> bool:
    try:
        entry = store.roster(partition)[0].replicas.get(replica_id)
    except NoNode:
        return False  # its space is being made
    return entry is not None and entry.session_id != NO_SESSION
