"""How who reads from the replicas proves to them that it may (docs/security.md, "Readers of the replicas").

The secret's file is looked for where WALTZ_SECRET_FILE says, or where ZooKeeper says that the cluster has it; if it is
not on this machine, a process that belongs to the cluster's Ray asks the manager for a ticket. Nobody is asked before
the first connection. What travels to tasks is a ticket.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import ClusterNotFound, SecretUnusable
from waltz_ray.finding import ray_lookup
from waltz_ray.net.tls import ClientTls, replica_tls
from waltz_ray.protocol.authentication import Credential, Role
from waltz_ray.security.handshakes import TICKET_MS, Keyring, ticket_end_ms
from waltz_ray.security.secret_file import SecretFile

__all__ = ["keyring_of"]


def keyring_of(zookeeper: str, cluster: str) -> Keyring:
    """Of a reader of the cluster's replicas."""
    finder = _Finder(zookeeper, cluster)
    return Keyring(finder.credential, finder.tls)


class _Finder:
    """Where the secret is, or a ticket, and how replicas are spoken to; kept once found."""

    def __init__(self, zookeeper: str, cluster: str) -> None:
        self._zookeeper, self._cluster = zookeeper, cluster
        self._file: SecretFile | None = None
        self._ticket: Credential | None = None
        self._config: Mapping[str, Any] | None = None
        self._tls: ClientTls | None = None

    def tls(self) -> ClientTls | None:
        """None: the cluster's replicas are spoken to without."""
        if self._tls is None and (recorded := self._recorded_authority()):
            copy = os.environ.get("WALTZ_TLS_AUTHORITY", "")
            self._tls = replica_tls(copy if copy and not os.path.exists(recorded) else recorded)
        return self._tls

    def credential(self) -> Credential:
        """SecretUnusable, saying what to do, if there is nothing here that proves it."""
        if self._file is not None:
            return self._file.secret().credential(Role.READER, ticket_end_ms())
        if self._ticket is not None and self._ticket.expires_ms - _now_ms() > TICKET_MS // 2:
            return self._ticket
        path = os.environ.get("WALTZ_SECRET_FILE", "") or self._recorded_path()
        if os.path.exists(path) or not ray_lookup.here():
            file = SecretFile(path)
            try:
                found = file.secret().credential(Role.READER, ticket_end_ms())
            except SecretUnusable as error:
                raise SecretUnusable(f"{error}; WALTZ_SECRET_FILE may name a copy for readers of replicas") from error
            self._file = file
            return found
        try:
            self._ticket = ray_lookup.ask_for_ticket(self._cluster)
        except ClusterNotFound as error:
            raise SecretUnusable(
                f"neither is the cluster's secret {path} here, nor a ticket to be had: {error}"
            ) from error
        return self._ticket

    def _recorded(self) -> Mapping[str, Any]:
        """The cluster's configuration: what is asked of it here was decided at its first start."""
        if self._config is None:
            zookeeper = KazooZooKeeper(self._zookeeper)
            try:
                self._config = ClusterStore(zookeeper, self._cluster).info().settings.get("config", {})
            finally:
                zookeeper.close()
        return self._config

    def _recorded_authority(self) -> str:
        return str(self._recorded().get("storage", {}).get("tls_authority", ""))

    def _recorded_path(self) -> str:
        config = self._recorded()
        return str(config.get("secret_file") or f"{config.get('directory', '')}/cluster.secret")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
