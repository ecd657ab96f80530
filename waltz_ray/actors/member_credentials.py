"""What the cluster's own actors show servers that they are clients of: that they know its secret, inside of TLS."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from waltz_ray.actors.settings import settings_in
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.net.tls import ClientTls
from waltz_ray.protocol.authentication import Secret
from waltz_ray.security.member_token import member_token
from waltz_ray.security.secret_file import SecretFile

__all__ = ["MemberCredentials", "cluster_secret", "kv_credentials", "member_credentials"]


class MemberCredentials:
    """``authority``: PEM file of whom the servers' certificates are from; "" = they are spoken to without TLS."""

    def __init__(self, authority: str, secret: Callable[[], Secret]) -> None:
        self._tls = ClientTls(authority, "ServerConfig.tls_authority") if authority else None
        self._secret = secret

    def context(self) -> ssl.SSLContext | None:
        """For the next connection; the file is read again when it has changed. ConfigError if it cannot be used."""
        return None if self._tls is None else self._tls()

    def token(self) -> str:
        """Another one for each connection; "" without TLS. SecretUnusable."""
        return "" if self._tls is None else member_token(self._secret())


def cluster_secret(store: ClusterStore) -> Callable[[], Secret]:
    """What reads it, on this node, by the cluster's settings in ZooKeeper. Blocks."""
    return SecretFile(settings_in(store).config.secret_path).secret


def member_credentials(store: ClusterStore) -> MemberCredentials:
    """Of an actor of the cluster, by its settings in ZooKeeper. Blocks."""
    return MemberCredentials(settings_in(store).config.server.tls_authority, cluster_secret(store))


def kv_credentials(store: ClusterStore) -> MemberCredentials:
    """The same for key/value ports, which are spoken to without TLS where they have no certificate. Blocks."""
    config = settings_in(store).config
    return MemberCredentials(config.server.tls_authority if config.kv.tls_certificate else "", cluster_secret(store))
