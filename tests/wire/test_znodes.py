"""The original's bytes in ZooKeeper: its own dump, frozen bytes, round trips, and damage."""

from __future__ import annotations

import re
import tarfile
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_ray.errors import CoordinationError, InvalidInput
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.placement import Assignment, Owner
from waltz_ray.wire import znodes
from waltz_ray.wire.znodes import (
    AssignmentNode,
    PartitionMetadata,
    ReplicaState,
    RootNode,
    ServerDescriptor,
    StoreParams,
)

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "golden" / "waltz-0.13-storage.tgz"

ROOT = RootNode("waltz_cluster", 2)
ROOT_BYTES = bytes.fromhex("b4e8734701000d77616c747a5f636c757374657200000002")
SERVER = ServerDescriptor(1, Endpoint("localhost", 0x625C), ())
SERVER_BYTES = bytes.fromhex("010000000100096c6f63616c686f73740000625c00000000")
ASSIGNMENT = AssignmentNode(1, 2, Assignment({0: Owner(1, 1), 1: Owner(1, 1)}))
ASSIGNMENT_BYTES = bytes.fromhex("03000000010000000200000001000000010000000200000001000000010000000000000001")

ints = st.integers(-(2**31), 2**31 - 1)
counts = st.integers(0, 2**31 - 1)


@pytest.fixture(scope="module")
def dump() -> dict[str, bytes]:
    """path -> bytes of the nodes the Java original left."""
    if not GOLDEN.exists():
        pytest.skip("the golden archive is not here")
    with tarfile.open(GOLDEN) as archive:
        member = archive.extractfile("golden/zk_znodes.txt")
        assert member is not None
        lines = member.read().decode().splitlines()
    matches = [re.fullmatch(r"(\S+) .* data=(\w*)", line) for line in lines]
    return {match[1]: bytes.fromhex(match[2]) for match in matches if match}


def test_what_the_originals_tools_read_is_written_in_its_bytes(dump: dict[str, bytes]) -> None:
    store = "/waltz_cluster/store"
    params = znodes.decode_store_params(store, dump[store])
    assert params == StoreParams(uuid.UUID("ae7968ef-3b42-479f-9fe3-a49b2ba8ff33"), 2)
    assert znodes.encode_store_params(params) == dump[store]
    names = ["localhost:25280", "localhost:25290", "localhost:25300"]
    for node in ("/group", "/connection"):
        numbers = znodes.decode_numbers(node, dump[store + node])
        assert sorted(numbers) == names
        # The original lists entries in the order of its hash map; we sort them: the same bytes, in another order.
        assert sorted(znodes.encode_numbers(numbers)) == sorted(dump[store + node])
    assignments = znodes.decode_replica_assignments("a", dump[store + "/assignment"])
    assert assignments == dict.fromkeys(names, (0, 1))
    assert sorted(znodes.encode_replica_assignments(assignments)) == sorted(dump[store + "/assignment"])
    for p in (0, 1):
        raw = dump[f"{store}/partition/{p}"]
        metadata = znodes.decode_partition_metadata("p", p, raw)
        assert metadata == PartitionMetadata(1, 0, {name: ReplicaState(0, None) for name in names})
        assert sorted(znodes.encode_partition_metadata(p, metadata)) == sorted(raw)


def test_the_frozen_bytes_of_what_the_originals_tools_read() -> None:
    key = uuid.UUID("ae7968ef-3b42-479f-9fe3-a49b2ba8ff33")
    params = bytes.fromhex("01ae7968ef3b42479f9fe3a49b2ba8ff3300000002")
    assert znodes.encode_store_params(StoreParams(key, 2)) == params
    numbers = bytes.fromhex("01000000010003613a31000062c1")
    assert znodes.encode_numbers({"a:1": 0x62C1}) == numbers
    assert znodes.encode_numbers({}) == bytes.fromhex("0100000000")
    assignments = bytes.fromhex("01000000010003613a31000000020000000000000001")
    assert znodes.encode_replica_assignments({"a:1": (1, 0)}) == assignments
    metadata = PartitionMetadata(1, 3, {"a:1": ReplicaState(3, None), "b:2": ReplicaState(2, 9)})
    partition = bytes.fromhex(
        "0100000001000000000000000300000002"
        "0101000000050003613a3100000000000000038000000000000000"
        "0101000000050003623a3200000000000000020000000000000009"
    )
    assert znodes.encode_partition_metadata(5, metadata) == partition
    assert znodes.decode_partition_metadata("p", 5, partition) == metadata
    with pytest.raises(CoordinationError, match="an entry of partition 5 in the node of partition 4"):
        znodes.decode_partition_metadata("p", 4, partition)
    with pytest.raises(CoordinationError, match="format version 2 where 1 is known"):
        znodes.decode_store_params("s", b"\x02" + params[1:])
    with pytest.raises(CoordinationError, match="1 bytes left over"):
        znodes.decode_replica_assignments("a", assignments + b"\0")


def test_the_originals_dump_is_read_and_written_alike(dump: dict[str, bytes]) -> None:
    root = "/waltz_cluster"
    assert znodes.decode_root(root, dump[root]) == ROOT
    assert znodes.encode_root(ROOT) == dump[root]
    assert znodes.decode_counter("c", dump[root + "/ids/client"]) == 0
    assert znodes.decode_counter("s", dump[root + "/ids/server"]) == 1
    assert znodes.encode_counter(1) == dump[root + "/ids/server"]
    servers = root + "/serverDescriptors"
    assert znodes.decode_server("s", dump[servers + "/s_0000000000"]) == SERVER
    assert znodes.encode_server(SERVER) == dump[servers + "/s_0000000000"]
    assert znodes.decode_assignment("a", dump[servers]) == ASSIGNMENT
    # The original lists the pairs in the order of its hash map; we sort them.
    assert sorted(znodes.encode_assignment(ASSIGNMENT)) == sorted(dump[servers])


def test_the_bytes_are_frozen() -> None:
    assert znodes.encode_root(ROOT) == ROOT_BYTES
    assert znodes.encode_server(SERVER) == SERVER_BYTES
    assert znodes.encode_counter(258) == b"\0\0\1\2"
    assert znodes.decode_assignment("a", ASSIGNMENT_BYTES) == ASSIGNMENT
    nobody = AssignmentNode(0, 4, Assignment({}, {3: 9}))
    assert znodes.encode_assignment(nobody).hex() == "03000000000000000400000001ffffffff000000010000000300000009"


@given(st.text(max_size=40), counts)
def test_a_root_round_trips(cluster: str, partitions: int) -> None:
    root = RootNode(cluster, partitions)
    assert znodes.decode_root("r", znodes.encode_root(root)) == root


@given(ints, st.text(max_size=20), ints, st.lists(ints, max_size=5))
def test_a_server_round_trips(server_id: int, host: str, port: int, preferred: list[int]) -> None:
    server = ServerDescriptor(server_id, Endpoint(host, port), tuple(preferred))
    assert znodes.decode_server("s", znodes.encode_server(server)) == server


@given(ints, st.dictionaries(st.integers(0, 99), st.tuples(st.integers(-1, 4), counts)))
def test_an_assignment_round_trips(children_version: int, entries: dict[int, tuple[int, int]]) -> None:
    owners = {p: Owner(*entry) for p, entry in entries.items() if entry[0] != znodes.NO_SERVER}
    unassigned = {p: entry[1] for p, entry in entries.items() if entry[0] == znodes.NO_SERVER}
    node = AssignmentNode(children_version, 100, Assignment(owners, unassigned))
    assert znodes.decode_assignment("a", znodes.encode_assignment(node)) == node


DECODERS: list[tuple[Callable[[str, bytes], object], bytes]] = [
    (znodes.decode_root, ROOT_BYTES),
    (znodes.decode_counter, b"\0\0\0\1"),
    (znodes.decode_server, SERVER_BYTES),
    (znodes.decode_assignment, ASSIGNMENT_BYTES),
]


@pytest.mark.parametrize(("decode", "good"), DECODERS)
def test_every_cut_and_every_surplus_is_refused_by_name(decode: Callable[[str, bytes], object], good: bytes) -> None:
    for bad in [*(good[:length] for length in range(len(good))), good + b"\0"]:
        with pytest.raises(CoordinationError, match="node /some/node: "):
            decode("/some/node", bad)


@pytest.mark.parametrize(
    ("decode", "bad", "problem"),
    [
        (znodes.decode_root, b"\0" + ROOT_BYTES[1:], "not the root"),
        (znodes.decode_root, ROOT_BYTES[:4] + b"\2" + ROOT_BYTES[5:], "format version 2 where 1"),
        (znodes.decode_root, ROOT_BYTES.replace(b"waltz", b"\xff\xff\xff\xff\xff"), "not UTF-8"),
        (znodes.decode_server, b"\7" + SERVER_BYTES[1:], "format version 7 where 1"),
        (znodes.decode_server, SERVER_BYTES[:-4] + b"\xff\xff\xff\xff", "impossible count -1"),
        (znodes.decode_assignment, ASSIGNMENT_BYTES[:8] + b"\1" + ASSIGNMENT_BYTES[9:], "partition 1 of 1 "),
    ],
)
def test_damage_is_named(decode: Callable[[str, bytes], object], bad: bytes, problem: str) -> None:
    with pytest.raises(CoordinationError, match=problem):
        decode("n", bad)


def test_a_host_longer_than_its_length_field_is_refused() -> None:
    with pytest.raises(InvalidInput, match="65535 is the most"):
        znodes.encode_server(ServerDescriptor(1, Endpoint("h" * 70_000, 1), ()))
