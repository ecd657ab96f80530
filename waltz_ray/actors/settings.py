"""The cluster's configuration as it is kept in ZooKeeper (``ClusterInfo.settings``): plain JSON, and back.

Kept there once, at the first bring-up: the manager and its successors start everything from this, whatever a later
``waltz up`` was given.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from waltz_ray.config import (
    ClusterConfig,
    DiskConfig,
    HttpConfig,
    KvConfig,
    ServerConfig,
    StorageConfig,
    TopicConfig,
    build,
)
from waltz_ray.errors import CoordinationError

__all__ = ["Settings", "from_json", "to_json"]


@dataclass(frozen=True)
class Settings:
    """``placement``: replica -> the Ray resource that ties it to its node (``protocol.placement.place_replicas``)."""

    config: ClusterConfig
    placement: Mapping[int, str]

    def directory_of(self, replica_id: int) -> str:
        """Below which directory of its node a replica stores."""
        disks = self.config.disks
        return (disks[replica_id].directory if disks else "") or self.config.directory


def to_json(settings: Settings) -> dict[str, Any]:
    placement = {str(replica_id): resource for replica_id, resource in settings.placement.items()}
    return {"config": asdict(settings.config), "placement": placement}


def from_json(values: Mapping[str, Any]) -> Settings:
    """CoordinationError if something is missing, ConfigError if a configuration key is unknown or out of range."""
    try:
        fields = dict(values["config"])
        placement = {int(replica_id): str(resource) for replica_id, resource in values["placement"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CoordinationError(
            f"ZooKeeper's cluster settings are not ours ({error!r}); was it made by waltz up?"
        ) from error
    fields["storage"] = build(StorageConfig, fields.get("storage", {}))
    fields["server"] = build(ServerConfig, fields.get("server", {}))
    fields["kv"] = build(KvConfig, fields.get("kv", {}))
    fields["topics"] = build(TopicConfig, fields.get("topics", {}))
    fields["disks"] = tuple(build(DiskConfig, each) for each in fields.get("disks", ()))
    fields["http"] = build(HttpConfig, fields.get("http", {}))
    return Settings(build(ClusterConfig, fields), placement)
