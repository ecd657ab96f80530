"""The ZooKeeper nodes that keep the original's bytes (docs/formats.md, "ZooKeeper"), encoded and decoded.

Big-endian; UTF = unsigned 16-bit length + UTF-8. Every decoder takes the node's path and raises a
CoordinationError that names it. Bytes left over are an error: they mean that we do not know this format.

``<root>/serverDescriptors`` also has to remember the last generation of partitions that nobody owns. They are
listed under the server ID NO_SERVER (-1), which exists only while no server is alive: to the original's tools
it is one more server, without an endpoint.

The nodes below ``<root>/store`` that the original's operator tools read are only written, for them: nothing of ours
reads them (``coordination/original_nodes.py``).
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from waltz_ray.errors import CoordinationError, InvalidInput
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.placement import Assignment, Owner

__all__ = [
    "NO_SERVER",
    "AssignmentNode",
    "PartitionMetadata",
    "ReplicaState",
    "RootNode",
    "ServerDescriptor",
    "StoreParams",
    "decode_assignment",
    "decode_counter",
    "decode_numbers",
    "decode_partition_metadata",
    "decode_replica_assignments",
    "decode_root",
    "decode_server",
    "decode_store_params",
    "encode_assignment",
    "encode_counter",
    "encode_numbers",
    "encode_partition_metadata",
    "encode_replica_assignments",
    "encode_root",
    "encode_server",
    "encode_store_params",
]

NO_SERVER = -1

_ROOT_MAGIC = 0xB4E87347
_ROOT_VERSION = 1
_SERVER_VERSION = 1
_ASSIGNMENT_VERSION = 3
_STORE_VERSION = 1  # of each node below <root>/store, and of every entry of a partition's
_UNRESOLVED = -(1 << 63)


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


class StoreParams(NamedTuple):
    """``<root>/store``: the cluster key and the number of partitions."""

    cluster_key: uuid.UUID
    partitions: int


class ReplicaState(NamedTuple):
    """One replica's entry of a partition; ``closing_mark`` None: unresolved."""

    session_id: int
    closing_mark: int | None


class PartitionMetadata(NamedTuple):
    """``<root>/store/partition/<p>``: ``replicas`` by where they listen, "host:port"."""

    generation: int
    session_id: int
    replicas: Mapping[str, ReplicaState]


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

    def long(self) -> int:
        return int.from_bytes(self.take(8), "big", signed=True)

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


# -- what the original's operator tools read below <root>/store -------------------------------------------------


def encode_store_params(params: StoreParams) -> bytes:
    return bytes([_STORE_VERSION]) + params.cluster_key.bytes + _ints([params.partitions])


def decode_store_params(node: str, data: bytes) -> StoreParams:
    reader = _Reader(node, data)
    reader.version(_STORE_VERSION)
    params = StoreParams(uuid.UUID(bytes=reader.take(16)), reader.integer())
    reader.end()
    return params


def encode_numbers(numbers: Mapping[str, int]) -> bytes:
    """``<root>/store/group`` (each replica's group) and ``/connection`` (its admin port), by where it listens."""
    parts = [_utf(name) + _ints([number]) for name, number in sorted(numbers.items())]
    return bytes([_STORE_VERSION]) + _ints([len(parts)]) + b"".join(parts)


def decode_numbers(node: str, data: bytes) -> dict[str, int]:
    reader = _Reader(node, data)
    reader.version(_STORE_VERSION)
    numbers = {reader.utf(): reader.integer() for _ in range(reader.count())}
    reader.end()
    return numbers


def encode_replica_assignments(assignments: Mapping[str, Iterable[int]]) -> bytes:
    """``<root>/store/assignment``: the partitions of each replica, by where it listens."""
    parts = []
    for name, partitions in sorted(assignments.items()):
        wanted = sorted(partitions)
        parts.append(_utf(name) + _ints([len(wanted), *wanted]))
    return bytes([_STORE_VERSION]) + _ints([len(parts)]) + b"".join(parts)


def decode_replica_assignments(node: str, data: bytes) -> dict[str, tuple[int, ...]]:
    reader = _Reader(node, data)
    reader.version(_STORE_VERSION)
    found = {}
    for _ in range(reader.count()):
        name = reader.utf()
        found[name] = tuple(reader.integer() for _ in range(reader.count()))
    reader.end()
    return found


def encode_partition_metadata(p: int, metadata: PartitionMetadata) -> bytes:
    head = struct.pack(">Biqi", _STORE_VERSION, metadata.generation, metadata.session_id, len(metadata.replicas))
    parts = [head]
    for name, state in sorted(metadata.replicas.items()):
        mark = _UNRESOLVED if state.closing_mark is None else state.closing_mark
        parts.append(struct.pack(">BBi", _STORE_VERSION, _STORE_VERSION, p) + _utf(name))
        parts.append(struct.pack(">qq", state.session_id, mark))
    return b"".join(parts)


def decode_partition_metadata(node: str, p: int, data: bytes) -> PartitionMetadata:
    reader = _Reader(node, data)
    reader.version(_STORE_VERSION)
    generation, session_id = reader.integer(), reader.long()
    replicas: dict[str, ReplicaState] = {}
    for _ in range(reader.count()):
        reader.version(_STORE_VERSION)
        reader.version(_STORE_VERSION)
        found = reader.integer()
        if found != p:
            raise reader.bad(f"an entry of partition {found} in the node of partition {p}")
        name, session_of_replica, mark = reader.utf(), reader.long(), reader.long()
        replicas[name] = ReplicaState(session_of_replica, None if mark == _UNRESOLVED else mark)
    reader.end()
    return PartitionMetadata(generation, session_id, replicas)
