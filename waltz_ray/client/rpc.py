"""Questions that need no mount, on a stream of their own so that bulk data never delays acknowledgements."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TypeVar

from waltz_ray import compat
from waltz_ray.client.directory import Location
from waltz_ray.client.stream import ClientStream, StreamPool
from waltz_ray.client.transport import Transport
from waltz_ray.config import ClientConfig
from waltz_ray.errors import DataUnavailable, WireError
from waltz_ray.net.backoff import Backoff
from waltz_ray.protocol.messages.client import (
    DataRangeRequest,
    DataRangeResponse,
    ErrorMessage,
    HindranceRequest,
    HindranceResponse,
    PartitionStateRequest,
    PartitionStateResponse,
)
from waltz_ray.protocol.messages.original import MountState
from waltz_ray.protocol.records import RecordBatch, first_bad_record
from waltz_ray.wire.codec import BATCH_VERSION, decode_client

__all__ = ["READ_BYTES", "Rpc", "checked_batch", "only_data"]

READ_BYTES = 1024 * 1024  # of records in one answer

Question = DataRangeRequest | PartitionStateRequest | HindranceRequest
Answer = DataRangeResponse | PartitionStateResponse | HindranceResponse

T = TypeVar("T")


def checked_batch(answer: DataRangeResponse, partition_id: int, first_id: int) -> RecordBatch:
    """The records of an answer, each verified by its CRC; DataUnavailable says what is wrong with them."""
    if answer.batch is None:
        raise DataUnavailable(f"partition {partition_id}: transaction {first_id} could not be read: {answer.error}")
    batch = answer.batch
    if len(batch) and (batch.partition_id, batch.first_id) != (partition_id, first_id):
        raise DataUnavailable(
            f"partition {partition_id}: asked for transaction {first_id}, "
            f"the server sent {batch.partition_id}/{batch.first_id}"
        )
    bad = first_bad_record(batch)
    if bad >= 0:
        raise DataUnavailable(f"partition {partition_id}: transaction {first_id + bad} arrived damaged; read it again")
    return batch


def only_data(batch: RecordBatch, partition_id: int, transaction_id: int) -> bytes:
    """The data of the one transaction that was asked for."""
    if not len(batch):
        raise DataUnavailable(f"partition {partition_id}: the server does not have transaction {transaction_id}")
    return bytes(batch.data(0))


class _RpcStream(ClientStream):
    def __init__(self, max_frame_bytes: int) -> None:
        super().__init__(max_frame_bytes)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}

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

    def __init__(self, transport: Transport, config: ClientConfig, locate: Callable[[int], Location | None]) -> None:
        self._pool = StreamPool(transport, lambda: _RpcStream(config.max_frame_bytes))
        self._config = config
        self._locate = locate
        self._ids = count()

    async def read(self, partition_id: int, first_id: int, end_id: int, max_bytes: int) -> RecordBatch:
        """Transactions from ``first_id`` on, possibly fewer than asked; empty if none of them exists yet."""

        async def ask(stream: _RpcStream) -> RecordBatch:
            request = DataRangeRequest(self._next_id(), partition_id, first_id, end_id, max_bytes)
            answer = await stream.ask(request)
            if not isinstance(answer, DataRangeResponse):
                raise WireError(f"the server answered a read with {type(answer).__name__}")
            return checked_batch(answer, partition_id, first_id)

        return await self._until_answered(partition_id, ask)

    async def high_water_mark(self, partition_id: int) -> int:
        """The server's high-water mark."""

        async def ask(stream: _RpcStream) -> int:
            answer = await stream.ask(PartitionStateRequest(self._next_id(), partition_id))
            if not isinstance(answer, PartitionStateResponse):
                raise WireError(f"the server answered a state request with {type(answer).__name__}")
            if answer.state != MountState.READY:
                raise DataUnavailable(f"partition {partition_id} is not ready at its server")
            return answer.high_water_mark

        return await self._until_answered(partition_id, ask)

    async def hindrance(self, partition_id: int, timeout_s: float) -> str:
        """What keeps the partition from taking appends, in one line; "" if nobody knows of anything. Asked once."""
        location = self._locate(partition_id)
        if location is None or location.endpoint is None:
            return "no server has it"
        try:
            async with compat.timeout(timeout_s):
                stream = await self._pool.get(location)
                answer = await stream.ask(HindranceRequest(self._next_id(), partition_id))
        except (OSError, WireError) as error:
            return f"server {location.server_id} does not answer ({error or f'within {timeout_s:g} s'})"
        if not isinstance(answer, HindranceResponse):
            raise WireError(f"the server answered a question for hindrances with {type(answer).__name__}")
        return answer.reason

    async def _until_answered(self, partition_id: int, ask: Callable[[_RpcStream], Awaitable[T]]) -> T:
        trouble: Exception = DataUnavailable(f"no server owns partition {partition_id}")
        pauses = Backoff()
        try:
            async with compat.timeout(self._config.request_timeout_ms / 1000):
                while True:
                    location = self._locate(partition_id)
                    if location is not None and location.endpoint is not None:
                        try:
                            return await ask(await self._pool.get(location))
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
