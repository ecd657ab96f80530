"""Ranges of committed records over plain blocking sockets: no threads, no event loop, no Ray.

For Spark's Python workers and the command line, which want bytes and not a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TypeVar

from waltz_ray.client.credentials import NO_CREDENTIALS, Presented
from waltz_ray.client.persist import persist
from waltz_ray.client.rpc import READ_BYTES, Answer, Question, checked_batch, checked_first, checked_times
from waltz_ray.client.stream import check_version, greeting
from waltz_ray.client.times import WantedTimes
from waltz_ray.errors import AccessRefused, DataUnavailable, InvalidInput, WireError
from waltz_ray.net.blocking import BlockingStream
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.messages.client import (
    DataRangeRequest,
    ErrorMessage,
    FirstIdAtRequest,
    NotAllowed,
    PartitionStateRequest,
    PartitionStateResponse,
    ShowToken,
    TimesRequest,
)
from waltz_ray.protocol.messages.original import MountState
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.protocol.times import TimeMarks
from waltz_ray.wire.codec import BATCH_VERSION, CLIENT_VERSIONS, decode_client, encode_client
from waltz_ray.wire.framing import MAGIC_CLIENT

__all__ = ["RangeReader"]

T = TypeVar("T")

_ANSWER_S = 5.0  # a server that says nothing must not use up the time for another one, or for another connection


class _Connection:
    """One greeted connection; one question at a time."""

    def __init__(
        self, endpoint: Endpoint, timeout_s: float, max_frame_bytes: int, credentials: Presented, cluster_key: str
    ) -> None:
        self._next_id = 0
        tls, token = credentials.context(), credentials.token()
        self._stream = BlockingStream.open(
            *endpoint, MAGIC_CLIENT, CLIENT_VERSIONS, max_frame_bytes, greeting(cluster_key), timeout_s, tls
        )
        try:
            check_version(self._stream.version)
            if token:
                self._stream.send(*encode_client(BATCH_VERSION, ShowToken(token)))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._stream.close()

    def ask(self, make: Callable[[int], Question], timeout_s: float) -> object:
        self._next_id += 1
        self._stream.settimeout(timeout_s)
        question = make(self._next_id)
        self._stream.send(*encode_client(BATCH_VERSION, question))
        answer = decode_client(BATCH_VERSION, self._stream.receive())
        if isinstance(answer, NotAllowed):
            raise AccessRefused(answer.message)
        if isinstance(answer, ErrorMessage):
            raise WireError(f"the server closes the connection: {answer.message}")
        if not isinstance(answer, Answer) or answer.request_id != self._next_id:
            raise WireError(f"the server sent {type(answer).__name__}, which is no answer to the question")
        return answer


class RangeReader:
    """Reads from whichever server ``resolve(partition_id)`` names (None: nobody at the moment).

    ``resolve`` is asked again only when a server cannot be used, or has not answered within five seconds; the next one
    has all that is left of the time. After ``timeout_s`` without an answer DataUnavailable names the partition and the
    reason. Not for use by several threads at once.
    """

    def __init__(
        self,
        resolve: Callable[[int], Endpoint | None],
        timeout_s: float = 30.0,
        max_frame_bytes: int = 64 * 1024 * 1024,
        first: int = 0,
        credentials: Presented = NO_CREDENTIALS,
        cluster_key: str = "",
    ) -> None:
        """``first``: the number in the cluster of what is partition 0 here. ConfigError comes of ``credentials``.
        ``cluster_key``: of the cluster whose servers they have to be, "" if that is not known."""
        self._cluster_key = cluster_key
        self._credentials = credentials
        self._first = first
        self._resolve = resolve
        self._timeout_s = timeout_s
        self._max_frame_bytes = max_frame_bytes
        self._connections: dict[Endpoint, _Connection] = {}
        self._owners: dict[int, Endpoint] = {}  # who answered last: asked again before ``resolve`` is

    def read_range(
        self, partition_id: int, first_id: int, end_id: int, max_bytes: int = READ_BYTES
    ) -> Iterator[RecordBatch]:
        """Batches of about ``max_bytes`` with the records [first_id, end_id), every record's CRC verified.

        Ends early where the log ends. Trimmed where what comes next is gone.
        """
        if first_id < 0 or max_bytes < 1:
            raise InvalidInput(f"a range needs first_id >= 0 and max_bytes >= 1, not {first_id} and {max_bytes}")
        while first_id < end_id:
            batch = self._read(partition_id, first_id, end_id, max_bytes)
            if not len(batch):
                return
            yield batch
            first_id = batch.end_id

    def high_water_mark(self, partition_id: int) -> int:
        """The server's high-water mark, -1 = none."""

        def ask(connection: _Connection, timeout_s: float) -> int:
            answer = connection.ask(lambda number: PartitionStateRequest(number, self._first + partition_id), timeout_s)
            if not isinstance(answer, PartitionStateResponse):
                raise WireError(f"the server answered a state request with {type(answer).__name__}")
            if answer.state != MountState.READY:
                raise DataUnavailable(f"partition {partition_id} is not ready at its server")
            return answer.high_water_mark

        return self._until_answered(partition_id, ask, anew=True)

    def times(self, partition_id: int, first_id: int, end_id: int) -> TimeMarks:
        """When the committed transactions [first_id, end_id) were appended."""
        wanted, in_cluster = WantedTimes(first_id, end_id), self._first + partition_id

        def ask(connection: _Connection, timeout_s: float) -> tuple[int, TimeMarks]:
            answer = connection.ask(
                lambda number: TimesRequest(number, in_cluster, wanted.first_id, wanted.end_id), timeout_s
            )
            return checked_times(answer, partition_id)

        while wanted.missing:
            wanted.take(*self._until_answered(partition_id, ask))
        return wanted.times

    def first_id_at(self, partition_id: int, time_ms: int) -> int:
        """The first committed transaction that may have been appended at ``time_ms`` or later, or the next one."""

        def ask(connection: _Connection, timeout_s: float) -> int:
            in_cluster = self._first + partition_id
            answer = connection.ask(lambda number: FirstIdAtRequest(number, in_cluster, time_ms), timeout_s)
            return checked_first(answer, partition_id)

        return self._until_answered(partition_id, ask)

    def close(self) -> None:
        """Close the connections; the reader may be used again."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> RangeReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, partition_id: int, first_id: int, end_id: int, max_bytes: int) -> RecordBatch:
        def ask(connection: _Connection, timeout_s: float) -> RecordBatch:
            in_cluster = self._first + partition_id
            answer = connection.ask(
                lambda number: DataRangeRequest(number, in_cluster, first_id, end_id, max_bytes), timeout_s
            )
            return checked_batch(answer, partition_id, first_id, in_cluster)

        return self._until_answered(partition_id, ask)

    def _until_answered(self, partition_id: int, ask: Callable[[_Connection, float], T], anew: bool = False) -> T:
        """``anew``: a server that has been replaced without noticing must not be asked."""
        if anew:
            self._owners.pop(partition_id, None)
        patient = False

        def attempt(left_s: float) -> T:
            nonlocal patient
            endpoint = self._owners.pop(partition_id, None) or self._resolve(partition_id)
            if endpoint is None:
                raise DataUnavailable("no server owns it")
            limit_s = left_s if patient else min(_ANSWER_S, left_s)
            try:
                answer = ask(self._connection(endpoint, limit_s), limit_s)
            except BaseException as error:
                patient = patient or isinstance(error, TimeoutError)  # it may be the line that is slow
                self._forget(endpoint)
                raise
            self._owners[partition_id] = endpoint
            return answer

        return persist(f"partition {partition_id}", self._timeout_s, attempt)

    def _connection(self, endpoint: Endpoint, timeout_s: float) -> _Connection:
        if endpoint not in self._connections:
            self._connections[endpoint] = _Connection(
                endpoint, timeout_s, self._max_frame_bytes, self._credentials, self._cluster_key
            )
        return self._connections[endpoint]

    def _forget(self, endpoint: Endpoint) -> None:
        connection = self._connections.pop(endpoint, None)
        if connection is not None:
            connection.close()
