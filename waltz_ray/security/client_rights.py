"""The rights of clients that a cluster is brought up with, and what it needs so that they do not refuse its own."""

from __future__ import annotations

from pathlib import Path

from waltz_ray.config import ClusterConfig
from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.access import SpaceRules
from waltz_ray.small_files import read_small_file
from waltz_ray.wire.access_document import decode_access_rules

__all__ = ["check_rights_can_hold", "read_rights"]


def read_rights(file: Path) -> tuple[bytes, SpaceRules]:
    """The document in ``file``. InvalidInput if it cannot be read, or makes no sense."""
    data = read_small_file(file)
    return data, decode_access_rules(data)


def check_rights_can_hold(config: ClusterConfig, kv: int, topics: int) -> None:
    """InvalidInput if ``config``'s cluster, with so many key/value and topic actors, would refuse everybody, or its own
    actors."""
    if not config.server.tls_certificate:
        raise InvalidInput(
            f"cluster {config.name!r} has no TLS, so nobody could show who he is, and all would be refused; rights "
            "need tls_certificate, tls_key and tls_clients of servers: waltz up --tls-certificate ... for a new "
            "cluster, waltz apply for one that is there"
        )
    if (kv or topics) and not config.server.tls_authority:
        raise InvalidInput(
            f"cluster {config.name!r} has key/value or topic actors, which would be refused: they need to know "
            "whom servers' certificates are from (waltz up --tls-authority for a new cluster, waltz apply with "
            "server.tls_authority for one that is there)"
        )
    if kv and not config.kv.tls_certificate:
        raise InvalidInput(
            f"the key/value actors of cluster {config.name!r} speak no TLS, so nobody could show them who he "
            "is, nor they to each other; they need kv.tls_certificate, kv.tls_key and kv.tls_clients (waltz apply)"
        )
