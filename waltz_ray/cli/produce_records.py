"""What ``waltz produce`` reads: records out of a stream of bytes, each with its number, their bytes as they are."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from waltz_ray.errors import InvalidInput

__all__ = ["BadRecord", "Piece", "Record", "from_jsonl", "keyed", "pieces"]

CHUNK_BYTES = 1 << 18

_INT32 = range(-(1 << 31), 1 << 31)
_FIELDS = ("data", "data_base64", "key", "header", "lock")
_OF_FEED = ("transaction_id", "partition_id", "client_id", "generation", "sequence_number", "appended_at")
"""What ``waltz feed --json`` prints beside: a copy of the log has its own."""


class BadRecord(InvalidInput):
    """It cannot be appended."""


@dataclass(frozen=True)
class Record:
    """One transaction to be. ``header`` None: that of the command; ``lock``: name and key of an append lock."""

    data: bytes
    key: str | bytes | int | None = None
    header: int | None = None
    lock: tuple[str, str | int] | None = None


Piece = tuple[int, bytes | None]
"""A record's number, from 1, and its bytes; None: it is longer than a transaction can be."""


def pieces(read: Callable[[int], bytes], separator: bytes, most_bytes: int) -> Iterator[list[Piece]]:
    """The pieces between ``separator`` (b"": all is one), a list for each time that ``read`` gave something.

    ``read`` is asked again only when the list has been used, so nothing lies about while it waits. The last piece needs
    no separator behind it. Never more than a chunk and ``most_bytes`` are held.
    """
    number, kept, too_long = 1, b"", False
    while chunk := read(CHUNK_BYTES):
        found: list[Piece] = []
        *whole, rest = chunk.split(separator) if separator else [chunk]
        for part in whole:
            data = kept + part
            found.append((number, None if too_long or len(data) > most_bytes else data))
            number, kept, too_long = number + 1, b"", False
        kept += rest
        if len(kept) > most_bytes:
            kept, too_long = b"", True
        yield found
    if kept or too_long or (not separator and number == 1):
        yield [(number, None if too_long else kept)]


def keyed(data: bytes, separator: bytes) -> Record:
    """A line whose key is what stands before ``separator``; the line stays whole. "" is no separator: no key."""
    if not separator:
        return Record(data)
    key, found, _ = data.partition(separator)
    if not found:
        raise BadRecord(f"there is no key: {separator.decode(errors='replace')!r} is not in it")
    return Record(data, key)


def from_jsonl(line: bytes) -> Record:
    """``{"data": "text"}`` or ``{"data_base64": "..."}``, with ``key``, ``header``, ``lock`` ([name, key])."""
    try:
        row = json.loads(line)
    except RecursionError:
        raise BadRecord("it is nested too deeply") from None
    except ValueError as error:
        raise BadRecord(f"it is no JSON: {error}") from error
    if not isinstance(row, dict):
        raise BadRecord("it is no JSON object")
    if unknown := [name for name in row if name not in _FIELDS and name not in _OF_FEED]:
        raise BadRecord(f"it has {unknown[0]!r}; a record has {', '.join(_FIELDS)}")
    return Record(_data(row), _key(row.get("key")), _header(row.get("header")), _lock(row.get("lock")))


def _data(row: dict[str, Any]) -> bytes:
    if ("data" in row) == ("data_base64" in row):
        raise BadRecord("it needs one of data and data_base64")
    name = "data" if "data" in row else "data_base64"
    if not isinstance(row[name], str):
        raise BadRecord(f"{name} is no text")
    try:
        return row[name].encode() if name == "data" else base64.b64decode(row[name], validate=True)
    except (UnicodeEncodeError, binascii.Error, ValueError) as error:
        raise BadRecord(f"{name} has no bytes: {error}") from error


def _key(value: Any) -> str | int | None:
    if value is None or (isinstance(value, str | int) and not isinstance(value, bool)):
        return value
    raise BadRecord("key is no text and no whole number")


def _header(value: Any) -> int | None:
    if value is None or (type(value) is int and value in _INT32):
        return value
    raise BadRecord("header is no signed 32-bit integer")


def _lock(value: Any) -> tuple[str, str | int] | None:
    if value is None:
        return None
    if not (isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)):
        raise BadRecord('lock is not ["name", key]')
    key = _key(value[1])
    if key is None:
        raise BadRecord("lock has no key")
    try:
        value[0].encode()
    except UnicodeEncodeError as error:  # half of a pair, which only JSON can write
        raise BadRecord(f"lock has no name: {error}") from error
    return value[0], key
