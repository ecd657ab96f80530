"""Every codec there is, and the stored bytes of every message."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from tests.topics.oracle import sample
from waltz_ray.topics import rpc, wire_consumer, wire_producer, wire_shared
from waltz_ray.topics.protobuf import ProtoCodec

__all__ = ["CODECS", "KINDS", "golden", "samples"]

CODECS: dict[str, ProtoCodec[Any]] = {
    codec.kind.__name__: codec
    for module in (rpc, wire_consumer, wire_producer, wire_shared)
    for codec in vars(module).values()
    if isinstance(codec, ProtoCodec)
}
KINDS: dict[str, type[Any]] = {name: codec.kind for name, codec in CODECS.items()}


def samples() -> dict[str, Any]:
    """By the names in the file: of each message one with all fields, and one with as few as may be."""
    found = {}
    for name, kind in KINDS.items():
        found[f"{name}.whole"] = sample(kind, KINDS, whole=True)
        found[f"{name}.least"] = sample(kind, KINDS, whole=False)
    return found


@cache
def golden() -> dict[str, bytes]:
    """The stored bytes, by name."""
    lines = (Path(__file__).parent / "golden/messages.txt").read_text().splitlines()
    pairs = [line.split("|") for line in lines if line and not line.startswith("#")]
    return {name.strip(): bytes.fromhex(content) for name, content in pairs}
