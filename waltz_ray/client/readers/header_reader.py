"""Ranges of headers without their data: a server's feed in HEADERS mode, over a plain blocking socket.

16 bytes of each transaction cross the network instead of the whole record. The feed needs a mount and so a client ID
that nobody else has (a newer mount of the same ID would end ours); it appends nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count

import numpy as np

from waltz_ray.client.credentials import NO_CREDENTIALS, Presented
from waltz_ray.client.numbering import feed_in_space
from waltz_ray.client.readers.sockets import open_stream
from waltz_ray.errors import AccessRefused, DataUnavailable, InvalidInput, Trimmed, WireError, ZooKeeperUnreachable
from waltz_ray.net.backoff import Backoff
from waltz_ray.net.blocking import BlockingStream
from waltz_ray.protocol.ids import Endpoint, ReqId
from waltz_ray.protocol.messages.client import (
    ErrorMessage,
    FeedBatch,
    FeedCredit,
    FeedMode,
    Mount,
    Mounted,
    NotAllowed,
    NotReady,
    PartitionStateRequest,
    PartitionStateResponse,
    Rejected,
    ShowToken,
)
from waltz_ray.protocol.messages.original import MountState
from waltz_ray.wire.codec import BATCH_VERSION, ClientMessage, decode_client, encode_client
from waltz_ray.wire.framing import FRAME_HEADER_BYTES, MAGIC_CLIENT

__all__ = ["HeaderReader"]

_CREDIT_BYTES = 1024 * 1024
_CREDIT_STEP_BYTES = _CREDIT_BYTES // 4


class HeaderReader:
    """Reads from whichever server ``resolve(partition_id)`` names. ``client_id()`` gives an ID nobody else uses.

    A server that is lost in the middle is followed: the next mount goes on behind the last header. DataUnavailable
    after ``timeout_s`` without progress; Trimmed where the next header is gone.
    """

    def __init__(
        self,
        resolve: Callable[[int], Endpoint | None],
        client_id: Callable[[], int],
        timeout_s: float = 30.0,
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
        self._new_client_id = client_id
        self._client_id: int | None = None
        self._timeout_s = timeout_s
        self._sequence_numbers = count(1)

    def read_headers(self, partition_id: int, first_id: int, end_id: int) -> Iterator[FeedBatch]:
        """Consecutive batches with exactly the headers [first_id, end_id), all of which must be committed already."""
        if first_id < 0:
            raise InvalidInput(f"a range needs first_id >= 0, not {first_id}")
        deadline, pauses = time.monotonic() + self._timeout_s, Backoff()
        while first_id < end_id:
            try:
                with self._mounted(partition_id, first_id, self._timeout_s) as stream:
                    for batch in self._feed(stream, partition_id, first_id, end_id):
                        yield batch
                        first_id = batch.first_id + len(batch)
                        deadline = time.monotonic() + self._timeout_s
                        pauses.reset()
            except (OSError, WireError, DataUnavailable, ZooKeeperUnreachable) as error:
                if time.monotonic() >= deadline:
                    raise DataUnavailable(
                        f"partition {partition_id}: header {first_id} could not be read within {self._timeout_s:g} s: "
                        f"{str(error) or repr(error)}"
                    ) from error
                time.sleep(pauses.next_s())

    def _mounted(self, partition_id: int, first_id: int, left_s: float) -> BlockingStream:
        """A connection whose next message is the feed's first, or the mount's answer."""
        endpoint = self._resolve(partition_id)
        if endpoint is None:
            raise DataUnavailable("no server owns it")
        if self._client_id is None:
            self._client_id = self._new_client_id()
        tls, token = self._credentials.context(), self._credentials.token()
        stream = open_stream(endpoint, MAGIC_CLIENT, BATCH_VERSION, left_s, tls=tls, cluster_key=self._cluster_key)
        try:
            stream.settimeout(left_s)
            if token:
                _send(stream, ShowToken(token))
            _send(stream, PartitionStateRequest(1, self._first + partition_id))
            state = _receive(stream)
            if isinstance(state, NotAllowed):
                raise AccessRefused(state.message)
            if not isinstance(state, PartitionStateResponse) or state.state != MountState.READY:
                raise DataUnavailable(f"it is not ready at {endpoint}")
            number = next(self._sequence_numbers)
            req_id = ReqId(self._client_id, state.generation, self._first + partition_id, number)
            _send(stream, Mount(req_id, first_id - 1, FeedMode.HEADERS, _CREDIT_BYTES))
        except BaseException:
            stream.close()
            raise
        return stream

    def _feed(self, stream: BlockingStream, partition_id: int, first_id: int, end_id: int) -> Iterator[FeedBatch]:
        stream.settimeout(self._timeout_s)
        used = 0
        while first_id < end_id:
            payload = stream.receive()
            message = decode_client(BATCH_VERSION, payload)
            if isinstance(message, FeedBatch):
                if message.first_id != first_id:
                    raise WireError(f"the feed went on with {message.first_id} instead of {first_id}")
                used += FRAME_HEADER_BYTES + len(payload)
                wanted = feed_in_space(_first_of(message, end_id - first_id), partition_id)
                first_id += len(wanted)
                yield wanted
                if used >= _CREDIT_STEP_BYTES:
                    _send(stream, FeedCredit(self._first + partition_id, used))
                    used = 0
            elif isinstance(message, Mounted) and message.state is MountState.TRIMMED:
                raise Trimmed(partition_id, first_id, message.high_water_mark + 1)
            elif isinstance(message, NotReady) or (
                isinstance(message, Mounted) and message.state is not MountState.READY
            ):
                raise DataUnavailable(f"the server says {getattr(message, 'state', MountState.NOT_READY).name}")
            elif isinstance(message, Rejected):
                raise AccessRefused(message.message)
            elif isinstance(message, ErrorMessage):
                raise WireError(f"the server closes the connection: {message.message}")


def _first_of(batch: FeedBatch, count: int) -> FeedBatch:
    if count >= len(batch):
        return batch
    columns = batch.client_ids, batch.generations, batch.sequence_numbers, batch.headers
    return FeedBatch(batch.partition_id, batch.first_id, *(np.asarray(column[:count]) for column in columns))


def _send(stream: BlockingStream, message: ClientMessage) -> None:
    stream.send(*encode_client(BATCH_VERSION, message))


def _receive(stream: BlockingStream) -> ClientMessage:
    return decode_client(BATCH_VERSION, stream.receive())
