"""Requests that clients and operators ask on the RPC stream: they read, or change preferences; none of them appends.

However many a connection asks, only some are worked on at a time, and none while it does not take the answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from waltz_ray.errors import BelowTheLog, ReplicaRefused, WaltzError
from waltz_ray.protocol.ids import NO_SESSION
from waltz_ray.protocol.messages.client import (
    DataRangeRequest,
    DataRangeResponse,
    FirstIdAtRequest,
    FirstIdAtResponse,
    HindranceRequest,
    HindranceResponse,
    PartitionStateRequest,
    PartitionStateResponse,
    RecordsTrimmed,
    TimesRequest,
    TimesResponse,
)
from waltz_ray.protocol.messages.original import (
    AddPreferredRequest,
    AddPreferredResponse,
    AssignmentRequest,
    AssignmentResponse,
    CheckConnectivityRequest,
    CheckConnectivityResponse,
    DataRequest,
    DataResponse,
    HealthRequest,
    HealthResponse,
    HighWaterMarkRequest,
    HighWaterMarkResponse,
    MountState,
    RemovePreferredRequest,
    RemovePreferredResponse,
)
from waltz_ray.protocol.partition.hindrance import NOT_HERE
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.storage.time_lookup import MOST_MARKS
from waltz_ray.wire.codec import ClientMessage

if TYPE_CHECKING:
    from waltz_ray.actors.client_connection import ClientConnection
    from waltz_ray.actors.partition_driver import PartitionDriver
    from waltz_ray.actors.replica_link import ReplicaOrders
    from waltz_ray.actors.server import Server

__all__ = ["Answers", "RpcRequest", "answer"]

T = TypeVar("T")

_AT_ONCE, _AT_ONCE_BYTES = 64, 16 * 1024 * 1024  # requests under way, and about what their answers take
_WAITING = 1024  # with more than these nothing is read from the connection
_RANGE_BYTES = 4 * 1024 * 1024  # of one answer: a longer one would hold up the loop
_MARK_BYTES = 128  # of memory, of one time mark
_RECORD_BYTES = 64 * 1024  # what the answer to any other request is taken for

RpcRequest = (
    DataRangeRequest
    | PartitionStateRequest
    | TimesRequest
    | FirstIdAtRequest
    | HindranceRequest
    | DataRequest
    | HighWaterMarkRequest
    | CheckConnectivityRequest
    | AssignmentRequest
    | HealthRequest
    | AddPreferredRequest
    | RemovePreferredRequest
)


class Answers:
    """The requests of one connection, answered in the background."""

    def __init__(self, connection: ClientConnection, server: Server) -> None:
        self._connection = connection
        self._server = server
        self._waiting: deque[RpcRequest] = deque()
        self._under_way = 0
        self._under_way_bytes = 0
        self._paused = False

    def ask(self, request: RpcRequest) -> None:
        self._waiting.append(request)
        self._begin()
        if len(self._waiting) > _WAITING:
            self._connection.hold_input("answers")

    def pause(self) -> None:
        """The peer does not take what has been answered."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._begin()

    def _begin(self) -> None:
        if self._connection.ended:
            self._waiting.clear()
        while self._waiting and not self._paused:
            size_bytes = _answer_bytes(self._waiting[0])
            full = self._under_way == _AT_ONCE or self._under_way_bytes + size_bytes > _AT_ONCE_BYTES
            if self._under_way and full:
                break
            if not self._server.answering.fits(size_bytes):
                self._server.answering.waiting[self._begin] = None
                break
            self._under_way += 1
            self._under_way_bytes += size_bytes
            self._server.spawn(self._answer(self._waiting.popleft(), size_bytes))
        if len(self._waiting) <= _WAITING // 2:
            self._connection.release_input("answers")

    async def _answer(self, request: RpcRequest, size_bytes: int) -> None:
        try:
            self._connection.write(await answer(self._server, request))
        except Exception:
            self._connection.abort(f"{type(request).__name__} failed")  # without an answer the client would hang
            raise
        finally:
            self._under_way -= 1
            self._under_way_bytes -= size_bytes
            self._server.answering.give(size_bytes)
            if not self._connection.ended:
                self._begin()


def _answer_bytes(request: RpcRequest) -> int:
    if isinstance(request, DataRangeRequest):
        return max(_RECORD_BYTES, min(request.max_bytes, _RANGE_BYTES))
    if isinstance(request, TimesRequest):
        return max(_RECORD_BYTES, min(request.end_id - request.first_id, MOST_MARKS) * _MARK_BYTES)
    return _RECORD_BYTES


async def answer(server: Server, request: RpcRequest) -> ClientMessage:
    """The answer to one request; what goes wrong is in it, where the message has a place for that."""
    match request:
        case DataRangeRequest():
            return await _data_range(server, request)
        case DataRequest(req_id, transaction_id):
            try:
                batch = await server.read(req_id.partition_id, transaction_id, transaction_id + 1, 1)
            except (WaltzError, ConnectionError) as error:
                return DataResponse(req_id, transaction_id, None, 0, str(error))
            checksum = int(batch.fields["data_checksum"][0])
            return DataResponse(req_id, transaction_id, batch.data(0), checksum, None)
        case TimesRequest():
            return await _times(server, request)
        case FirstIdAtRequest():
            return await _first_id_at(server, request)
        case PartitionStateRequest():
            return _state(server, request)
        case HindranceRequest(request_id, partition_id):
            here = partition_id in server.assigned
            reason = server.drivers[partition_id].hindrance() if here else NOT_HERE
            return HindranceResponse(request_id, partition_id, reason)
        case HighWaterMarkRequest(req_id):
            machine = server.machine_of(req_id.partition_id)
            return HighWaterMarkResponse(req_id, -1 if machine is None else machine.high_water_mark)
        case CheckConnectivityRequest(req_id):
            return CheckConnectivityResponse(req_id, {_name(n, link): link.up for n, link in server.links.items()})
        case AssignmentRequest(req_id):
            return AssignmentResponse(req_id, tuple(sorted(server.assigned)))
        case HealthRequest(req_id):
            return HealthResponse(req_id, {p: server.drivers[p].machine.ready for p in sorted(server.assigned)})
        case AddPreferredRequest(req_id, partitions):
            return AddPreferredResponse(req_id, await _prefer(server, set(partitions), set()))
        case RemovePreferredRequest(req_id, partitions):
            return RemovePreferredResponse(req_id, await _prefer(server, set(), set(partitions)))


def _name(replica_id: int, link: ReplicaOrders) -> str:
    """Where the replica listens; of one that has not said it yet, which it is: each has a line of its own."""
    return f"replica {replica_id}" if link.endpoint is None else str(link.endpoint)


def _not_served(server: Server, partition_id: int) -> str | None:
    """Why nothing can be said of the partition here; None if it can."""
    machine = server.machine_of(partition_id)
    if machine is None or not machine.ready:
        return f"partition {partition_id} is not served by server {server.server_id}"
    return None


async def _told(
    server: Server, partition_id: int, ask: Callable[[PartitionDriver], Awaitable[T]]
) -> tuple[T | None, str | None]:
    """What the partition's driver says, or why it says nothing."""
    error = _not_served(server, partition_id)
    if error is None:
        try:
            return await ask(server.drivers[partition_id]), None
        except (ReplicaRefused, ConnectionError) as refusal:
            error = str(refusal)
    return None, error


async def _times(server: Server, request: TimesRequest) -> TimesResponse:
    known, error = await _told(
        server, request.partition_id, lambda driver: driver.times(request.first_id, request.end_id)
    )
    end_id, times = known or (-1, None)
    return TimesResponse(request.request_id, end_id, times, error)


async def _first_id_at(server: Server, request: FirstIdAtRequest) -> FirstIdAtResponse:
    found = await _told(server, request.partition_id, lambda driver: driver.first_id_at(request.time_ms))
    return FirstIdAtResponse(request.request_id, *found)


async def _data_range(server: Server, request: DataRangeRequest) -> DataRangeResponse | RecordsTrimmed:
    error = _not_served(server, request.partition_id)
    if error is not None:
        return DataRangeResponse(request.request_id, None, -1, error)
    machine = server.drivers[request.partition_id].machine
    mark = machine.high_water_mark
    if request.first_id > mark or request.first_id >= request.end_id:
        nothing = RecordBatch(request.partition_id, request.first_id, np.zeros(0, dtype=np.int32), b"")
        return DataRangeResponse(request.request_id, nothing, mark, None)
    limit = min(request.max_bytes, _RANGE_BYTES, server.config.max_frame_bytes // 2)
    try:
        batch = await server.read(request.partition_id, request.first_id, request.end_id, limit)
    except BelowTheLog as gone:
        return RecordsTrimmed(request.request_id, request.partition_id, max(gone.first_id, machine.trim_mark))
    except (ReplicaRefused, ConnectionError) as error:
        return DataRangeResponse(request.request_id, None, mark, f"transaction {request.first_id}: {error}")
    return DataRangeResponse(request.request_id, batch, mark, None)


def _state(server: Server, request: PartitionStateRequest) -> PartitionStateResponse:
    machine = server.machine_of(request.partition_id)
    if machine is None or not machine.ready:
        generation = -1 if machine is None else machine.generation
        return PartitionStateResponse(
            request.request_id, request.partition_id, generation, NO_SESSION, -1, MountState.NOT_READY
        )
    session_id = NO_SESSION if machine.session is None else machine.session.session_id
    return PartitionStateResponse(
        request.request_id,
        request.partition_id,
        machine.generation,
        session_id,
        machine.high_water_mark,
        MountState.READY,
    )


async def _prefer(server: Server, more: set[int], fewer: set[int]) -> bool:
    """Change the persisted preferences; the manager moves partitions accordingly."""

    def preferring(servers: Mapping[int, Sequence[int]]) -> dict[int, Sequence[int]]:
        before = set(servers.get(server.server_id, ()))
        return {server.server_id: sorted((before | more) - fewer)}

    try:
        await server.in_thread(partial(server.store.change_preferred, preferring))
    except WaltzError:
        return False
    return True
