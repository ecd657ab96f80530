"""What Prometheus sees: gauges through ``ray.util.metrics``, set every few seconds from ``status()``.

Ray exports them at each node's metrics port with the prefix ``ray_`` (``deploy/prometheus.yml``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ray.util.metrics import Gauge

__all__ = ["Gauges", "ServerGauges"]

_PER_REPLICA = {
    "waltz_replica_serving": "1 if the replica serves, else 0",
    "waltz_replica_disk_use_bytes": "bytes in the storage directory",
    "waltz_replica_disk_free_bytes": "bytes free on its disk",
    "waltz_replica_connections": "connections of partition servers since the replica started",
    "waltz_replica_turns": "turns since the replica started; a turn with appends costs one sync",
    "waltz_replica_records": "records appended since the replica started",
    "waltz_replica_record_bytes": "bytes of records appended since the replica started",
}
_PER_PARTITION = {
    "waltz_replica_last_id": "ID of the replica's last valid transaction",
    "waltz_replica_low_water_mark": "the replica's low-water mark",
    "waltz_replica_session": "highest session the replica has accepted",
    "waltz_replica_damaged": "1 if the partition is damaged and not served",
}


class Gauges:
    """One process's gauges, tagged with the cluster and the replica; works without a running Ray (sets nothing)."""

    def __init__(self, cluster: str, replica: str) -> None:
        tags = {"cluster": cluster, "replica": replica}
        self._gauges = {
            name: Gauge(name, description=text, tag_keys=("cluster", "replica", *more))
            for names, more in ((_PER_REPLICA, ()), (_PER_PARTITION, ("partition",)))
            for name, text in names.items()
        }
        for gauge in self._gauges.values():
            gauge.set_default_tags(tags)

    def replica(self, status: Mapping[str, Any]) -> None:
        """Set everything from one ``ReplicaHost.status()``; None = not known yet, the old value stays."""
        values = {
            "serving": int(status["state"] == "SERVING"),
            "disk_use_bytes": status["disk_use_bytes"],
            "disk_free_bytes": status["disk_free_bytes"],
            **{name: status["traffic"].get(name) for name in ("connections", "turns", "records", "record_bytes")},
        }
        for name, value in values.items():
            if value is not None:
                self._gauges[f"waltz_replica_{name}"].set(value)
        for partition_id, partition in status["partitions"].items():
            tags = {"partition": partition_id}
            for name in ("last_id", "low_water_mark", "session"):
                if partition[name] is not None:
                    self._gauges[f"waltz_replica_{name}"].set(partition[name], tags=tags)
            self._gauges["waltz_replica_damaged"].set(int(partition["damaged"] is not None), tags=tags)


_PER_SERVER_PARTITION = {
    "waltz_partition_ready": "1 if the partition is open on this server, else 0",
    "waltz_partition_high_water_mark": "ID of the last committed transaction",
    "waltz_partition_session": "session that is running",
    "waltz_partition_generation": "generation of the assignment",
    "waltz_partition_members": "replicas whose acknowledgements count",
    "waltz_partition_in_flight_bytes": "bytes of records that are admitted and not committed",
    "waltz_partition_subscribers": "mounted clients",
}


_PER_SERVER = {
    "waltz_server_connections": "connections of clients",
    "waltz_server_slow_steps": "steps of the event loop that took longer than 20 ms since the server started",
    "waltz_server_longest_step_ms": "the longest of them in milliseconds",
}


class ServerGauges:
    """The gauges of one partition server, tagged with the cluster, the server and, of a partition's, the partition."""

    def __init__(self, cluster: str, server: str) -> None:
        self._gauges = {
            name: Gauge(name, description=text, tag_keys=("cluster", "server", "partition"))
            for name, text in _PER_SERVER_PARTITION.items()
        }
        self._own = {
            name: Gauge(name, description=text, tag_keys=("cluster", "server")) for name, text in _PER_SERVER.items()
        }
        for gauge in (*self._gauges.values(), *self._own.values()):
            gauge.set_default_tags({"cluster": cluster, "server": server})

    def server(self, status: Mapping[str, Any]) -> None:
        """Set everything from one ``Server.status()``."""
        for name, gauge in self._own.items():
            gauge.set(float(status[name.removeprefix("waltz_server_")]))
        for partition_id, partition in status["partitions"].items():
            values = {**partition, "ready": partition["state"] == "READY", "members": len(partition["members"])}
            for name, gauge in self._gauges.items():
                value = values[name.removeprefix("waltz_partition_")]
                if value is not None:
                    gauge.set(float(value), tags={"partition": partition_id})
