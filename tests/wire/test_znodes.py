"""The original's bytes in ZooKeeper: its own dump, frozen bytes, round trips, and damage."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltz_ray.errors import CoordinationError, InvalidInput
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.placement import Assignment, Owner
from waltz_ray.wire import znodes
from waltz_ray.wire.znodes import AssignmentNode, RootNode, ServerDescriptor

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
