"""By what a process is known to ZooKeeper, and who may do what with which node.

The environment says it, for every process of a cluster and of its users alike, so that none is forgotten: paths of
files, which are read when a connection is made. ``kazoo`` has the rest (``zookeeper.py``).

With a name and a password (digest) every node that is made is the owner's: others may read it, but for those that hold
passwords. One node is open to all, the counter of client IDs, which every client of the log raises once: what could be
done with it, two clients with one ID, can be done at servers' ports as well, where a client says its ID itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from waltz_ray.errors import ConfigError
from waltz_ray.small_files import others_read

__all__ = ["ZOOKEEPER_VARIABLES", "NodeAccess", "ZooKeeperAccess", "access_of_node", "zookeeper_access"]

ZOOKEEPER_VARIABLES = (
    "WALTZ_ZOOKEEPER_AUTH_FILE",
    "WALTZ_ZOOKEEPER_TLS_AUTHORITY",
    "WALTZ_ZOOKEEPER_TLS_CERTIFICATE",
    "WALTZ_ZOOKEEPER_TLS_KEY",
)
"""The file with name and password; whom ZooKeeper's certificate is from, which turns TLS on; who this process is."""

_MOST_BYTES = 1_024
_OPEN = re.compile(r"/[^/]+/ids/client")
_CLOSED = re.compile(r"/[^/]+/store/topics/(access|secrets)")


class NodeAccess(Enum):
    """Of who has not the name and password."""

    READ = "read"
    OPEN = "read and write"
    CLOSED = "nothing"


def access_of_node(path: str) -> NodeAccess:
    """What others may do with a node that is made at ``path``."""
    if _OPEN.fullmatch(path):
        return NodeAccess.OPEN
    return NodeAccess.CLOSED if _CLOSED.fullmatch(path) else NodeAccess.READ


@dataclass(frozen=True)
class ZooKeeperAccess:
    """``user`` "": ZooKeeper is told nobody, and nodes are everybody's. ``authority`` "": no TLS."""

    user: str = ""
    password: str = field(default="", repr=False)
    authority: str = ""
    certificate: str = ""
    key: str = ""


def zookeeper_access(environment: Mapping[str, str] = os.environ) -> ZooKeeperAccess:
    """As the environment says it now. ConfigError for a file that cannot be used."""
    auth_file, authority, certificate, key = (environment.get(name, "") for name in ZOOKEEPER_VARIABLES)
    if bool(certificate) != bool(key) or (certificate and not authority):
        raise ConfigError(f"{', '.join(ZOOKEEPER_VARIABLES[1:])}: the first alone, or all three")
    user, password = _name_and_password(auth_file) if auth_file else ("", "")
    return ZooKeeperAccess(user, password, authority, certificate, key)


def _name_and_password(path: str) -> tuple[str, str]:
    try:
        with open(path, "rb") as file:
            about, content = os.fstat(file.fileno()), file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"what this process is known by to ZooKeeper cannot be read: {path}: {error.strerror} "
            f"({ZOOKEEPER_VARIABLES[0]})"
        ) from error
    if others_read(about):
        raise ConfigError(f"{path} can be read by others than its owner; take another password, and: chmod 600 {path}")
    user, colon, password = content.decode("utf-8", "replace").strip().partition(":")
    if not (user and colon and password) or len(content) > _MOST_BYTES or "\n" in password:
        raise ConfigError(f"{path} does not hold a name and a password for ZooKeeper: one line, name:password")
    return user, password
