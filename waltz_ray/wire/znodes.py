"""The ZooKeeper nodes that keep the original's bytes (FORMATS.md, "Bytes in ZooKeeper"), encoded and decoded.

Big-endian; UTF = unsigned 16-bit length + UTF-8. Every decoder takes the node's path and raises a
CoordinationError that names it. Bytes left over are an error: they mean that we do not know this format.

``<root>/serverDescriptors`` also has to remember the last generation of partitions that nobody owns. They are
listed under the server ID NO_SERVER (-1), which exists only while no server is alive: to the original's tools
it is one more server, without an endpoint.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from waltz_ray.errors import CoordinationError, InvalidInput
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.placement import Assignment, Owner

__all__ = [
    "NO_SERVER",
    "AssignmentNode",
    "RootNode",
    "ServerDescriptor",
    "decode_assignment",
    "decode_counter",
    "decode_root",
    "decode_server",
    "encode_assignment",
    "encode_counter",
    "encode_root",
    "encode_server",
]

NO_SERVER = -1

_ROOT_MAGIC = 0xB4E87347
_ROOT_VERSION = 1
_SERVER_VERSION = 1
_ASSIGNMENT_VERSION = 3


class RootNode(NamedTuple):
    """``<root>``: the cluster's name and its number of partitions."""

    cluster: str
    partitions: int


class ServerDescriptor(NamedTuple):
    """``<root>/serverDescriptors/s_<10 digits>``: one live server."""

    server_id: int
    endpoint: Endpoint
    preferred: tuple[int, ...]


class AssignmentNode(NamedTuple):
    """``<root>/serverDescriptors``: ``children_version`` is the state of the server list it was made for."""

    children_version: int
    partitions: int
    assignment: Assignment


class _Reader:
    """Takes fields off the front of a node's bytes; every complaint names the node."""

    def __init__(self, node: str, data: bytes) -> None:
        self._node, self._data, self._at = node, data, 0

    def bad(self, problem: str) -> CoordinationError:
        return CoordinationError(f"ZooKeeper node {self._node}: {problem}; is it another program's?")

    def take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise self.bad(f"its {len(self._data)} bytes end where {count} more are due at byte {self._at}")
        part = self._data[self._at : end]
        self._at = end
        return part

    def byte(self) -> int:
        return self.take(1)[0]

    def integer(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def count(self) -> int:
        value = self.integer()
        if not 0 <= value <= len(self._data):
            raise self.bad(f"impossible count {value} before byte {self._at}")
        return value

    def utf(self) -> str:
        try:
            return self.take(int.from_bytes(self.take(2), "big")).decode()
        except UnicodeDecodeError as error:
            raise self.bad("text that is not UTF-8") from error

    def version(self, expected: int) -> None:
        found = self.byte()
        if found != expected:
            raise self.bad(f"format version {found} where {expected} is known")

    def end(self) -> None:
        if self._at != len(self._data):
            raise self.bad(f"{len(self._data) - self._at} bytes left over at byte {self._at}")


def _utf(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > 0xFFFF:
        raise InvalidInput(f"a text of {len(raw)} bytes does not fit a ZooKeeper node: 65535 is the most")
    return struct.pack(">H", len(raw)) + raw


def _ints(values: Iterable[int]) -> bytes:
    values = list(values)
    return struct.pack(f">{len(values)}i", *values)


def encode_root(root: RootNode) -> bytes:
    return struct.pack(">IB", _ROOT_MAGIC, _ROOT_VERSION) + _utf(root.cluster) + _ints([root.partitions])


def decode_root(node: str, data: bytes) -> RootNode:
    reader = _Reader(node, data)
    if int.from_bytes(reader.take(4), "big") != _ROOT_MAGIC:
        raise reader.bad("it is not the root of a waltz cluster")
    reader.version(_ROOT_VERSION)
    root = RootNode(reader.utf(), reader.integer())
    reader.end()
    return root


def encode_counter(value: int) -> bytes:
    """``<root>/ids/client`` and ``/server``: the last ID given out."""
    return _ints([value])


def decode_counter(node: str, data: bytes) -> int:
    reader = _Reader(node, data)
    value = reader.integer()
    reader.end()
    return value


def encode_server(server: ServerDescriptor) -> bytes:
    host, port = server.endpoint
    head = struct.pack(">Bi", _SERVER_VERSION, server.server_id) + _utf(host)
    return head + _ints([port, len(server.preferred), *server.preferred])


def decode_server(node: str, data: bytes) -> ServerDescriptor:
    reader = _Reader(node, data)
    reader.version(_SERVER_VERSION)
    server_id, host, port = reader.integer(), reader.utf(), reader.integer()
    preferred = tuple(reader.integer() for _ in range(reader.count()))
    reader.end()
    return ServerDescriptor(server_id, Endpoint(host, port), preferred)


def encode_assignment(node: AssignmentNode) -> bytes:
    assignment = node.assignment
    by_server: dict[int, list[int]] = {}
    for p, owner in sorted(assignment.owners.items()):
        by_server.setdefault(owner.server_id, []).extend((p, owner.generation))
    for p, generation in sorted(assignment.unassigned.items()):
        by_server.setdefault(NO_SERVER, []).extend((p, generation))
    parts = [struct.pack(">B", _ASSIGNMENT_VERSION), _ints([node.children_version, node.partitions, len(by_server)])]
    parts += [_ints([server_id, len(pairs) // 2, *pairs]) for server_id, pairs in sorted(by_server.items())]
    return b"".join(parts)


def decode_assignment(path: str, data: bytes) -> AssignmentNode:
    reader = _Reader(path, data)
    reader.version(_ASSIGNMENT_VERSION)
    children_version, partitions = reader.integer(), reader.integer()
    owners: dict[int, Owner] = {}
    unassigned: dict[int, int] = {}
    for _ in range(reader.count()):
        server_id = reader.integer()
        for _ in range(reader.count()):
            p, generation = reader.integer(), reader.integer()
            if p in owners or p in unassigned or not 0 <= p < partitions:
                raise reader.bad(f"partition {p} of {partitions} twice or out of range")
            if server_id == NO_SERVER:
                unassigned[p] = generation
            else:
                owners[p] = Owner(server_id, generation)
    reader.end()
    return AssignmentNode(children_version, partitions, Assignment(owners, unassigned))
