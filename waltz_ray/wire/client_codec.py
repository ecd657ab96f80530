"""Version 5 of the client protocol in bytes (``docs/wire.md``, "Version 5"): the types from 32 up.

A message of n records is read as a handful of numpy arrays and one view of the body; neither writing nor reading
touches records one by one. What a column says is checked against the bytes that are there before it is used: counts
against the payload, lengths against the body, lock offsets against the lock hashes.

``waltz_ray.wire.codec`` is the door.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any

import numpy as np

from waltz_ray.errors import WireError
from waltz_ray.protocol.messages.client import (
    AppendedBatch,
    DataRangeRequest,
    DataRangeResponse,
    ErrorMessage,
    FeedBatch,
    FeedCredit,
    FeedMode,
    FeedRecords,
    HindranceRequest,
    HindranceResponse,
    LockFailureBatch,
    Mount,
    Mounted,
    NotAllowed,
    NotReady,
    PartitionStateRequest,
    PartitionStateResponse,
    RecordsTrimmed,
    Rejected,
    RejectionCode,
    ShowToken,
    Unmount,
)
from waltz_ray.protocol.messages.original import MountState
from waltz_ray.protocol.records import AppendBatch, LockColumns, RecordBatch
from waltz_ray.wire.primitives import BytesLike, Reader, Writer, column_bytes, record_parts
from waltz_ray.wire.table import MessageRow

__all__ = ["BATCHES", "BATCH_VERSION", "batch_row", "read_one_append", "read_one_appended"]

BATCH_VERSION = 5
"""Of the client protocol: the one that brought them."""

# Heads are written with their type byte and read after it.
_APPEND, _APPEND_IN = struct.Struct(">BiiiiB"), struct.Struct(">iiiiB")
_ONE_APPEND = struct.Struct(">BiiiiBqiiiI")
_FEED, _FEED_IN = struct.Struct(">Biqi"), struct.Struct(">iqi")
_APPENDED_ONE = struct.Struct(">Biqiiq")
_RECORDS = struct.Struct(">Bi")
_REJECTED, _REJECTED_IN = struct.Struct(">BiiBi"), struct.Struct(">iiBi")
_FAILURE, _FAILURE_IN = struct.Struct(">Bii"), struct.Struct(">ii")
_MOUNT, _MOUNT_IN = struct.Struct(">BiiiiqBq"), struct.Struct(">qBq")
_IN_ORDER = 0x80  # beside the feed mode
_MOUNTED, _MOUNTED_IN = struct.Struct(">BiiiiBiq"), struct.Struct(">Biq")
_RANGE, _RANGE_IN = struct.Struct(">Biq?"), struct.Struct(">iq?")
_STATE, _STATE_IN = struct.Struct(">BiiiqqB"), struct.Struct(">iiiqqB")
_PAIR, _PAIR_LONG = struct.Struct(">Bii"), struct.Struct(">Biq")
_LONG = struct.Struct(">q")
_LOCK_BOUNDS = struct.Struct(">ii")  # of one record: from 0 to so many
_FEW_LOCKS = 64
_NOWHERE = 1 << 62

_APPEND_BATCH, _APPENDED_BATCH = 32, 35
_SHARED_MARK = 1  # its flags
_WRITE_LOCKS, _READ_LOCKS, _APPEND_LOCKS = 2, 4, 8
_ALL_FLAGS = 15
_NO_LOCKS = LockColumns()


def _write_append(batch: AppendBatch) -> list[BytesLike]:
    count, marks = len(batch.lengths), batch.client_marks
    numbers = (batch.sequence_numbers, batch.headers, batch.lengths, batch.checksums.view(np.int32))
    if not len(marks) == len(numbers[0]) == len(numbers[1]) == len(numbers[3]) == count:
        raise WireError(f"an append batch whose columns differ in length: {[len(c) for c in (marks, *numbers)]}")
    if int(np.add.reduce(batch.lengths, dtype=np.int64)) != len(batch.body):
        raise WireError(f"an append batch whose lengths do not add up to its body of {len(batch.body)} bytes")
    flags = _SHARED_MARK if count == 1 or (count and marks[0] == marks[-1] and bool((marks == marks[0]).all())) else 0
    tail: list[BytesLike] = [np.concatenate(numbers).astype(">i4", casting="safe").tobytes()]
    for flag, locks in (
        (_WRITE_LOCKS, batch.write_locks),
        (_READ_LOCKS, batch.read_locks),
        (_APPEND_LOCKS, batch.append_locks),
    ):
        if locks is not _NO_LOCKS and len(locks.hashes):
            flags |= flag
            tail.append(column_bytes(locks.offsets, ">i4", count + 1))
            tail.append(column_bytes(locks.hashes, ">i4", int(locks.offsets[-1])))
    head = _APPEND.pack(_APPEND_BATCH, batch.client_id, batch.generation, batch.partition_id, count, flags)
    mark_bytes = _LONG.pack(marks[0]) if flags & _SHARED_MARK else column_bytes(marks, ">i8", count)
    return [head, mark_bytes, *tail, batch.body] if len(batch.body) else [head, mark_bytes, *tail]


def _read_append(reader: Reader) -> AppendBatch:
    client_id, generation, partition_id, count, flags = reader.unpack(_APPEND_IN)
    reader.check_count(count, "appends", 16)
    if flags > _ALL_FLAGS:
        reader.fail(f"flags {flags:#x} are unknown")
    if flags & _SHARED_MARK and count != 1:
        marks = np.array((reader.read_long(),), dtype=np.int64).repeat(count)
    else:
        marks = reader.long_column(count)
    sequence_numbers, headers, lengths, checksums = reader.int_columns(4, count)
    write_locks = _read_locks(reader, count) if flags & _WRITE_LOCKS else _NO_LOCKS
    read_locks = _read_locks(reader, count) if flags & _READ_LOCKS else _NO_LOCKS
    append_locks = _read_locks(reader, count) if flags & _APPEND_LOCKS else _NO_LOCKS
    return AppendBatch(
        client_id,
        generation,
        partition_id,
        sequence_numbers,
        marks,
        headers,
        lengths,
        checksums.view(np.uint32),
        reader.read_body(lengths),
        write_locks,
        read_locks,
        append_locks,
    )


def read_one_append(payload: BytesLike) -> AppendBatch | None:
    """One record, as a client that waits for each sends it: from scalars in a third of the time.

    None for any other message; the general way says what is wrong with it, if anything is.
    """
    if len(payload) < _ONE_APPEND.size:
        return None
    kind, client_id, generation, partition_id, count, flags, *numbers = _ONE_APPEND.unpack_from(payload)
    mark, sequence_number, header, length, checksum = numbers
    if kind != _APPEND_BATCH or count != 1 or flags > _ALL_FLAGS:
        return None
    write_locks = read_locks = append_locks = _NO_LOCKS
    start = _ONE_APPEND.size
    if flags > _SHARED_MARK:
        write_locks, start = _locks_of_one(payload, start, flags & _WRITE_LOCKS)
        read_locks, start = _locks_of_one(payload, start, flags & _READ_LOCKS)
        append_locks, start = _locks_of_one(payload, start, flags & _APPEND_LOCKS)
    if length != len(payload) - start:
        return None
    return AppendBatch(
        client_id,
        generation,
        partition_id,
        np.array((sequence_number,), np.int32),
        np.array((mark,), np.int64),
        np.array((header,), np.int32),
        np.array((length,), np.int32),
        np.array((checksum,), np.uint32),
        memoryview(payload)[start:],
        write_locks,
        read_locks,
        append_locks,
    )


def _locks_of_one(payload: BytesLike, start: int, there: int) -> tuple[LockColumns, int]:
    """The locks of one kind of the only record, if they are ``there``, and where they end; if they are many, or not as
    they should be, behind the end of the payload."""
    if not there:
        return _NO_LOCKS, start
    hashes = start + _LOCK_BOUNDS.size
    if hashes > len(payload):
        return _NO_LOCKS, _NOWHERE
    zero, count = _LOCK_BOUNDS.unpack_from(payload, start)
    end = hashes + 4 * count
    if zero or not 0 < count <= _FEW_LOCKS or end > len(payload):
        return _NO_LOCKS, _NOWHERE
    found = struct.unpack_from(f">{count}i", payload, hashes)
    return LockColumns(np.array((0, count), np.int32), np.array(found, np.int32)), end


def read_one_appended(payload: BytesLike) -> AppendedBatch | None:
    """The answer to one append; None for any other message."""
    if len(payload) != _APPENDED_ONE.size or payload[0] != _APPENDED_BATCH:
        return None
    _, partition_id, high_water_mark, count, sequence_number, transaction_id = _APPENDED_ONE.unpack(payload)
    if count != 1:
        return None
    numbers = np.array((sequence_number,), np.int32)
    return AppendedBatch(partition_id, high_water_mark, numbers, np.array((transaction_id,), np.int64))


def _read_locks(reader: Reader, count: int) -> LockColumns:
    offsets = reader.int_column(count + 1)
    bounds = offsets.tolist()
    if bounds[0] != 0 or bounds != sorted(bounds):
        reader.fail("lock offsets do not rise from 0")
    total = bounds[-1]
    reader.check_count(total, "lock hashes", 4)
    return LockColumns(offsets, reader.int_column(total)) if total else _NO_LOCKS


def _write_feed(feed: FeedBatch) -> list[BytesLike]:
    count = len(feed.headers)
    columns = (feed.client_ids, feed.generations, feed.sequence_numbers, feed.headers)
    if not len(columns[0]) == len(columns[1]) == len(columns[2]) == count:
        raise WireError(f"a feed batch whose columns differ in length: {[len(column) for column in columns]}")
    head = _FEED.pack(33, feed.partition_id, feed.first_id, count)
    return [head + np.concatenate(columns).astype(">i4", casting="safe").tobytes()]


def _read_feed(reader: Reader) -> FeedBatch:
    partition_id, first_id, count = reader.unpack(_FEED_IN)
    reader.check_count(count, "feed entries", 16)
    reader.check_ids(first_id, count)
    return FeedBatch(partition_id, first_id, *reader.int_columns(4, count))


def _write_records(feed: FeedRecords) -> list[BytesLike]:
    batch = feed.batch
    return [_RECORDS.pack(34, batch.partition_id), *record_parts(batch.first_id, batch.lengths, batch.records)]


def _read_records(reader: Reader) -> FeedRecords:
    return FeedRecords(RecordBatch(reader.read_int(), *reader.read_records()))


def _write_appended(appended: AppendedBatch) -> list[BytesLike]:
    count = len(appended.sequence_numbers)
    if count == 1 == len(appended.transaction_ids) and appended.sequence_numbers.dtype == np.int32:
        # Many clients with one append each: half the cost of columns.
        entry = appended.sequence_numbers[0], appended.transaction_ids[0]
        return [_APPENDED_ONE.pack(_APPENDED_BATCH, appended.partition_id, appended.high_water_mark, 1, *entry)]
    head = _FEED.pack(_APPENDED_BATCH, appended.partition_id, appended.high_water_mark, count)
    numbers = column_bytes(appended.sequence_numbers, ">i4", count)
    return [head + numbers + column_bytes(appended.transaction_ids, ">i8", count)]


def _read_appended(reader: Reader) -> AppendedBatch:
    partition_id, high_water_mark, count = reader.unpack(_FEED_IN)
    reader.check_count(count, "appends", 12)
    return AppendedBatch(partition_id, high_water_mark, reader.int_column(count), reader.long_column(count))


def _write_rejected(rejected: Rejected) -> list[BytesLike]:
    count = len(rejected.sequence_numbers)
    head = _REJECTED.pack(36, rejected.partition_id, rejected.generation, rejected.code, count)
    writer = Writer(head, column_bytes(rejected.sequence_numbers, ">i4", count))
    writer.write_string(rejected.message)
    return [writer.to_bytes()]


def _read_rejected(reader: Reader) -> Rejected:
    partition_id, generation, code, count = reader.unpack(_REJECTED_IN)
    reader.check_enum(RejectionCode, code, "rejection code")
    reader.check_count(count, "appends", 4)
    sequence_numbers = reader.int_column(count)
    return Rejected(partition_id, generation, RejectionCode(code), sequence_numbers, reader.read_string())


def _write_lock_failures(failures: LockFailureBatch) -> list[BytesLike]:
    count = len(failures.sequence_numbers)
    head = _FAILURE.pack(37, failures.partition_id, count)
    if len(failures.transaction_ids) != count:
        raise WireError(f"a column of {len(failures.transaction_ids)} values in a message of {count}")
    columns = *failures.sequence_numbers.tolist(), *failures.transaction_ids.tolist()
    return [head + struct.pack(f">{count}i{count}q", *columns)]


def _read_lock_failures(reader: Reader) -> LockFailureBatch:
    partition_id, count = reader.unpack(_FAILURE_IN)
    reader.check_count(count, "appends", 12)
    return LockFailureBatch(partition_id, reader.int_column(count), reader.long_column(count))


def _write_mount(mount: Mount) -> list[BytesLike]:
    feed = mount.feed | (_IN_ORDER if mount.in_order else 0)
    return [_MOUNT.pack(38, *mount.req_id, mount.client_mark, feed, mount.credit_bytes)]


def _read_mount(reader: Reader) -> Mount:
    req_id = reader.read_req_id()
    client_mark, feed, credit_bytes = reader.unpack(_MOUNT_IN)
    mode, in_order = feed & ~_IN_ORDER, bool(feed & _IN_ORDER)
    reader.check_enum(FeedMode, mode, "feed mode")
    _check_credit(reader, credit_bytes)
    return Mount(req_id, client_mark, FeedMode(mode), credit_bytes, in_order)


def _write_mounted(mounted: Mounted) -> list[BytesLike]:
    return [_MOUNTED.pack(39, *mounted.req_id, mounted.state, mounted.generation, mounted.high_water_mark)]


def _read_mounted(reader: Reader) -> Mounted:
    req_id = reader.read_req_id()
    state, generation, high_water_mark = reader.unpack(_MOUNTED_IN)
    reader.check_enum(MountState, state, "mount state")
    return Mounted(req_id, MountState(state), generation, high_water_mark)


def _check_credit(reader: Reader, credit_bytes: int) -> None:
    if credit_bytes < 0:
        reader.fail(f"a credit of {credit_bytes} bytes")


def _write_credit(credit: FeedCredit) -> list[BytesLike]:
    return [_PAIR_LONG.pack(40, credit.partition_id, credit.credit_bytes)]


def _read_credit(reader: Reader) -> FeedCredit:
    credit = FeedCredit(reader.read_int(), reader.read_long())
    _check_credit(reader, credit.credit_bytes)
    return credit


def _write_range_request(request: DataRangeRequest) -> list[BytesLike]:
    return [
        struct.pack(
            ">Biiqqi",
            41,
            request.request_id,
            request.partition_id,
            request.first_id,
            request.end_id,
            request.max_bytes,
        )
    ]


def _read_range_request(reader: Reader) -> DataRangeRequest:
    request = DataRangeRequest(
        reader.read_int(), reader.read_int(), reader.read_long(), reader.read_long(), reader.read_int()
    )
    if not 0 <= request.first_id <= request.end_id or request.max_bytes < 0:
        reader.fail(f"impossible range [{request.first_id}, {request.end_id}) of at most {request.max_bytes} bytes")
    return request


def _write_range_response(response: DataRangeResponse) -> list[BytesLike]:
    batch, error = response.batch, response.error
    if (batch is None) == (error is None):
        raise WireError("a DataRangeResponse needs a batch or an error, and not both")
    head = _RANGE.pack(42, response.request_id, response.high_water_mark, batch is not None)
    writer = Writer(head)
    if batch is None:
        writer.write_string(error)
        return [writer.to_bytes()]
    writer.write_int(batch.partition_id)
    return [writer.to_bytes(), *record_parts(batch.first_id, batch.lengths, batch.records)]


def _read_range_response(reader: Reader) -> DataRangeResponse:
    request_id, high_water_mark, ok = reader.unpack(_RANGE_IN)
    if not ok:
        return DataRangeResponse(request_id, None, high_water_mark, reader.read_string())
    batch = RecordBatch(reader.read_int(), *reader.read_records())
    return DataRangeResponse(request_id, batch, high_water_mark, None)


def _write_error(error: ErrorMessage) -> list[BytesLike]:
    writer = Writer(b"\x2c")
    writer.write_string(error.message)
    return [writer.to_bytes()]


def _write_state(state: PartitionStateResponse) -> list[BytesLike]:
    return [
        _STATE.pack(
            47,
            state.request_id,
            state.partition_id,
            state.generation,
            state.session_id,
            state.high_water_mark,
            state.state,
        )
    ]


def _read_state(reader: Reader) -> PartitionStateResponse:
    request_id, partition_id, generation, session_id, high_water_mark, state = reader.unpack(_STATE_IN)
    reader.check_enum(MountState, state, "mount state")
    return PartitionStateResponse(request_id, partition_id, generation, session_id, high_water_mark, MountState(state))


def _write_hindrance(response: HindranceResponse) -> list[BytesLike]:
    writer = Writer(struct.pack(">Bii", 49, response.request_id, response.partition_id))
    writer.write_string(response.reason)
    return [writer.to_bytes()]


def _read_hindrance(reader: Reader) -> HindranceResponse:
    return HindranceResponse(reader.read_int(), reader.read_int(), reader.read_string())


def _write_trimmed(answer: RecordsTrimmed) -> list[BytesLike]:
    return [struct.pack(">Biiq", 54, answer.request_id, answer.partition_id, answer.first_id)]


def _read_trimmed(reader: Reader) -> RecordsTrimmed:
    return RecordsTrimmed(reader.read_int(), reader.read_int(), reader.read_long())


_TOKEN_BYTES = 4096


def _read_token(reader: Reader) -> ShowToken:
    token = reader.read_string()
    if not token or len(token) > _TOKEN_BYTES:
        reader.fail(f"a token has 1 to {_TOKEN_BYTES} characters")
    return ShowToken(token)


def _write_token(message: ShowToken) -> list[BytesLike]:
    writer = Writer(b"\x37")
    writer.write_string(message.token)
    return [writer.to_bytes()]


def _read_not_allowed(reader: Reader) -> NotAllowed:
    return NotAllowed(reader.read_int(), reader.read_int(), reader.read_string())


def _write_not_allowed(message: NotAllowed) -> list[BytesLike]:
    writer = Writer(_PAIR.pack(56, message.request_id, message.partition_id))
    writer.write_string(message.message)
    return [writer.to_bytes()]


def batch_row(
    number: int, name: str, cls: type[Any], read: Callable[[Reader], Any], write: Callable[[Any], list[BytesLike]]
) -> MessageRow:
    """A message of version 5, where the version makes no difference."""
    return MessageRow(
        number, name, cls, BATCH_VERSION, lambda _version, reader: read(reader), lambda _version, m: write(m)
    )


def _two_ints(number: int, name: str, cls: type[Any]) -> MessageRow:
    values = attrgetter(*(field.name for field in fields(cls)))
    return batch_row(
        number,
        name,
        cls,
        lambda reader: cls(reader.read_int(), reader.read_int()),
        lambda message: [_PAIR.pack(number, *values(message))],
    )


BATCHES = (
    batch_row(_APPEND_BATCH, "APPEND_BATCH", AppendBatch, _read_append, _write_append),
    batch_row(33, "FEED_BATCH", FeedBatch, _read_feed, _write_feed),
    batch_row(34, "FEED_RECORDS", FeedRecords, _read_records, _write_records),
    batch_row(_APPENDED_BATCH, "APPENDED_BATCH", AppendedBatch, _read_appended, _write_appended),
    batch_row(36, "REJECTED", Rejected, _read_rejected, _write_rejected),
    batch_row(37, "LOCK_FAILURE_BATCH", LockFailureBatch, _read_lock_failures, _write_lock_failures),
    batch_row(38, "MOUNT", Mount, _read_mount, _write_mount),
    batch_row(39, "MOUNTED", Mounted, _read_mounted, _write_mounted),
    batch_row(40, "FEED_CREDIT", FeedCredit, _read_credit, _write_credit),
    batch_row(41, "DATA_RANGE_REQUEST", DataRangeRequest, _read_range_request, _write_range_request),
    batch_row(42, "DATA_RANGE_RESPONSE", DataRangeResponse, _read_range_response, _write_range_response),
    _two_ints(43, "NOT_READY", NotReady),
    batch_row(44, "ERROR", ErrorMessage, lambda reader: ErrorMessage(reader.read_string()), _write_error),
    _two_ints(45, "UNMOUNT", Unmount),
    _two_ints(46, "PARTITION_STATE_REQUEST", PartitionStateRequest),
    batch_row(47, "PARTITION_STATE_RESPONSE", PartitionStateResponse, _read_state, _write_state),
    _two_ints(48, "HINDRANCE_REQUEST", HindranceRequest),
    batch_row(49, "HINDRANCE_RESPONSE", HindranceResponse, _read_hindrance, _write_hindrance),
    batch_row(54, "RECORDS_TRIMMED", RecordsTrimmed, _read_trimmed, _write_trimmed),
    batch_row(55, "SHOW_TOKEN", ShowToken, _read_token, _write_token),
    batch_row(56, "NOT_ALLOWED", NotAllowed, _read_not_allowed, _write_not_allowed),
)
