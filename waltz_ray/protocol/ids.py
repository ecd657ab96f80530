"""The identifiers and marks of docs/design.md, "Words", and the hashing of lock IDs.

Marks are inclusive (``NO_TRANSACTION`` = -1 means none), ranges half-open.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

__all__ = ["NO_SESSION", "NO_TRANSACTION", "Endpoint", "Location", "LockId", "ReqId", "quorum_of"]

NO_TRANSACTION = -1
NO_SESSION = -1


class ReqId(NamedTuple):
    """Names one request for ever: who asked, under which assignment, of what, and in which order."""

    client_id: int
    generation: int
    partition_id: int
    sequence_number: int


class Endpoint(NamedTuple):
    """The host and port at which a data-plane socket listens; as text "host:port"."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        host, _, port = text.rpartition(":")
        return cls(host, int(port))


class Location(NamedTuple):
    """A partition's current server. ``endpoint`` is None while that server is not registered.

    ``number``: what the server calls the partition, its number in the cluster; None: what the client calls it.
    """

    server_id: int
    generation: int
    endpoint: Endpoint | None
    number: int | None = None

    def number_of(self, partition_id: int) -> int:
        """What the server calls the partition that the client calls ``partition_id``."""
        return partition_id if self.number is None else self.number


def quorum_of(assigned_replicas: int) -> int:
    """The smallest number of replicas of which any two sets of that size share one."""
    return assigned_replicas // 2 + 1


@lru_cache(maxsize=1024)  # an application has few names and many numbers
def _java_string_hash(text: str) -> int:
    """``java.lang.String.hashCode``: over UTF-16 code units, 32-bit wrap-around."""
    units = text.encode("utf-16-be")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (value * 31 + ((high << 8) | low)) & 0xFFFFFFFF
    return value


@dataclass(frozen=True, slots=True)  # at run time, too: applications make them and keep them in sets
class LockId:
    """A lock: a name and a signed 64-bit number, scoped to one partition."""

    name: str
    id: int

    @property
    def hash(self) -> int:
        """The signed 32-bit hash that goes over the wire (docs/wire.md, "Lock hashes")."""
        number = self.id & 0xFFFFFFFFFFFFFFFF
        value = _java_string_hash(self.name) ^ ((number ^ (number >> 32)) & 0xFFFFFFFF)
        return value - (1 << 32) if value & 0x80000000 else value
