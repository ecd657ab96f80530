"""The cluster's configuration as it is kept in ZooKeeper (``ClusterInfo.settings``): plain JSON, and back.

Kept there at the first bring-up, and changed by ``waltz apply`` only: whatever a later ``waltz up`` was given. Each
actor reads them when its process starts (``own_settings``), so one that is started again has what is kept by then.
Which replicas and servers there are by now, the cluster's membership says (``as_of``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from waltz_ray.config import SECTIONS, ClusterConfig, DiskConfig, build, within_bounds
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import CoordinationError
from waltz_ray.protocol.cluster_members import ClusterMembers

__all__ = ["Settings", "as_of", "from_json", "own_host", "own_settings", "settings_in", "to_json"]


@dataclass(frozen=True)
class Settings:
    """``placement``: replica -> the Ray resource that ties it to its node (``protocol.placement.place_replicas``).
    ``servers``: those that are to run, and ``gone``: the names of actors that are not to run any more; None: as many
    servers as ``config`` has, which is what is stored. ``directories``: of replicas, where not ``config.disks`` say it,
    which are those of the first bring-up: replicas come and go."""

    config: ClusterConfig
    placement: Mapping[int, str]
    servers: frozenset[int] | None = None
    gone: tuple[str, ...] = ()
    directories: Mapping[int, str] = field(default_factory=dict)

    @property
    def server_ids(self) -> list[int]:
        """In rising order."""
        return sorted(range(self.config.servers) if self.servers is None else self.servers)

    def directory_of(self, replica_id: int) -> str:
        """Below which directory of its node a replica stores."""
        if replica_id in self.directories:
            return self.directories[replica_id]
        disks = self.config.disks
        return (disks[replica_id].directory if replica_id < len(disks) else "") or self.config.directory


def to_json(settings: Settings) -> dict[str, Any]:
    placement = {str(replica_id): resource for replica_id, resource in settings.placement.items()}
    return {"config": asdict(settings.config), "placement": placement}


def as_of(settings: Settings, members: ClusterMembers) -> Settings:
    """With the replicas and servers that belong to the cluster by now."""
    came_and_went = members.next_replica > len(settings.placement)
    placement = {r: members.resources.get(r) or settings.placement[r] for r in sorted(members.places)}
    config = replace(
        settings.config,
        disks=(),
        replicas=max(1, len(placement)),
        servers=max(1, len(members.servers)),
        replication=members.replication if came_and_went else settings.config.replication,
    )
    gone = (
        *(f"replica/{r}" for r in range(members.next_replica) if r not in members.places),
        *(f"server/{s}" for s in range(members.next_server) if s not in members.servers),
    )
    directories = {r: settings.directory_of(r) for r in placement}
    return replace(
        settings, config=config, placement=placement, servers=members.servers, gone=gone, directories=directories
    )


def settings_in(store: ClusterStore) -> Settings:
    """As they were kept when ``store`` first looked. Blocks; CoordinationError, ConfigError, ClusterNotFound."""
    return from_json(store.info().settings)


def own_settings(cluster: str, zookeeper: str) -> Settings:
    """The same by a connection of their own, for who needs them to make one: they have its session's time-out."""
    client = KazooZooKeeper(zookeeper)
    try:
        return settings_in(ClusterStore(client, cluster))
    finally:
        client.close()


def own_host(given: str) -> str:
    """Where an actor listens: at ``given``, or where nothing is, at its node's address as Ray knows it."""
    import ray  # here, because the command line needs the rest of this without it

    return given or str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]


def from_json(values: Mapping[str, Any]) -> Settings:
    """CoordinationError if something is missing, ConfigError if a configuration key is unknown or out of range."""
    try:
        fields = dict(values["config"])
        placement = {int(replica_id): str(resource) for replica_id, resource in values["placement"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CoordinationError(
            f"ZooKeeper's cluster settings are not ours ({error!r}); was it made by waltz up?"
        ) from error
    try:
        for name, kind in SECTIONS.items():
            fields[name] = build(kind, within_bounds(name, fields.get(name, {})))
        fields["disks"] = tuple(build(DiskConfig, each) for each in fields.get("disks", ()))
        return Settings(build(ClusterConfig, fields), placement)
    except (TypeError, ValueError, AttributeError) as error:
        raise CoordinationError(f"ZooKeeper's cluster settings make no sense ({error!r})") from error
