"""Versions 0-4 of the client protocol in bytes (``docs/wire.md``, "Client protocol, versions 0-4"; version 5 too).

What a version cannot say is not dropped silently: ``WireError``. The one exception is the original's own: before
version 3 a mount response is a bool, and ``CLIENT_AHEAD`` arrives as ``NOT_READY``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from waltz_ray.errors import WireError
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.original import (
    AddPreferredRequest,
    AddPreferredResponse,
    AppendRequest,
    AssignmentRequest,
    AssignmentResponse,
    CheckConnectivityRequest,
    CheckConnectivityResponse,
    DataRequest,
    DataResponse,
    FeedData,
    FeedRequest,
    FeedSuspended,
    FlushRequest,
    FlushResponse,
    HealthRequest,
    HealthResponse,
    HighWaterMarkRequest,
    HighWaterMarkResponse,
    LockFailure,
    MountRequest,
    MountResponse,
    MountState,
    RemovePreferredRequest,
    RemovePreferredResponse,
)
from waltz_ray.protocol.records import MOST_LOCKS
from waltz_ray.protocol.spaces import MOST_PARTITIONS
from waltz_ray.wire.primitives import BytesLike, Reader, Writer
from waltz_ray.wire.table import MessageRow

__all__ = ["ORIGINALS"]

ReadBody = Callable[[int, ReqId, Reader], Any]
WriteBody = Callable[[int, Any, Writer], None]


def _row(number: int, name: str, cls: type[Any], since: int, read: ReadBody, write: WriteBody) -> MessageRow:
    """``read`` gets (version, ReqId, reader behind it), ``write`` (version, message, writer)."""
    head = bytes((number,))

    def write_message(version: int, message: Any) -> list[BytesLike]:
        writer = Writer(head)
        writer.write_req_id(message.req_id)
        write(version, message, writer)
        return writer.parts

    return MessageRow(
        number, name, cls, since, lambda version, reader: read(version, reader.read_req_id(), reader), write_message
    )


def _read_mount_response(version: int, req_id: ReqId, reader: Reader) -> MountResponse:
    if version < 3:
        return MountResponse(req_id, MountState.READY if reader.read_boolean() else MountState.NOT_READY)
    state = reader.read_int()
    reader.check_enum(MountState, state, "mount state")
    return MountResponse(req_id, MountState(state))


def _write_mount_response(version: int, message: MountResponse, writer: Writer) -> None:
    if version < 3:
        writer.write_boolean(message.state == MountState.READY)
    else:
        writer.write_int(message.state)


def _read_append(version: int, req_id: ReqId, reader: Reader) -> AppendRequest:
    return AppendRequest(
        req_id,
        reader.read_long(),
        reader.read_ints(MOST_LOCKS),
        reader.read_ints(MOST_LOCKS) if version >= 1 else (),
        reader.read_ints(MOST_LOCKS) if version >= 2 else (),
        reader.read_int(),
        reader.read_bytes(),
        reader.read_uint(),
    )


def _write_append(version: int, message: AppendRequest, writer: Writer) -> None:
    if (version < 1 and message.read_locks) or (version < 2 and message.append_locks):
        raise WireError(f"version {version} cannot carry the locks of append {message.req_id}; use version 2 or later")
    writer.write_long(message.client_mark)
    writer.write_ints(message.write_locks)
    if version >= 1:
        writer.write_ints(message.read_locks)
    if version >= 2:
        writer.write_ints(message.append_locks)
    writer.write_int(message.header)
    writer.write_bytes(message.data)
    writer.write_uint(message.checksum)


def _read_data_response(version: int, req_id: ReqId, reader: Reader) -> DataResponse:
    transaction_id, ok = reader.read_long(), reader.read_boolean()
    if ok:
        return DataResponse(req_id, transaction_id, reader.read_bytes(), reader.read_uint(), None)
    return DataResponse(req_id, transaction_id, None, 0, reader.read_string_or_null() or "")


def _write_data_response(version: int, message: DataResponse, writer: Writer) -> None:
    if (message.data is None) == (message.error is None):
        raise WireError("a DataResponse needs data or an error, and not both")
    writer.write_long(message.transaction_id)
    writer.write_boolean(message.error is None)
    if message.error is None:
        writer.write_bytes(message.data)
        writer.write_uint(message.checksum)
    else:
        writer.write_string(message.error)


def _write_feed_data(version: int, message: FeedData, writer: Writer) -> None:
    writer.write_long(message.transaction_id)
    writer.write_int(message.header)


def _write_mount_request(version: int, message: MountRequest, writer: Writer) -> None:
    writer.write_long(message.client_mark)
    writer.write_long(message.network_sequence)


def _read_connectivity(version: int, req_id: ReqId, reader: Reader) -> CheckConnectivityResponse:
    count = reader.read_count("replicas", 5)
    replicas = {reader.read_string(): reader.read_boolean() for _ in range(count)}
    if len(replicas) != count:
        reader.fail("names a replica twice")
    return CheckConnectivityResponse(req_id, replicas)


def _write_connectivity(version: int, message: CheckConnectivityResponse, writer: Writer) -> None:
    writer.write_int(len(message.replicas))
    for replica, connected in message.replicas.items():
        writer.write_string(replica)
        writer.write_boolean(connected)


def _read_health(version: int, req_id: ReqId, reader: Reader) -> HealthResponse:
    count = reader.read_count("partitions", 5)
    partitions = {reader.read_int(): reader.read_boolean() for _ in range(count)}
    if len(partitions) != count:
        reader.fail("names a partition twice")
    return HealthResponse(req_id, partitions)


def _write_health(version: int, message: HealthResponse, writer: Writer) -> None:
    writer.write_int(len(message.partitions))
    for partition_id, healthy in message.partitions.items():
        writer.write_int(partition_id)
        writer.write_boolean(healthy)


def _bare(number: int, name: str, cls: type[Any], since: int = 0) -> MessageRow:
    """A message of nothing but its ReqId."""
    return _row(number, name, cls, since, lambda _version, req_id, _reader: cls(req_id), lambda *_: None)


def _one_long(number: int, name: str, cls: type[Any], field: str) -> MessageRow:
    def write(version: int, message: Any, writer: Writer) -> None:
        writer.write_long(getattr(message, field))

    return _row(number, name, cls, 0, lambda _version, req_id, reader: cls(req_id, reader.read_long()), write)


def _partitions(number: int, name: str, cls: type[Any]) -> MessageRow:
    def write(version: int, message: Any, writer: Writer) -> None:
        writer.write_ints(message.partitions)

    def read(version: int, req_id: ReqId, reader: Reader) -> Any:
        return cls(req_id, reader.read_ints(MOST_PARTITIONS))

    return _row(number, name, cls, 2, read, write)


def _done(number: int, name: str, cls: type[Any]) -> MessageRow:
    def write(version: int, message: Any, writer: Writer) -> None:
        writer.write_boolean(message.done)

    return _row(number, name, cls, 2, lambda _version, req_id, reader: cls(req_id, reader.read_boolean()), write)


ORIGINALS = (
    _row(
        0,
        "MOUNT_REQUEST",
        MountRequest,
        0,
        lambda _version, req_id, reader: MountRequest(req_id, reader.read_long(), reader.read_long()),
        _write_mount_request,
    ),
    _row(1, "MOUNT_RESPONSE", MountResponse, 0, _read_mount_response, _write_mount_response),
    _row(2, "APPEND_REQUEST", AppendRequest, 0, _read_append, _write_append),
    _one_long(3, "FEED_REQUEST", FeedRequest, "client_mark"),
    _row(
        4,
        "FEED_DATA",
        FeedData,
        0,
        lambda _version, req_id, reader: FeedData(req_id, reader.read_long(), reader.read_int()),
        _write_feed_data,
    ),
    _bare(5, "FEED_SUSPENDED", FeedSuspended),
    _one_long(6, "TRANSACTION_DATA_REQUEST", DataRequest, "transaction_id"),
    _row(7, "TRANSACTION_DATA_RESPONSE", DataResponse, 0, _read_data_response, _write_data_response),
    _bare(8, "FLUSH_REQUEST", FlushRequest),
    _one_long(9, "FLUSH_RESPONSE", FlushResponse, "high_water_mark"),
    _one_long(10, "LOCK_FAILURE", LockFailure, "transaction_id"),
    _bare(11, "HIGH_WATER_MARK_REQUEST", HighWaterMarkRequest),
    _one_long(12, "HIGH_WATER_MARK_RESPONSE", HighWaterMarkResponse, "high_water_mark"),
    _bare(13, "CHECK_STORAGE_CONNECTIVITY_REQUEST", CheckConnectivityRequest, 1),
    _row(
        14,
        "CHECK_STORAGE_CONNECTIVITY_RESPONSE",
        CheckConnectivityResponse,
        1,
        _read_connectivity,
        _write_connectivity,
    ),
    _bare(15, "SERVER_PARTITIONS_ASSIGNMENT_REQUEST", AssignmentRequest, 2),
    _partitions(16, "SERVER_PARTITIONS_ASSIGNMENT_RESPONSE", AssignmentResponse),
    _partitions(17, "ADD_PREFERRED_REQUEST", AddPreferredRequest),
    _done(18, "ADD_PREFERRED_RESPONSE", AddPreferredResponse),
    _partitions(19, "REMOVE_PREFERRED_REQUEST", RemovePreferredRequest),
    _done(20, "REMOVE_PREFERRED_RESPONSE", RemovePreferredResponse),
    _bare(21, "SERVER_PARTITIONS_HEALTH_REQUEST", HealthRequest, 4),
    _row(22, "SERVER_PARTITIONS_HEALTH_RESPONSE", HealthResponse, 4, _read_health, _write_health),
)
