"""The bytes of a backup: golden ones, the way back, and whatever else a reader may be given."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.backup.memory_source import CLOCK_MS, KEY
from tests.storage.helpers import records
from waltz_ray.backup.format import (
    BackupPiece,
    Identity,
    Manifest,
    PartitionBackup,
    manifest_name,
    manifest_number,
    piece_of,
)
from waltz_ray.backup.pieces import PieceBuilder, parse_piece
from waltz_ray.errors import Corruption
from waltz_ray.protocol.spaces import Space, SpaceState, SpaceTable

IDENTITY = Identity(uuid.UUID("00112233-4455-6677-8899-aabbccddeeff"), "orders", KEY)
SPACES = {
    "log": Space("log", "log", 0, 2, SpaceState.READY),
    "old": Space("old", "kv", 2, 1, SpaceState.GONE, {"retention_ms": 5}),
}
PIECES = (BackupPiece(3, 7, 400, 448, "ab" * 32, CLOCK_MS, CLOCK_MS + 9), BackupPiece(7, 9, 300, 300, "cd" * 32))
MANIFEST = Manifest(
    4,
    CLOCK_MS,
    IDENTITY,
    3,
    {"servers": 2},
    17,
    5,
    SpaceTable(3, SPACES),
    {0: PartitionBackup(3, 9, 2, PIECES), 1: PartitionBackup(0, 0, 0)},
)


def test_golden_manifest() -> None:
    raw = MANIFEST.encode()
    fields = json.loads(raw)
    checksum = fields.pop("sha256")
    assert fields == {
        "version": 1,
        "kind": "waltz backup manifest",
        "number": 4,
        "made_ms": CLOCK_MS,
        "backup": "00112233-4455-6677-8899-aabbccddeeff",
        "cluster": "orders",
        "cluster_key": str(KEY),
        "replicas": 3,
        "config": {"servers": 2},
        "last_client_id": 17,
        "last_server_id": 5,
        "partition_count": 3,
        "spaces": [
            {"name": "log", "kind": "log", "first": 0, "count": 2, "state": "ready", "settings": {}},
            {"name": "old", "kind": "kv", "first": 2, "count": 1, "state": "gone", "settings": {"retention_ms": 5}},
        ],
        "partitions": {
            "0": {
                "first_id": 3,
                "next_id": 9,
                "generation": 2,
                "pieces": [
                    [3, 7, 400, 448, "ab" * 32, CLOCK_MS, CLOCK_MS + 9],
                    [7, 9, 300, 300, "cd" * 32, None, None],
                ],
            },
            "1": {"first_id": 0, "next_id": 0, "generation": 0, "pieces": []},
        },
    }
    assert checksum == hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    assert checksum == "f2e1b509851a70937c932b0778656e6c8662d3d140afa05127637c37eda25000"
    assert Manifest.decode(raw) == MANIFEST
    assert Identity.decode(IDENTITY.encode()) == IDENTITY


def test_golden_documents() -> None:
    """Who wrote manifests before does not have them; who reads them does not mind."""
    manifest = replace(MANIFEST, documents={"/store/access": '{"rights": []}'})
    fields, before = json.loads(manifest.encode()), json.loads(MANIFEST.encode())
    assert fields.pop("documents") == {"/store/access": '{"rights": []}'}
    assert fields.pop("sha256") == "8df6c1091353d2882e4f65bec99432fc13ef4961f6a0a31a6d5e30d7e784fa01"
    del before["sha256"]
    assert fields == before
    assert Manifest.decode(manifest.encode()) == manifest
    assert MANIFEST.documents is None
    with pytest.raises(ValueError):
        Manifest.decode(checked({**json.loads(RAW), "documents": [1]}))


def test_names() -> None:
    (name, other) = sorted(MANIFEST.names())
    assert name == "pieces/0/0000000000000000003-0000000000000000007.piece"
    assert (piece_of(name), piece_of(other), piece_of(name + ".new"), piece_of("pieces/x")) == (
        (0, 3, 7),
        (0, 7, 9),
        None,
        None,
    )
    assert manifest_name(12) == "manifests/0000000012.json"
    assert (manifest_number("manifests/0000000012.json"), manifest_number("manifests/12.json")) == (12, None)


def test_golden_piece() -> None:
    builder = PieceBuilder(KEY, 0, 0)
    for batch in (records(0, 2), records(2, 1)):
        builder.add(batch)
    piece, parts = builder.finish(((0, CLOCK_MS), (2, CLOCK_MS + 5)))
    raw = b"".join(bytes(part) for part in parts)
    segment = raw[: piece.record_bytes]
    assert segment[:40].hex() == "00000000" + f"{CLOCK_MS:016x}" + KEY.hex + "00000000" + "0" * 16
    assert segment[128:] == bytes(records(0, 2).records) + bytes(records(2, 1).records)
    times = raw[piece.record_bytes :]
    assert len(times) == 48
    assert times[:20].hex() == "0" * 16 + f"{CLOCK_MS:016x}" + "00000000"
    assert (piece.first_id, piece.next_id, piece.size) == (0, 3, len(raw))
    assert (piece.sha256, piece.first_ms, piece.last_ms) == (hashlib.sha256(raw).hexdigest(), CLOCK_MS, CLOCK_MS + 5)
    batch = parse_piece(raw, "here", KEY, 0, 0, 3)
    assert (bytes(batch.records), batch.times) == (segment[128:], ((0, CLOCK_MS), (2, CLOCK_MS + 5)))


RAW = MANIFEST.encode()


@given(st.integers(0, len(RAW) - 1), st.integers(1, 255))
def test_no_changed_byte_of_a_manifest_goes_unseen(at: int, mask: int) -> None:
    changed = bytearray(RAW)
    changed[at] ^= mask
    try:
        assert Manifest.decode(bytes(changed)) == MANIFEST  # white space
    except ValueError:
        return


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted(json.loads(RAW).keys() - {"sha256", "version", "kind"})


def checked(fields: dict[str, object]) -> bytes:
    fields.pop("sha256", None)
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return json.dumps({**fields, "sha256": digest}).encode()


@given(st.sampled_from(FIELDS), JSON)
def test_a_manifest_with_a_strange_field_is_a_value_error_or_a_manifest(name: str, strange: object) -> None:
    try:
        Manifest.decode(checked({**json.loads(RAW), name: strange}))
    except ValueError:
        return


@pytest.mark.parametrize("count", [(1 << 20) + 1, 1 << 40, 1 << 200])
def test_nobody_counts_to_impossible_numbers_of_partitions(count: int) -> None:
    """Hypothesis once had one read that took all memory there was."""
    with pytest.raises(ValueError, match="is impossible"):
        Manifest.decode(checked({**json.loads(RAW), "partition_count": count}))
    spaces = json.loads(RAW)["spaces"]
    spaces[0] |= {"count": count, "state": "gone"}
    with pytest.raises(ValueError, match="is impossible"):
        Manifest.decode(checked({**json.loads(RAW), "spaces": spaces}))


@given(st.binary(max_size=200))
def test_strange_bytes_are_a_value_error(raw: bytes) -> None:
    for decode in (Manifest.decode, Identity.decode):
        with pytest.raises(ValueError):
            decode(raw)


@pytest.mark.parametrize(
    ("backup", "why"),
    [
        (PartitionBackup(3, 9, 2, PIECES[:1]), "the pieces of partition 0 are not one behind the other"),
        (PartitionBackup(3, 9, 2, PIECES[::-1]), "not one behind the other"),
        (PartitionBackup(4, 9, 2, PIECES), "not one behind the other"),
        (PartitionBackup(9, 3, 2, ()), "not one behind the other"),
        (None, "its partitions are not those of its spaces"),
    ],
)
def test_a_manifest_that_contradicts_itself(backup: PartitionBackup | None, why: str) -> None:
    partitions = {1: MANIFEST.partitions[1]} if backup is None else {**MANIFEST.partitions, 0: backup}
    with pytest.raises(ValueError, match=why):
        Manifest.decode(replace(MANIFEST, partitions=partitions).encode())


@given(st.binary(max_size=300), st.integers(0, 3))
def test_strange_bytes_are_no_piece(tail: bytes, count: int) -> None:
    _, parts = PieceBuilder(KEY, 0, 5).finish(())
    header = b"".join(bytes(part) for part in parts)
    try:
        batch = parse_piece(header + tail, "here", KEY, 0, 5, 5 + count)
    except Corruption:
        return
    assert (len(batch), batch.size_bytes + len(batch.times) * 24) == (count, len(tail))
