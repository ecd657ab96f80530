"""The bytes of a kv space's records, as docs/formats.md, "Key/value records" has them. Pure.

A record is the data of one transaction; the transaction's header is ``header_of`` it. Big-endian, packed; the first
byte says what it is, the second in which version. What stands last in a record has no length: it is the rest.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar, cast

from waltz_ray.errors import InvalidInput, WireError
from waltz_ray.kv.fold_clients import MOST_REFUSED_VERSION
from waltz_ray.kv.model import (
    ALL_SECTIONS,
    BARRIER,
    MAX_NAME_BYTES,
    NOBODYS,
    Barrier,
    Delete,
    Expired,
    ItemKey,
    ItemWrite,
    Lock,
    Own,
    Record,
    Release,
    RequestId,
    Set,
    Several,
    SnapshotBegin,
    SnapshotChunk,
    SnapshotEnd,
    SnapshotItem,
    Touch,
    Unlock,
    WriteRefused,
)
from waltz_ray.kv.routing import Unit, fnv1a_32

__all__ = ["SetRow", "decode_record", "encode_record", "header_of", "set_rows"]

VERSION = 0

_WRITES = (b"\1", b"\2", b"\3")
"""The first byte of writes of items."""

T = TypeVar("T", Own, Release)

SetRow = tuple[bytes, bytes, int, int, int, int]
"""A set that a native client has asked for: key (map hash, hash, name), item (type, deadline, map name, data), client,
sequence, settled, and the time. Key and item are laid out as in ``tables.py``, the item without its version."""

_HEAD = struct.Struct(">BBB")  # kind, version, what follows of the request
_REQUEST = struct.Struct(">BBBQQQQ")
_BARE_SET = struct.Struct(">BBBIIH")
_FULL_SET = struct.Struct(">BBBQQQQIIH")
_KEY = struct.Struct(">IIH")
_ITEM = struct.Struct(">BQB")  # type, deadline, length of the map's name
_LOCK = struct.Struct(">HQQ")
_ULONG = struct.Struct(">Q")
_LONG = struct.Struct(">q")
_COUNT = struct.Struct(">I")
_OWNER = struct.Struct(">IIIQ")
_ENTRY = struct.Struct(">BqHI")
_REFUSED = struct.Struct(">Bq")

_REQUEST_FLAG, _TIME_FLAG = 1, 2  # client, sequence, settled; at_ms
_NOTHING, _ALL = 0, _REQUEST_FLAG | _TIME_FLAG
_FULL = bytes((1, VERSION, _ALL))
_SET_ROW = struct.Struct(">3sQQQQ8sH")
_MANY = bytes((13, VERSION))


def header_of(record: Record) -> int:
    """The transaction header of ``record``, a signed 32 bit number: the hash of what it is about, 0 if of nothing."""
    if isinstance(record, ItemWrite):
        found = record.key.hash
    elif isinstance(record, Lock | Unlock):
        found = fnv1a_32(record.name)
    elif isinstance(record, Own | Release):
        found = record.unit.bucket
    else:
        found = 0
    return found - (1 << 32) if found >> 31 else found


# ---- writing


def encode_record(record: Record) -> bytes:
    """Its bytes. InvalidInput if a number does not fit, or a name is too long."""
    try:
        return _WRITERS[type(record)](record)
    except (struct.error, UnicodeEncodeError) as error:
        raise InvalidInput(f"no record can say this of a {type(record).__name__}: {error}") from None


def _set(record: Set) -> bytes:
    key, request, at_ms, map_name = record.key, record.request, record.at_ms, record.map_name
    name = _checked(key.name)
    if at_ms and request != NOBODYS:
        head = _FULL_SET.pack(1, VERSION, _ALL, *request, at_ms, key.map_hash, key.hash, len(name))
    elif not at_ms and request == NOBODYS:
        head = _BARE_SET.pack(1, VERSION, _NOTHING, key.map_hash, key.hash, len(name))
    else:
        head = _requested(1, record) + _KEY.pack(key.map_hash, key.hash, len(name))
    return b"".join((head, name, _ITEM.pack(record.type, record.deadline_ms, len(map_name)), map_name, record.data))


def _requested(kind: int, record: ItemWrite | Lock | Unlock | WriteRefused) -> bytes:
    """The head of a record that a client may have asked for."""
    flags = (record.request != NOBODYS and _REQUEST_FLAG) | (record.at_ms != 0 and _TIME_FLAG)
    parts = [_HEAD.pack(kind, VERSION, flags)]
    if flags & _REQUEST_FLAG:
        parts += [_ULONG.pack(number) for number in record.request]
    if flags & _TIME_FLAG:
        parts.append(_ULONG.pack(record.at_ms))
    return b"".join(parts)


def _checked(name: bytes) -> bytes:
    if len(name) > MAX_NAME_BYTES:
        raise InvalidInput(f"no record can say this: a name has at most {MAX_NAME_BYTES} bytes, not {len(name)}")
    return name


def _key(key: ItemKey) -> bytes:
    return _KEY.pack(key.map_hash, key.hash, len(key.name)) + _checked(key.name)


def _several(record: Several) -> bytes:
    parts = [bytes((13, VERSION)), _COUNT.pack(len(record.writes))]
    for write in record.writes:
        data = _WRITERS[type(write)](write)
        parts += (_COUNT.pack(len(data)), data)
    return b"".join(parts)


def _expired(record: Expired) -> bytes:
    entries = (_key(key) + _LONG.pack(version) for key, version in record.items)
    return bytes((4, VERSION)) + _COUNT.pack(len(record.items)) + b"".join(entries)


def _lock(record: Lock) -> bytes:
    return _requested(5, record) + _LOCK.pack(record.random, record.deadline_ms, record.renewed) + _checked(record.name)


def _owner(kind: int, record: Own | Release) -> bytes:
    numbers = _OWNER.pack(*record.unit, record.actor, record.epoch)
    return bytes((kind, VERSION)) + numbers + record.incarnation.encode()


def _begin(record: SnapshotBegin) -> bytes:
    return bytes((10, VERSION)) if record.sections == ALL_SECTIONS else bytes((10, VERSION, record.sections))


def _chunk(record: SnapshotChunk) -> bytes:
    parts = [bytes((11, VERSION)), _LONG.pack(record.snapshot)]
    for table, key, data, version in record.items:
        parts += (_ENTRY.pack(table, version, len(key), len(data)), key, data)
    return b"".join(parts)


_WRITERS: dict[type, Callable[[Any], bytes]] = {
    Set: _set,
    Delete: lambda record: _requested(2, record) + _key(record.key),
    Touch: lambda record: _requested(3, record) + _key(record.key) + _ULONG.pack(record.deadline_ms),
    Expired: _expired,
    Lock: _lock,
    Unlock: lambda record: _requested(6, record) + _ULONG.pack(record.code) + _checked(record.name),
    WriteRefused: lambda record: _requested(14, record) + _REFUSED.pack(record.code, record.version),
    Own: lambda record: _owner(7, record),
    Release: lambda record: _owner(8, record),
    Barrier: lambda record: bytes((9, VERSION)),
    SnapshotBegin: _begin,
    SnapshotChunk: _chunk,
    SnapshotEnd: lambda record: bytes((12, VERSION)) + _LONG.pack(record.snapshot),
    Several: _several,
}


# ---- reading


def set_rows(data: bytes) -> list[SetRow] | None:
    """The sets that a transaction consists of, as nearly all do, without an object for each.

    None if it is anything else, or no record: then ``decode_record`` says what it is, and the same of these.
    """
    size = len(data)
    if data[:2] != _MANY:
        row = _row(data, 0, size)
        return None if row is None else [row]
    rows: list[SetRow] = []
    position = 2 + _COUNT.size
    while position + _COUNT.size <= size:
        begin = position + _COUNT.size
        position = begin + _COUNT.unpack_from(data, position)[0]
        row = _row(data, begin, position) if position <= size else None
        if row is None:
            return None
        rows.append(row)
    return rows if rows and position == size and _COUNT.unpack_from(data, 2)[0] == len(rows) else None


def _row(data: bytes, begin: int, end: int) -> SetRow | None:
    """Of the write that has the bytes [begin, end)."""
    name = begin + _SET_ROW.size
    if name > end:
        return None
    kind, client, sequence, settled, at_ms, hashes, length = _SET_ROW.unpack_from(data, begin)
    name_end = name + length
    map_name = name_end + _ITEM.size
    if kind != _FULL or length > MAX_NAME_BYTES or map_name > end or map_name + data[map_name - 1] > end:
        return None
    return hashes + data[name:name_end], data[name_end:end], client, sequence, settled, at_ms


def decode_record(data: bytes | memoryview) -> Record:
    """The record whose bytes these are. WireError if they are none, or of a kind or version that is not known."""
    if len(data) < 2:
        raise WireError(f"a kv record has at least 2 bytes, kind and version, not {len(data)}")
    kind, version = data[0], data[1]
    reader = _READERS.get(kind)
    if reader is None:
        raise WireError(f"kv record kind {kind} is unknown: a newer waltz_ray has written it, or no kv actor at all")
    if version != VERSION:
        raise WireError(f"kv record kind {kind} has version {version}, and {VERSION} is the newest known here")
    try:
        if len(data) >= _FULL_SET.size and data[:3] == _FULL:
            return _read_full_set(bytes(data))
        return reader(RecordReader(bytes(data)))
    except struct.error:
        raise WireError(f"kv record kind {kind} is cut short: it has {len(data)} bytes") from None
    except UnicodeDecodeError as error:
        raise WireError(f"kv record kind {kind}: an incarnation is not UTF-8: {error.reason}") from None


class RecordReader:
    """A record's bytes, read from the front, behind kind and version."""

    __slots__ = ("data", "position")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 2

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        found = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        return found

    def take(self, length: int) -> bytes:
        start, self.position = self.position, self.position + length
        if self.position > len(self.data):
            raise WireError(f"kv record kind {self.data[0]} is cut short: it has {len(self.data)} bytes")
        return self.data[start : self.position]

    def rest(self) -> bytes:
        start, self.position = self.position, len(self.data)
        return self.data[start:]

    def end(self) -> None:
        left = len(self.data) - self.position
        if left:
            raise WireError(f"kv record kind {self.data[0]} has {left} bytes too many")

    def request(self) -> tuple[RequestId, int]:
        flags = self.take(1)[0]
        if flags > _ALL:
            raise WireError(f"kv record kind {self.data[0]} has unknown flags {flags:#x}")
        request = RequestId(*self.unpack(_REQUEST_IDS)) if flags & _REQUEST_FLAG else NOBODYS
        return request, self.unpack(_ULONG)[0] if flags & _TIME_FLAG else 0

    def key(self) -> ItemKey:
        map_hash, key_hash, length = self.unpack(_KEY)
        return ItemKey(map_hash, key_hash, self.name(self.take(length)))

    def name(self, found: bytes) -> bytes:
        if len(found) > MAX_NAME_BYTES:
            raise WireError(f"kv record kind {self.data[0]} has a name of {len(found)} bytes, over {MAX_NAME_BYTES}")
        return found


_REQUEST_IDS = struct.Struct(">QQQ")


def _read_full_set(data: bytes) -> Set:
    """Of one that begins with ``_FULL``, as nearly all do: half the time of reading its parts."""
    _, _, _, client, sequence, settled, at_ms, map_hash, key_hash, length = _FULL_SET.unpack_from(data)
    name_end = _FULL_SET.size + length
    kind, deadline_ms, map_length = _ITEM.unpack_from(data, name_end)
    map_begin = name_end + _ITEM.size
    begin = map_begin + map_length
    if length > MAX_NAME_BYTES:
        raise WireError(f"kv record kind 1 has a name of {length} bytes, over {MAX_NAME_BYTES}")
    if begin > len(data):
        raise WireError(f"kv record kind 1 is cut short: it has {len(data)} bytes")
    key = ItemKey(map_hash, key_hash, data[_FULL_SET.size : name_end])
    request = RequestId(client, sequence, settled)
    return Set(key, kind, data[begin:], deadline_ms, data[map_begin:begin], request, at_ms)


def _read_set(source: RecordReader) -> Set:
    request, at_ms = source.request()
    key = source.key()
    kind, deadline_ms, length = source.unpack(_ITEM)
    map_name = source.take(length)
    return Set(key, kind, source.rest(), deadline_ms, map_name, request, at_ms)


def _read_delete(source: RecordReader) -> Delete:
    request, at_ms = source.request()
    found = Delete(source.key(), request, at_ms)
    source.end()
    return found


def _read_touch(source: RecordReader) -> Touch:
    request, at_ms = source.request()
    key = source.key()
    (deadline_ms,) = source.unpack(_ULONG)
    source.end()
    return Touch(key, deadline_ms, request, at_ms)


def _read_several(source: RecordReader) -> Several:
    (count,) = source.unpack(_COUNT)
    writes: list[ItemWrite] = []
    for _ in range(count):  # a count that lies ends at the first write that is not there
        (length,) = source.unpack(_COUNT)
        data = source.take(length)
        if data[:1] not in _WRITES:  # also another of kind 13: nothing nests
            raise WireError(f"kv record kind 13 has what is no write: {data[:2].hex() or 'nothing'}")
        writes.append(cast("ItemWrite", decode_record(data)))
    source.end()
    if not writes:
        raise WireError("kv record kind 13 has no writes")
    return Several(tuple(writes))


def _read_expired(source: RecordReader) -> Expired:
    (count,) = source.unpack(_COUNT)
    items: list[tuple[ItemKey, int]] = []
    for _ in range(count):  # a count that lies ends at the first entry that is not there
        key = source.key()
        items.append((key, source.unpack(_LONG)[0]))
    source.end()
    return Expired(tuple(items))


def _read_lock(source: RecordReader) -> Lock:
    request, at_ms = source.request()
    random, deadline_ms, renewed = source.unpack(_LOCK)
    return Lock(source.name(source.rest()), random, deadline_ms, renewed, request, at_ms)


def _read_unlock(source: RecordReader) -> Unlock:
    request, at_ms = source.request()
    (code,) = source.unpack(_ULONG)
    return Unlock(source.name(source.rest()), code, request, at_ms)


def _read_refused(source: RecordReader) -> WriteRefused:
    request, at_ms = source.request()
    code, version = source.unpack(_REFUSED)
    source.end()
    if not -1 <= version <= MOST_REFUSED_VERSION:
        raise WireError(f"kv record kind 14 has version {version}, which no item has")
    return WriteRefused(code, version, request, at_ms)


def _read_owner(source: RecordReader, kind: type[T]) -> T:
    mask, bucket, actor, epoch = source.unpack(_OWNER)
    return kind(Unit(mask, bucket), actor, source.rest().decode(), epoch)


def _read_barrier(source: RecordReader) -> Barrier:
    source.end()
    return BARRIER


def _read_begin(source: RecordReader) -> SnapshotBegin:
    sections = source.rest()
    if not sections:
        return SnapshotBegin()
    if len(sections) > 1 or not 0 < sections[0] < ALL_SECTIONS:
        raise WireError(
            f"kv record kind 10 has nothing, or a byte of sections, 1 to {ALL_SECTIONS - 1}, not {sections[:8].hex()}"
        )
    return SnapshotBegin(sections[0])


def _read_chunk(source: RecordReader) -> SnapshotChunk:
    (snapshot,) = source.unpack(_LONG)
    items: list[SnapshotItem] = []
    while source.position < len(source.data):
        table, version, key_length, data_length = source.unpack(_ENTRY)
        key = source.take(key_length)
        items.append(SnapshotItem(table, key, source.take(data_length), version))
    return SnapshotChunk(snapshot, tuple(items))


def _read_snapshot_end(source: RecordReader) -> SnapshotEnd:
    (snapshot,) = source.unpack(_LONG)
    source.end()
    return SnapshotEnd(snapshot)


_READERS: dict[int, Callable[[RecordReader], Record]] = {
    1: _read_set,
    2: _read_delete,
    3: _read_touch,
    4: _read_expired,
    5: _read_lock,
    6: _read_unlock,
    7: lambda source: _read_owner(source, Own),
    8: lambda source: _read_owner(source, Release),
    9: _read_barrier,
    10: _read_begin,
    11: _read_chunk,
    12: _read_snapshot_end,
    13: _read_several,
    14: _read_refused,
}
