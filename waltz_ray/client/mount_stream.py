"""The stream for mounts: appends go out, fates and feeds come in, for every partition mounted at one server."""

from __future__ import annotations

from typing import Protocol

from waltz_ray.client.stream import ClientStream
from waltz_ray.errors import WireError
from waltz_ray.protocol.messages.client import (
    AppendedBatch,
    ErrorMessage,
    FeedBatch,
    FeedRecords,
    LockFailureBatch,
    Mounted,
    NotReady,
    Rejected,
)
from waltz_ray.protocol.mounting_types import MountMessage
from waltz_ray.wire.codec import BATCH_VERSION, decode_client
from waltz_ray.wire.framing import FRAME_HEADER_BYTES

__all__ = ["MountStream", "Mountable"]


class Mountable(Protocol):
    """A partition that mounts over a stream."""

    def stream_message(self, stream: MountStream, message: MountMessage, frame_bytes: int) -> None: ...

    def stream_lost(self, stream: MountStream, error: Exception) -> None: ...

    def stream_writable(self) -> None: ...

    def send_due(self) -> None: ...


class MountStream(ClientStream):
    """Hands every message to the partition it is about; one that has left gets nothing any more."""

    def __init__(self, max_frame_bytes: int) -> None:
        super().__init__(max_frame_bytes)
        self._partitions: dict[int, Mountable] = {}
        self._due: dict[Mountable, None] = {}

    def attach(self, partition_id: int, partition: Mountable) -> None:
        """From now on messages about ``partition_id`` go to ``partition``."""
        self._partitions[partition_id] = partition

    def detach(self, partition_id: int, partition: Mountable) -> None:
        """``partition`` takes no more messages from here."""
        if self._partitions.get(partition_id) is partition:
            del self._partitions[partition_id]

    def send_later(self, partition: Mountable) -> None:
        """Call ``partition.send_due`` when all messages that came together have been handled.

        A hundred fates in a hundred frames then lead to one batch of what they set off, not to a hundred of one.
        """
        self._due[partition] = None

    def on_turn_end(self) -> None:
        due, self._due = self._due, {}
        for partition in due:
            partition.send_due()

    def on_frame(self, frame: memoryview) -> None:
        message = decode_client(BATCH_VERSION, frame)
        if isinstance(message, FeedRecords):
            partition_id = message.batch.partition_id
        elif isinstance(message, Mounted):
            partition_id = message.req_id.partition_id
        elif isinstance(message, AppendedBatch | FeedBatch | LockFailureBatch | NotReady | Rejected):
            partition_id = message.partition_id
        elif isinstance(message, ErrorMessage):
            raise WireError(f"the server closes the connection: {message.message}")
        else:
            raise WireError(f"the server sent {type(message).__name__}, which is none of its answers to a mount")
        partition = self._partitions.get(partition_id)
        if partition is not None:
            partition.stream_message(self, message, FRAME_HEADER_BYTES + len(frame))

    def stream_lost(self, error: Exception) -> None:
        partitions = list(self._partitions.values())
        self._partitions.clear()
        for partition in partitions:
            partition.stream_lost(self, error)

    def on_writable(self) -> None:
        for partition in list(self._partitions.values()):
            partition.stream_writable()
