"""``waltz replace-replica``: a replica that lost what it had is rebuilt from its peers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from waltz_ray.actors.supervision import ask, replica_name, restart_actor, statuses
from waltz_ray.client.application import checked_int
from waltz_ray.client.time_limits import checked_timeout
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import ConfigError, StorageError
from waltz_ray.runtime.status import ActorState, ReplicaStatus

__all__ = ["replace_replica"]

Progress = Callable[[str], None]

_POLL_S = 0.1


def replace_replica(
    name: str,
    zookeeper: str,
    replica_id: int,
    *,
    partitions: Sequence[int] | None = None,
    files_aside: bool = False,
    progress: Progress = lambda text: None,
    deadline_s: float = 60.0,
) -> None:
    """Let replica ``replica_id`` be rebuilt from its peers: it forgets what it had joined and starts again.

    ``partitions``: only what it has of these. Returns when it serves all of its partitions; one that was damaged is
    served again when a server has opened a session with it. CoordinationError, and nothing is changed, while the
    replica is a member of a partition's last session. StorageError, saying why, if it cannot serve with the files that
    it has; ``files_aside``: those are renamed, and it begins with none. InvalidInput for what is no number.
    """
    replica_id, deadline_s = checked_int("a replica's number", replica_id), checked_timeout(deadline_s)
    if partitions is not None:
        partitions = [checked_int("a partition", p) for p in partitions]
    client = KazooZooKeeper(zookeeper)
    try:
        store = ClusterStore(client, name)
        if replica_id not in store.info().replica_ids:
            raise ConfigError(f"cluster {name!r} has no replica {replica_id}; it has {list(store.info().replica_ids)}")
        before = _replica_status(name, replica_id).incarnation
        with store.admin_lock(f"replace-replica {replica_id}, pid {os.getpid()}"):
            store.replace_replica(replica_id, partitions)
    finally:
        client.close()
    restart_actor(name, replica_name(replica_id))  # it reads its new standing in ZooKeeper when it starts
    _wait_until_replaced(name, replica_id, before, files_aside, progress, deadline_s)


def _replica_status(name: str, replica_id: int) -> ReplicaStatus:
    return statuses(name, [], [replica_id]).replicas[replica_id]


def _wait_until_replaced(
    name: str, replica_id: int, before: str | None, files_aside: bool, progress: Progress, deadline_s: float
) -> None:
    deadline = time.monotonic() + deadline_s
    while True:
        status = _replica_status(name, replica_id)
        again = status.incarnation not in (None, before)
        why_not = _why_not_whole(status) if again else "its new process has not answered yet"
        if not why_not:
            return
        lasting = again and status.state is ActorState.REFUSED  # STARTING passes by itself, damage goes with a session
        if lasting and files_aside:
            progress(f"set aside: {ask(name, replica_name(replica_id), 'set_files_aside', 30)}")
            files_aside = False
        elif lasting:
            raise StorageError(
                f"replica {replica_id} was declared replaceable, but it {why_not}; have {status.directory} set "
                f"aside (renamed, not deleted) with: waltz replace-replica {replica_id} --set-files-aside"
            )
        elif time.monotonic() > deadline:
            raise StorageError(
                f"replica {replica_id} was declared replaceable, but it does not serve after {deadline_s:g} s: "
                f"{why_not}; it goes on trying: see waltz status"
            )
        progress(f"waiting for replica {replica_id}: {why_not}")
        time.sleep(_POLL_S)


def _why_not_whole(status: ReplicaStatus) -> str:
    """ "" if the replica serves all of its partitions."""
    if not status.serving:
        return f"is {status.state}: {status.reason}"
    for partition_id, stored in status.partitions.items():
        if stored.damaged:
            return f"does not serve partition {partition_id}: {stored.damaged}"
    return ""
