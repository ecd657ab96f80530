"""Questions that need no mount, on a stream of their own so that bulk data never delays acknowledgements."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TypeVar

from waltz_ray import compat
from waltz_ray.client.directory import Location
from waltz_ray.client.numbering import feed_in_space
from waltz_ray.client.stream import ClientStream, StreamPool
from waltz_ray.client.times import WantedTimes
from waltz_ray.client.transport import Transport
from waltz_ray.config import ClientConfig
from waltz_ray.errors import AccessRefused, DataUnavailable, SpaceGone, Trimmed, WireError
from waltz_ray.net.backoff import Backoff
from waltz_ray.protocol.messages.client import (
    DataRangeRequest,
    DataRangeResponse,
    ErrorMessage,
    FirstIdAtRequest,
    FirstIdAtResponse,
    HindranceRequest,
    HindranceResponse,
    NotAllowed,
    PartitionStateRequest,
    PartitionStateResponse,
    RecordsTrimmed,
    TimesRequest,
    TimesResponse,
)
from waltz_ray.protocol.messages.original import MountState
from waltz_ray.protocol.records import RecordBatch, first_bad_record
from waltz_ray.protocol.times import TimeMarks
from waltz_ray.wire.codec import BATCH_VERSION, decode_client

__all__ = ["READ_BYTES", "Answer", "Question", "Rpc", "checked_batch", "checked_first", "checked_times", "only_data"]

READ_BYTES = 1024 * 1024  # of records in one answer

Question = DataRangeRequest | PartitionStateRequest | HindranceRequest | TimesRequest | FirstIdAtRequest
Answer = (
    DataRangeResponse | RecordsTrimmed | PartitionStateResponse | HindranceResponse | TimesResponse | FirstIdAtResponse
)

T = TypeVar("T")


def checked_batch(answer: object, partition_id: int, first_id: int, number: int) -> RecordBatch:
    """The records of an answer, each verified by its CRC; DataUnavailable says what is wrong with them. Trimmed.

    The partition has ``number`` in the cluster.
    """
    if isinstance(answer, RecordsTrimmed):
        raise Trimmed(partition_id, first_id, answer.first_id)
    if not isinstance(answer, DataRangeResponse):
        raise WireError(f"the server answered a read with {type(answer).__name__}")
    if answer.batch is None:
        raise DataUnavailable(f"partition {partition_id}: transaction {first_id} could not be read: {answer.error}")
    batch = answer.batch
    if len(batch) and (batch.partition_id, batch.first_id) != (number, first_id):
        raise DataUnavailable(
            f"partition {partition_id}: asked for transaction {first_id} of the cluster's partition {number}, "
            f"the server sent {batch.partition_id}/{batch.first_id}"
        )
    bad = first_bad_record(batch)
    if bad >= 0:
        raise DataUnavailable(f"partition {partition_id}: transaction {first_id + bad} arrived damaged; read it again")
    return feed_in_space(batch, partition_id)


def checked_times(answer: object, partition_id: int) -> tuple[int, TimeMarks]:
    """(end, marks) of an answer; DataUnavailable says why there are none."""
    if not isinstance(answer, TimesResponse):
        raise WireError(f"the server answered a question about times with {type(answer).__name__}")
    if answer.times is None:
        raise DataUnavailable(f"partition {partition_id}: {answer.error}")
    return answer.end_id, answer.times


def checked_first(answer: object, partition_id: int) -> int:
    """The transaction ID of an answer; DataUnavailable says why there is none."""
    if not isinstance(answer, FirstIdAtResponse):
        raise WireError(f"the server answered a question about a time with {type(answer).__name__}")
    if answer.first_id is None:
        raise DataUnavailable(f"partition {partition_id}: {answer.error}")
    return answer.first_id


def only_data(batch: RecordBatch, partition_id: int, transaction_id: int) -> bytes:
    """The data of the one transaction that was asked for."""
    if not len(batch):
        raise DataUnavailable(f"partition {partition_id}: the server does not have transaction {transaction_id}")
    return bytes(batch.data(0))


class _RpcStream(ClientStream):
    def __init__(self, max_frame_bytes: int, silent_ms: int, cluster_key: str) -> None:
        super().__init__(max_frame_bytes, silent_ms, cluster_key)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}

    @property
    def expects(self) -> bool:
        return bool(self._waiting)

    async def ask(self, question: Question) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if self.ended:
            raise ConnectionResetError("the connection has ended")
        self._waiting[question.request_id] = future
        try:
            self.send(question)
            return await future
        finally:
            self._waiting.pop(question.request_id, None)

    def on_frame(self, frame: memoryview) -> None:
        message = decode_client(BATCH_VERSION, frame)
        if isinstance(message, Answer):
            future = self._waiting.get(message.request_id)  # absent: whoever asked has stopped waiting
            if future is not None and not future.done():
                future.set_result(message)
        elif isinstance(message, NotAllowed):
            future = self._waiting.get(message.request_id)
            if future is not None and not future.done():
                future.set_exception(AccessRefused(message.message))
        elif isinstance(message, ErrorMessage):
            raise WireError(f"the server closes the connection: {message.message}")
        else:
            raise WireError(f"the server sent {type(message).__name__}, which is no answer to a question of ours")

    def stream_lost(self, error: Exception) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)


class Rpc:
    """Asks whichever server has the partition, again until it answers or ``request_timeout_ms`` is over.

    Every question only reads, so asking twice is harmless. IO thread only.
    """

    def __init__(
        self, transport: Transport, config: ClientConfig, cluster_key: str, locate: Callable[[int], Location | None]
    ) -> None:
        settings = config.max_frame_bytes, config.silent_ms, cluster_key
        self._pool = StreamPool(transport, lambda: _RpcStream(*settings))
        self._config = config
        self._locate = locate
        self._ids = count()

    async def read(self, partition_id: int, first_id: int, end_id: int, max_bytes: int) -> RecordBatch:
        """Transactions from ``first_id`` on, possibly fewer than asked; empty if none of them exists yet. Trimmed."""

        async def ask(stream: _RpcStream, number: int) -> RecordBatch:
            request = DataRangeRequest(self._next_id(), number, first_id, end_id, max_bytes)
            return checked_batch(await stream.ask(request), partition_id, first_id, number)

        return await self._until_answered(partition_id, ask)

    async def high_water_mark(self, partition_id: int) -> int:
        """The server's high-water mark."""

        async def ask(stream: _RpcStream, number: int) -> int:
            answer = await stream.ask(PartitionStateRequest(self._next_id(), number))
            if not isinstance(answer, PartitionStateResponse):
                raise WireError(f"the server answered a state request with {type(answer).__name__}")
            if answer.state != MountState.READY:
                raise DataUnavailable(f"partition {partition_id} is not ready at its server")
            return answer.high_water_mark

        return await self._until_answered(partition_id, ask)

    async def times(self, partition_id: int, first_id: int, end_id: int) -> TimeMarks:
        """When committed transactions [first_id, end_id) were appended."""
        wanted = WantedTimes(first_id, end_id)

        async def ask(stream: _RpcStream, number: int) -> tuple[int, TimeMarks]:
            answer = await stream.ask(TimesRequest(self._next_id(), number, wanted.first_id, wanted.end_id))
            return checked_times(answer, partition_id)

        while wanted.missing:
            wanted.take(*await self._until_answered(partition_id, ask))
        return wanted.times

    async def first_id_at(self, partition_id: int, time_ms: int) -> int:
        """The first committed transaction that may have been appended at ``time_ms`` or later, or the next one."""

        async def ask(stream: _RpcStream, number: int) -> int:
            answer = await stream.ask(FirstIdAtRequest(self._next_id(), number, time_ms))
            return checked_first(answer, partition_id)

        return await self._until_answered(partition_id, ask)

    async def hindrance(self, partition_id: int, timeout_s: float) -> str:
        """What keeps the partition from taking appends, in one line; "" if nobody knows of anything. Asked once."""
        try:
            location = self._locate(partition_id)
        except SpaceGone as gone:
            return str(gone)
        if location is None or location.endpoint is None:
            return "no server has it"
        try:
            async with compat.timeout(timeout_s):
                stream = await self._pool.get(location)
                number = location.number_of(partition_id)
                answer = await stream.ask(HindranceRequest(self._next_id(), number))
        except AccessRefused as refused:
            return str(refused)
        except (OSError, WireError) as error:
            return f"server {location.server_id} does not answer ({error or f'within {timeout_s:g} s'})"
        if not isinstance(answer, HindranceResponse):
            raise WireError(f"the server answered a question for hindrances with {type(answer).__name__}")
        return answer.reason

    async def _until_answered(self, partition_id: int, ask: Callable[[_RpcStream, int], Awaitable[T]]) -> T:
        trouble: Exception = DataUnavailable(f"no server owns partition {partition_id}")
        pauses = Backoff()
        try:
            async with compat.timeout(self._config.request_timeout_ms / 1000):
                while True:
                    location = self._locate(partition_id)
                    if location is not None and location.endpoint is not None:
                        number = location.number_of(partition_id)
                        try:
                            return await ask(await self._pool.get(location), number)
                        except (OSError, WireError, DataUnavailable) as error:
                            trouble = error
                    await asyncio.sleep(pauses.next_s())
        except TimeoutError:
            raise DataUnavailable(
                f"partition {partition_id} could not be read within {self._config.request_timeout_ms} ms: "
                f"{trouble or type(trouble).__name__}"
            ) from None

    def _next_id(self) -> int:
        return next(self._ids) & 0x7FFFFFFF

    async def close(self) -> None:
        await self._pool.close()
