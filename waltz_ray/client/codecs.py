"""What an application's values are in the log: a client that is given a codec appends objects and reads them back.

The bytes are those of the format and nothing else, so that other languages read them (docs/client.md, "Codecs"), and no
codec changes a value: what a format does not have is refused. The libraries are imported when a codec first needs them
(``pip install 'waltz-ray[codecs]'``). A codec is stateless, for any thread, and pickles.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime, time, timedelta
from enum import Enum
from functools import lru_cache
from typing import Any, Literal, Protocol, get_args, get_origin

from waltz_ray.errors import InvalidInput

__all__ = ["BytesCodec", "Codec", "JsonCodec", "MsgpackCodec", "TypedCodec", "ZstdCodec", "checked_data", "encoded"]

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
"""The first bytes of every zstd frame (RFC 8878)."""

_LONGEST_DATA_BYTES = 64 * 1024 * 1024  # no frame is longer, so no data was
_LONG_NUMBER = re.compile(rb"[0-9]{19}").search
_TIME_ZONE = re.compile(rb'[0-9](Z|[+-][0-9]{2}:[0-9]{2})"').search


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

    Refused: NaN and infinity, integers that need more than 64 bits, keys that are no strings, bytes, dataclasses with a
    field that begins with ``_``, times whose offset from UTC has seconds. Whole numbers are read exactly, of as many
    digits as Python reads (``sys.set_int_max_str_digits``, 4,300 unless set).
    """

    def encode(self, value: Any) -> bytes:
        orjson = _library("orjson")
        try:
            data: bytes = orjson.dumps(value, _dataclass_fields, orjson.OPT_PASSTHROUGH_DATACLASS)
        except orjson.JSONEncodeError as error:
            if isinstance(error.__cause__, InvalidInput):
                raise error.__cause__ from None
            raise
        _check_json(data, value, value)
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

    What is read is checked against the type, and is of it; in JSON or MessagePack. So a value that could not be read
    again is refused, and one of a subclass, whose own fields would be lost. A pydantic model is written by the names of
    its fields, and read by those and by their aliases (pydantic 2.11 or newer).
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
        for record in _records(self.kind):
            if isinstance(value, record) and type(value) not in _records(self.kind):
                raise InvalidInput(
                    f"this client's codec is for {record.__name__}, not for its subclass {type(value).__name__}"
                )
        pydantic = _is_pydantic(self.kind)
        plain = value.model_dump(mode="python" if self.form == "msgpack" else "json") if pydantic else value
        data: bytes = _library(self.form).encode(plain)
        if self.form == "json":
            _check_json(data, plain, value)
        self._check_readable(data, value)
        return data

    def _check_readable(self, data: bytes, value: Any) -> None:
        """A value that has parts of other types than it should is written as it is, and nobody could read it."""
        try:
            self.decode(data)
        except Exception as error:  # whatever the type's own checks raise
            raise InvalidInput(f"this client's codec could not read {value!r:.60} again: {error}") from error

    def decode(self, data: bytes) -> Any:
        if _is_pydantic(self.kind):
            return self.kind.model_validate(_library(self.form).decode(data), **_by_name_and_alias())
        return _decoder(self.kind, self.form).decode(data)


@dataclass(frozen=True)
class ZstdCodec:
    """What another codec writes, compressed with zstd where that makes it shorter.

    Data that begins with the four bytes of a zstd frame, 28 B5 2F FD, is one frame; all other data is as it is. So
    records of clients that compress and of such that do not may be in one log. Refused: more than 64 MiB of data.
    """

    codec: Codec = field(default_factory=BytesCodec)
    level: int = 3
    at_least_bytes: int = 128
    """Shorter data is left as it is."""

    def encode(self, value: Any) -> bytes:
        data = encoded(self.codec, value)
        if len(data) > _LONGEST_DATA_BYTES:  # it may become short enough to be appended, and is not read again
            raise InvalidInput(f"{len(data)} bytes cannot be compressed, {_LONGEST_DATA_BYTES} are the most")
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


@lru_cache
def _by_name_and_alias() -> dict[str, bool]:
    """How pydantic reads: we write names, others may write aliases. Before 2.11 it is as the model says."""
    import pydantic

    version = tuple(int(number) for number in pydantic.VERSION.split(".")[:2])
    return {"by_name": True, "by_alias": True} if version >= (2, 11) else {}


@lru_cache
def _records(kind: Any) -> tuple[type, ...]:
    """The classes in a type, or in a union, whose values are read as them and nothing else."""
    return tuple(
        each
        for each in get_args(kind) or (kind,)
        if isinstance(each, type) and (is_dataclass(each) or hasattr(each, "__struct_fields__") or _is_pydantic(each))
    )


def _dataclass_fields(value: Any) -> dict[str, Any]:
    """What orjson would write of a dataclass, from which it leaves out such fields."""
    if not is_dataclass(value) or isinstance(value, type):
        raise TypeError  # orjson says what it cannot write
    names = [each.name for each in fields(value)]
    for name in names:
        if name.startswith("_"):
            raise InvalidInput(
                f"JsonCodec does not write {type(value).__name__}.{name}: it begins with _; use TypedCodec"
            )
    return {name: getattr(value, name) for name in names}


def _check_json(data: bytes, written: Any, value: Any) -> None:
    """InvalidInput if JSON has something else than is in the value. Most data shows that there is nothing to look for.

    ``written``: the value, or what pydantic has made of it.
    """
    if b"null" in data:  # which is also written for NaN
        for each in _leaves(written):
            if isinstance(each, float) and not math.isfinite(each):
                raise InvalidInput(f"JSON does not have {each}; say what it is to be, or use MsgpackCodec")
    if _TIME_ZONE(data):  # which is rounded to a minute
        for each in _leaves(value.model_dump() if written is not value else value):
            offset = each.utcoffset() if isinstance(each, datetime | time) else None
            if offset is not None and offset % timedelta(minutes=1):
                raise InvalidInput(f"JSON does not have {each}: its offset from UTC has seconds; append it in UTC")


def _leaves(value: Any) -> Iterator[Any]:
    """All that has no parts."""
    parts: Any = ()
    if isinstance(value, str | int | float):
        yield value
    elif isinstance(value, Enum):
        parts = [value.value]
    elif isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    elif is_dataclass(value):
        parts = [getattr(value, each.name) for each in fields(value)]
    elif hasattr(value, "__struct_fields__"):  # msgspec.Struct
        parts = [getattr(value, name) for name in value.__struct_fields__]
    else:
        yield value
    for part in parts:
        yield from _leaves(part)
