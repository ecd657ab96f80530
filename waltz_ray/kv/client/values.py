"""Names and values of an application, as they are on the wire and in the log. Pure."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from waltz_ray.client.codecs import Codec, encoded
from waltz_ray.errors import DecodingFailed, InvalidInput
from waltz_ray.kv.messages import ABSENT, ANY_VERSION
from waltz_ray.kv.model import ValueType
from waltz_ray.kv.routing import fnv1a_32

__all__ = [
    "MOST_MAP_NAME_BYTES",
    "MOST_NAME_BYTES",
    "MOST_VALUE_BYTES",
    "Entry",
    "Expected",
    "KvName",
    "NamedEntry",
    "expected_version",
    "expires_in_ms",
    "name_bytes",
    "name_text",
    "value_bytes",
    "value_of",
]

KvName = str | bytes
"""Of an item, a map or a lock: a str is its UTF-8, so ``"ann"`` and ``b"ann"`` are one name."""

Expected = int | None
"""A version, ``ABSENT`` (there must be no such item), or None: whatever is there."""

MOST_NAME_BYTES = 480
"""Of an item's or a lock's name."""
MOST_MAP_NAME_BYTES = 255
MOST_VALUE_BYTES = 16 * 1024 * 1024 - 1024
"""Of a value, as bytes; the actors may have a lower limit (``max_value_bytes``)."""
_INT, _LONG = struct.Struct(">i"), struct.Struct(">q")
_LONGEST_S = 100 * 365 * 86400.0


class Entry(NamedTuple):
    """An item as it was when the actor that serves it was asked."""

    value: Any
    version: int
    """Transaction ID, within the item's partition, of its last change; it rises with each."""
    expires: float | None
    """Seconds from then on until it expires; None = never."""


class NamedEntry(NamedTuple):
    """An item that a scan has met."""

    name: KvName
    """A str; bytes where it is no UTF-8."""
    value: Any
    version: int
    expires: float | None
    """Seconds until it expires; None = never."""


def name_bytes(name: KvName, what: str = "an item's name", most: int = MOST_NAME_BYTES) -> bytes:
    """The name as it is sent. InvalidInput: it is none, or too long."""
    if isinstance(name, str):
        try:
            found = name.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{what} must be UTF-8, and {name!r:.60} is not: {error.reason}") from error
    elif isinstance(name, bytes):
        found = name
    else:
        raise InvalidInput(f"{what} must be str or bytes, not {type(name).__name__}: {name!r:.60}")
    if len(found) > most:
        raise InvalidInput(f"{what} has at most {most} bytes, not {len(found)}: {name!r:.60}...")
    return found


def name_text(name: bytes) -> KvName:
    """What an application is given for a name."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name


def value_bytes(value: Any, codec: Codec | None) -> tuple[int, bytes]:
    """Type and data of a value: bytes, str and integers of 64 bits as they are, all others by the codec.

    InvalidInput: there is no codec, or it cannot encode it.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return ValueType.STRING, _fitting(bytes(value))
    kind = type(value)
    if kind is str:
        return ValueType.TEXT, _fitting(value.encode("utf-8", "surrogatepass"))
    if kind is int and -(2**63) <= value < 2**63:
        return ValueType.LONG, _LONG.pack(value)
    if codec is None:
        what = "this integer, which has more than 64 bits" if kind is int else kind.__name__
        raise InvalidInput(f"a value is bytes, str or an integer of 64 bits, not {what}; give connect() a codec for it")
    return ValueType.CODED, _fitting(encoded(codec, value))


def _fitting(data: bytes) -> bytes:
    if len(data) > MOST_VALUE_BYTES:
        raise InvalidInput(
            f"a value has at most {MOST_VALUE_BYTES} bytes, not {len(data)}; store it elsewhere and keep its address"
        )
    return data


def value_of(codec: Codec | None, name: bytes, kind: int, data: bytes, version: int, partition_id: int) -> Any:
    """The value that these bytes are. InvalidInput, DecodingFailed."""
    if kind == ValueType.STRING:
        return data
    try:
        if kind == ValueType.TEXT:
            return data.decode("utf-8", "surrogatepass")
        if kind == ValueType.LONG:
            return _LONG.unpack(data)[0]
        if kind == ValueType.INT:
            return _INT.unpack(data)[0]
        if kind != ValueType.CODED:
            raise ValueError(f"this version knows no values of type {kind}")
        if codec is not None:
            return codec.decode(data)
    except Exception as error:
        header = _INT.unpack(fnv1a_32(name).to_bytes(4, "big"))[0]
        reason = f"item {name_text(name)!r:.200}: {' '.join(str(error).split())}"
        raise DecodingFailed(partition_id, version, header, reason) from error
    raise InvalidInput(f"item {name_text(name)!r} was written with a codec; give connect() the same one")


def expires_in_ms(expires: float | None) -> int:
    """Milliseconds, 0 = never. InvalidInput unless it is a positive number of seconds."""
    if expires is None:
        return 0
    if isinstance(expires, bool) or not isinstance(expires, int | float) or not 0 < expires <= _LONGEST_S:
        raise InvalidInput(f"expires is a positive number of seconds, or None for never, not {expires!r:.60}")
    return max(1, round(expires * 1000))


def expected_version(expected: Expected) -> int:
    """As it is sent. InvalidInput."""
    if expected is None:
        return ANY_VERSION
    if isinstance(expected, bool) or not isinstance(expected, int) or (expected < 0 and expected != ABSENT):
        raise InvalidInput(f"expected is the version of an Entry, ABSENT or None, not {expected!r:.60}")
    return expected
