"""Readers of texts and of records: what people, applications and other processes have written."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from tests.backup.test_format import IDENTITY, MANIFEST
from tests.fuzz.target import FuzzTarget
from tests.kv.test_records import GOLDEN as KV_RECORDS
from tests.storage.helpers import CLOCK_MS, KEY, records
from tests.topics.test_documents import WHOLE
from tests.topics.test_records import GOLDEN as TOPIC_RECORDS
from waltz_ray.actors.settings import Settings, from_json, to_json
from waltz_ray.backup.format import Identity, Manifest
from waltz_ray.backup.pieces import PieceBuilder, parse_piece
from waltz_ray.cli import contexts
from waltz_ray.cli.produce_records import BadRecord, from_jsonl
from waltz_ray.config import ClusterConfig
from waltz_ray.deployment import file as deployment_file
from waltz_ray.errors import BadPayload, ConfigError, Corruption, InvalidInput, WaltzError, WireError
from waltz_ray.finding import cluster_file
from waltz_ray.finding.cluster_file import ClusterFile, LocalRay
from waltz_ray.kv.records import decode_record
from waltz_ray.runtime.log_lines import parsed_line
from waltz_ray.topics import texts
from waltz_ray.topics.access_document import decode_access
from waltz_ray.topics.flow_table import decode_flow_table
from waltz_ray.topics.offset_item import OffsetItem, decode_offset, encode_offset
from waltz_ray.topics.records import decode_topic_record
from waltz_ray.topics.tokens import decode_secrets, decode_visit_tokens

__all__ = ["DOCUMENTS"]

ROOT = Path(__file__).parents[2]
_TEXTS: tuple[Callable[[str], object], ...] = (
    *(texts.parse_broker, texts.parse_topic, texts.parse_place, texts.parse_subscription, texts.parse_failure),
    *(texts.parse_condition, texts.parse_required_partitions, texts.checked_client_id, texts.checked_group),
)


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode("utf-8", "surrogateescape"))


def _one_of(reads: tuple[Callable[[str], object], ...]) -> Callable[[bytes], object]:
    """The first byte says which."""
    return lambda data: _text(reads[data[0] % len(reads)])(data[1:]) if data else None


def _in_file(name: str, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    """Of a directory that has only that file."""

    def with_file(data: bytes) -> object:
        with tempfile.TemporaryDirectory(prefix="waltz-fuzz-") as directory:
            (Path(directory) / name).write_bytes(data)
            return read(Path(directory))

    return with_file


def _settings(data: bytes) -> object:
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InvalidInput("no JSON") from error
    if not isinstance(values, dict):
        raise InvalidInput("no object")
    return from_json(values)


def _piece() -> bytes:
    builder = PieceBuilder(KEY, 0, 0)
    builder.add(records(0, 3))
    return b"".join(bytes(part) for part in builder.finish(((0, CLOCK_MS), (2, CLOCK_MS + 5)))[1])


def _json(*values: object) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


_CLUSTER_FILE = asdict(ClusterFile("c", "/x", 2, 3, 2, "a:1", "b:2", ray=LocalRay("a:1", "", 1, 1.5))) | {"version": 1}
_SETTINGS = to_json(Settings(ClusterConfig("c", "/x"), {0: "", 1: "waltz-replica-1"}))
_SECRETS = {"current": "00" * 32, "previous": "11" * 32}
_CONTEXTS = {"current": "a", "contexts": {"a": {"dir": "/x"}, "b": {"zookeeper": "h:1", "cluster": "c"}}}
_LINE = b"2026-11-24T11:00:00.123Z WARNING shop replica/0 waltz_ray.x: partition 3: a\\nb\\\\"
_TOPIC_TEXTS = (
    *(b"\x001:host:8123", b"\x01t#1:2:3", b"\x021:t:0", b"\x03c@g#1:h:2#t:0", b"\x04t:1#3"),
    *(b"\x05t#a,b", b"\x061:t:0:7,2:u:1:8", b"\x07g_h-1-2-3-Pull-1.0", b"\x08group"),
)

DOCUMENTS = (
    FuzzTarget(
        "deployment",
        _text(lambda text: deployment_file.parse(text, "here")),
        (ConfigError,),
        lambda: [(ROOT / "deploy" / "cluster.yaml").read_bytes(), b"name: a\ndirectory: /x\nspaces: {b: {kind: kv}}\n"],
    ),
    FuzzTarget(
        "contexts",
        _in_file("contexts.json", lambda path: contexts.read(path / "contexts.json")),
        (InvalidInput,),
        lambda: _json(_CONTEXTS),
    ),
    FuzzTarget(
        "cluster-file", _in_file("cluster.json", cluster_file.read), (WaltzError,), lambda: _json(_CLUSTER_FILE)
    ),
    FuzzTarget("settings", _settings, (WaltzError,), lambda: _json(_SETTINGS)),
    FuzzTarget("jsonl", from_jsonl, (BadRecord,), lambda: _json({"data": "x", "key": "a", "lock": ["b", 7]}, {"x": 1})),
    FuzzTarget("log-line", _text(parsed_line), (), lambda: [_LINE]),
    FuzzTarget("backup-manifest", Manifest.decode, (ValueError,), lambda: [MANIFEST.encode()]),
    FuzzTarget("backup-identity", Identity.decode, (ValueError,), lambda: [IDENTITY.encode()]),
    FuzzTarget("backup-piece", lambda data: parse_piece(data, "here", KEY, 0, 0, 3), (Corruption,), lambda: [_piece()]),
    FuzzTarget("kv-record", decode_record, (WireError,), lambda: [bytes.fromhex(each) for _, each in KV_RECORDS]),
    FuzzTarget(
        "topic-record", decode_topic_record, (BadPayload,), lambda: [bytes.fromhex(each) for _, each in TOPIC_RECORDS]
    ),
    FuzzTarget("topic-offset", decode_offset, (BadPayload,), lambda: [encode_offset(OffsetItem(7, 1, 2, 3))]),
    FuzzTarget("topic-access", decode_access, (InvalidInput,), lambda: _json(*WHOLE)),
    FuzzTarget("topic-flow", decode_flow_table, (InvalidInput,), lambda: _json(*WHOLE)),
    FuzzTarget("topic-visits", decode_visit_tokens, (InvalidInput,), lambda: _json(*WHOLE)),
    FuzzTarget("topic-secrets", decode_secrets, (InvalidInput,), lambda: [b"", *_json(_SECRETS)]),
    FuzzTarget("topic-texts", _one_of(_TEXTS), (BadPayload,), lambda: _TOPIC_TEXTS),
)
