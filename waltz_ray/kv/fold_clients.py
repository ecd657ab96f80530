"""What is remembered of native clients' requests, so that a write which is repeated is not done twice. Pure.

Of each client: what it has *settled*, the minute of its last write by the clock of the records, and the version of each
write that is not settled. It is forgotten ten minutes after its last write. It is not kept in the items: another write
of the same item would take it away, between a write and its repetition.
"""

from __future__ import annotations

import struct
from itertools import takewhile

from waltz_ray.kv.model import RequestId
from waltz_ray.kv.tables import Table, Tables, changed_at, client_key, minutes_key, number, seen_of, seen_value

__all__ = ["FORGOTTEN_MINUTES", "client_entry", "forget_idle", "is_forgotten", "is_settled", "merge_client", "remember"]

FORGOTTEN_MINUTES = 10
"""After its last write a client's requests are remembered so long, and for up to a minute more."""

_MINUTE_MS = 60_000
_CLIENT_BYTES, _REQUEST_BYTES = 24, 16
_SEQUENCE = struct.Struct(">Q")
_REQUEST = struct.Struct(">Qq")
_ENTRY_HEAD = 16


def is_forgotten(minute: int, now_minute: int) -> bool:
    """Whose last write was in ``minute``: is it gone?"""
    return minute + FORGOTTEN_MINUTES < now_minute


def is_settled(sequence: int, settled: int) -> bool:
    """Has the client its answer?"""
    return sequence < settled


def remember(tables: Tables, request: RequestId, version: int, at_ms: int) -> None:
    """A write of a client got ``version``."""
    key = client_key(request.client)
    settled = _seen(tables, key, request.settled, at_ms // _MINUTE_MS)
    _add(tables, key, request.sequence, version, settled)


def merge_client(tables: Tables, key: bytes, data: bytes) -> None:
    """What a chunk has of a client, ``data`` of ``client_entry``; it may have been forgotten and have come back."""
    said_settled, said_minute = seen_of(data)
    stored = tables.get(Table.CLIENTS, key)
    if stored is not None and is_forgotten(said_minute, seen_of(stored)[1]):
        return
    tables.marks.newest_ms = max(tables.marks.newest_ms, said_minute * _MINUTE_MS)
    settled = _seen(tables, key, said_settled, said_minute)
    for sequence, version in _REQUEST.iter_unpack(data[_ENTRY_HEAD:]):
        _add(tables, key, sequence, version, settled)


def client_entry(tables: Tables, key: bytes, value: bytes) -> bytes:
    """What a chunk says of the client who has ``value`` in CLIENTS: that, and sequence and version of each request."""
    requests = (known[8:] + version for known, version in _requests(tables, key))
    return b"".join((value, *requests))


def forget_idle(tables: Tables, now_ms: int) -> None:
    """Forget who has not written for long."""
    while True:
        first = next(iter(tables.under(Table.IDLE, b"", 1)), None)
        if first is None or not is_forgotten(_SEQUENCE.unpack_from(first[0])[0], now_ms // _MINUTE_MS):
            return
        key = first[0][8:]
        tables.delete(Table.IDLE, first[0])
        tables.delete(Table.CLIENTS, key)
        tables.marks.live_bytes -= _CLIENT_BYTES
        for known, _ in list(_requests(tables, key)):
            _drop(tables, known)


def _requests(tables: Tables, key: bytes) -> takewhile[tuple[bytes, bytes]]:
    return takewhile(lambda entry: entry[0][:8] == key, tables.seek(Table.REQUESTS, key))


def _seen(tables: Tables, key: bytes, settled: int, minute: int) -> int:
    """Raise what is known of a client; what it has settled now."""
    stored = tables.get(Table.CLIENTS, key)
    if stored is None:
        old_settled, old_minute = 0, -1
        tables.marks.live_bytes += _CLIENT_BYTES
    else:
        old_settled, old_minute = seen_of(stored)
    settled, minute = max(settled, old_settled), max(minute, old_minute)
    if settled > old_settled and stored is not None:
        some = takewhile(
            lambda entry: is_settled(_SEQUENCE.unpack_from(entry[0], 8)[0], settled), _requests(tables, key)
        )
        for known, _ in list(some):
            _drop(tables, known)
    if (settled, minute) != (old_settled, old_minute):
        tables.put(Table.CLIENTS, key, seen_value(settled, minute))
    if minute != old_minute:
        if stored is not None:
            tables.delete(Table.IDLE, minutes_key(old_minute, key))
        tables.put(Table.IDLE, minutes_key(minute, key), b"")
    return settled


def _add(tables: Tables, key: bytes, sequence: int, version: int, settled: int) -> None:
    if is_settled(sequence, settled):
        return
    known = key + _SEQUENCE.pack(sequence)
    stored = tables.get(Table.REQUESTS, known)
    if stored is None:
        tables.marks.live_bytes += _REQUEST_BYTES
    elif changed_at(stored) <= version:
        return
    tables.put(Table.REQUESTS, known, number(version))


def _drop(tables: Tables, known: bytes) -> None:
    tables.delete(Table.REQUESTS, known)
    tables.marks.live_bytes -= _REQUEST_BYTES
