"""What an application's values are in the log: a client that is given a codec appends objects and reads them back.

The bytes are those of the format and nothing else, so that other languages read them (docs/client.md, "Codecs"), and no
codec changes a value: what a format does not have is refused. The libraries are imported when a codec first needs them
(``pip install 'waltz-ray[codecs]'``). A codec is stateless, for any thread, and pickles.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache
from typing import Any, Literal, Protocol, get_origin

from waltz_ray.errors import InvalidInput

__all__ = ["BytesCodec", "Codec", "JsonCodec", "MsgpackCodec", "TypedCodec", "ZstdCodec", "checked_data", "encoded"]

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
"""The first bytes of every zstd frame (RFC 8878)."""

_LONGEST_DATA_BYTES = 64 * 1024 * 1024  # no frame is longer, so no data was
_LONG_NUMBER = re.compile(rb"[0-9]{19}").search


class Codec(Protocol):
    """Values to bytes and back. What ``encode`` and ``decode`` raise becomes InvalidInput and DecodingFailed."""

    def encode(self, value: Any) -> bytes:
        """The data of a transaction."""

    def decode(self, data: bytes) -> Any:
        """What ``encode`` was given, or its equal."""


def checked_data(data: object) -> bytes:
    """``data`` as bytes. InvalidInput for what is no contiguous bytes-like object: a number would become zeros."""
    if isinstance(data, bytes | bytearray) or (isinstance(data, memoryview) and data.contiguous):
        return bytes(data)
    kind = "a memoryview with gaps" if isinstance(data, memoryview) else type(data).__name__
    raise InvalidInput(f"a transaction's data must be bytes, not {kind}; encode it, or give connect() a codec")


def encoded(codec: Codec | None, value: object) -> bytes:
    """The data of a value; without a codec it must be bytes. InvalidInput: it cannot be encoded."""
    if codec is None:
        return checked_data(value)
    try:
        return checked_data(codec.encode(value))
    except InvalidInput:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())
        raise InvalidInput(f"{type(codec).__name__} cannot encode {type(value).__name__}: {reason}") from error


@dataclass(frozen=True)
class BytesCodec:
    """Bytes as they are: what a client without a codec has."""

    def encode(self, value: Any) -> bytes:
        return checked_data(value)

    def decode(self, data: bytes) -> bytes:
        return data


@dataclass(frozen=True)
class JsonCodec:
    """JSON in UTF-8 (orjson). Dataclasses, datetimes, UUIDs and enums are written, and read as what JSON has of them.

    Refused: NaN and infinity, integers that need more than 64 bits, keys that are no strings, bytes. Whole numbers of
    any length are read exactly.
    """

    def encode(self, value: Any) -> bytes:
        data: bytes = _library("orjson").dumps(value)
        if b"null" in data:  # which it also writes for NaN
            _check_finite(value)
        return data

    def decode(self, data: bytes) -> Any:
        # A longer whole number would become a floating-point one.
        return json.loads(data) if _LONG_NUMBER(data) else _library("orjson").loads(data)


@dataclass(frozen=True)
class MsgpackCodec:
    """MessagePack (msgspec): what JSON has, bytes, NaN, and datetimes as timestamps. Tuples are read as lists."""

    def encode(self, value: Any) -> bytes:
        data: bytes = _library("msgpack").encode(value)
        return data

    def decode(self, data: bytes) -> Any:
        return _library("msgpack").decode(data)


@dataclass(frozen=True)
class TypedCodec:
    """Values of one type: a dataclass, a pydantic model, a ``msgspec.Struct``, a union of such, ``list[int]``...

    What is read is checked against the type, and is of it; in JSON or MessagePack.
    """

    kind: Any
    form: Literal["json", "msgpack"] = "json"

    def __post_init__(self) -> None:
        if self.form not in ("json", "msgpack"):
            raise InvalidInput(f"TypedCodec writes 'json' or 'msgpack', not {self.form!r:.60}")

    def encode(self, value: Any) -> bytes:
        a_class = isinstance(self.kind, type) and get_origin(self.kind) is None  # Python 3.10 calls list[int] a type
        if a_class and not isinstance(value, self.kind):
            raise InvalidInput(f"this client's codec is for {self.kind.__name__}, not for {type(value).__name__}")
        if _is_pydantic(self.kind):
            value = value.model_dump(mode="python" if self.form == "msgpack" else "json")
        data: bytes = _library(self.form).encode(value)
        if self.form == "json" and b"null" in data:
            _check_finite(value)
        return data

    def decode(self, data: bytes) -> Any:
        if _is_pydantic(self.kind):
            return self.kind.model_validate(_library(self.form).decode(data))
        return _decoder(self.kind, self.form).decode(data)


@dataclass(frozen=True)
class ZstdCodec:
    """What another codec writes, compressed with zstd where that makes it shorter.

    Data that begins with the four bytes of a zstd frame, 28 B5 2F FD, is one frame; all other data is as it is. So
    records of clients that compress and of such that do not may be in one log.
    """

    codec: Codec = field(default_factory=BytesCodec)
    level: int = 3
    at_least_bytes: int = 128
    """Shorter data is left as it is."""

    def encode(self, value: Any) -> bytes:
        data = encoded(self.codec, value)
        marked = data.startswith(ZSTD_MAGIC)  # it must not be taken for what it is not
        if len(data) < self.at_least_bytes and not marked:
            return data
        compressed: bytes = _library("zstandard").ZstdCompressor(level=self.level).compress(data)
        return compressed if marked or len(compressed) < len(data) else data

    def decode(self, data: bytes) -> Any:
        if data.startswith(ZSTD_MAGIC):
            zstd = _library("zstandard")
            size = zstd.frame_content_size(data)  # -1: the frame does not say
            if size > _LONGEST_DATA_BYTES:
                raise ValueError(f"{size} bytes are compressed in it, {_LONGEST_DATA_BYTES} are the most")
            data = zstd.ZstdDecompressor().decompress(data, max_output_size=_LONGEST_DATA_BYTES)
        return self.codec.decode(data)


@lru_cache
def _library(name: str) -> Any:
    """orjson, zstandard, or what msgspec has for a format."""
    try:
        if name == "orjson":
            import orjson

            return orjson
        if name == "zstandard":
            import zstandard

            return zstandard
        import msgspec
    except ImportError as error:
        raise InvalidInput(f"this codec needs {error.name}: pip install 'waltz-ray[codecs]'") from error
    return getattr(msgspec, name)


@lru_cache
def _decoder(kind: Any, form: str) -> Any:
    return _library(form).Decoder(kind)


def _is_pydantic(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate")


def _check_finite(value: Any) -> None:
    """InvalidInput if there is a NaN or an infinity in it, which JSON would have as null."""
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInput(f"JSON does not have {value}; say what it is to be, or use MsgpackCodec")
    elif isinstance(value, Mapping):
        for each in value.values():
            _check_finite(each)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            _check_finite(each)
    elif is_dataclass(value):
        for one in fields(value):
            _check_finite(getattr(value, one.name))
    else:
        for name in getattr(value, "__struct_fields__", ()):  # msgspec.Struct
            _check_finite(getattr(value, name))
