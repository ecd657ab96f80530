"""The messages of versions 0-4 of the client protocol: the original's vocabulary (version 5 knows it too).

Every message begins with ``byte type | ReqId``. There is no append response: a ``FeedData`` that carries the
caller's ReqId is its success. The bytes are in ``waltz_ray.wire.original_codec``; the door is ``waltz_ray.wire.codec``.

Checksums are CRC-32 as unsigned numbers. Lock hashes are signed 32-bit (``LockId.hash``).
"""

from __future__ import annotations

from enum import IntEnum

from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.value import value

__all__ = [
    "AddPreferredRequest",
    "AddPreferredResponse",
    "AppendRequest",
    "AssignmentRequest",
    "AssignmentResponse",
    "CheckConnectivityRequest",
    "CheckConnectivityResponse",
    "DataRequest",
    "DataResponse",
    "FeedData",
    "FeedRequest",
    "FeedSuspended",
    "FlushRequest",
    "FlushResponse",
    "HealthRequest",
    "HealthResponse",
    "HighWaterMarkRequest",
    "HighWaterMarkResponse",
    "LockFailure",
    "MountRequest",
    "MountResponse",
    "MountState",
    "OriginalMessage",
    "RemovePreferredRequest",
    "RemovePreferredResponse",
]


class MountState(IntEnum):
    """What became of a mount."""

    READY = 0
    NOT_READY = 1  # not this server's partition, or still recovering
    CLIENT_AHEAD = 2  # the client claims transactions the log does not have; before version 3 sent as not ready
    TRIMMED = 3  # what the client needs next is gone; before version 5 sent as not ready


@value()
class MountRequest:
    """Attach a client whose high-water mark is ``client_mark``. A higher ``network_sequence`` is a newer connection."""

    req_id: ReqId
    client_mark: int
    network_sequence: int


@value()
class MountResponse:
    """Sent once the feed has reached the server's mark as of the mount."""

    req_id: ReqId
    state: MountState


@value()
class AppendRequest:
    """One proposal. Read locks exist from version 1, append locks from version 2."""

    req_id: ReqId
    client_mark: int
    write_locks: tuple[int, ...]
    read_locks: tuple[int, ...]
    append_locks: tuple[int, ...]
    header: int
    data: bytes | memoryview
    checksum: int


@value()
class FeedRequest:
    """Send the feed after ``client_mark``. The ReqId is the mount's."""

    req_id: ReqId
    client_mark: int


@value()
class FeedData:
    """One committed transaction; the ReqId is its append's."""

    req_id: ReqId
    transaction_id: int
    header: int


@value()
class FeedSuspended:
    """Enough for one ``FeedRequest``; ask again."""

    req_id: ReqId


@value()
class DataRequest:
    req_id: ReqId
    transaction_id: int


@value()
class DataResponse:
    """The data with its checksum, or an error: exactly one of ``data`` and ``error`` is given."""

    req_id: ReqId
    transaction_id: int
    data: bytes | memoryview | None
    checksum: int
    error: str | None


@value()
class FlushRequest:
    """Answer when every append before this has a fate."""

    req_id: ReqId


@value()
class FlushResponse:
    req_id: ReqId
    high_water_mark: int


@value()
class LockFailure:
    """The append of this ReqId failed its lock check against ``transaction_id``."""

    req_id: ReqId
    transaction_id: int


@value()
class HighWaterMarkRequest:
    req_id: ReqId


@value()
class HighWaterMarkResponse:
    req_id: ReqId
    high_water_mark: int


@value()
class CheckConnectivityRequest:
    """Which replicas does the server reach? From version 1."""

    req_id: ReqId


@value()
class CheckConnectivityResponse:
    req_id: ReqId
    replicas: dict[str, bool]


@value()
class AssignmentRequest:
    """Which partitions has the server? From version 2."""

    req_id: ReqId


@value()
class AssignmentResponse:
    req_id: ReqId
    partitions: tuple[int, ...]


@value()
class AddPreferredRequest:
    """A server is to have these partitions whenever it lives; from version 2."""

    req_id: ReqId
    partitions: tuple[int, ...]


@value()
class AddPreferredResponse:
    req_id: ReqId
    done: bool


@value()
class RemovePreferredRequest:
    """A server has no claim to these partitions any more; from version 2."""

    req_id: ReqId
    partitions: tuple[int, ...]


@value()
class RemovePreferredResponse:
    req_id: ReqId
    done: bool


@value()
class HealthRequest:
    """Which partitions are healthy? From version 4."""

    req_id: ReqId


@value()
class HealthResponse:
    req_id: ReqId
    partitions: dict[int, bool]


OriginalMessage = (
    MountRequest
    | MountResponse
    | AppendRequest
    | FeedRequest
    | FeedData
    | FeedSuspended
    | DataRequest
    | DataResponse
    | FlushRequest
    | FlushResponse
    | LockFailure
    | HighWaterMarkRequest
    | HighWaterMarkResponse
    | CheckConnectivityRequest
    | CheckConnectivityResponse
    | AssignmentRequest
    | AssignmentResponse
    | AddPreferredRequest
    | AddPreferredResponse
    | RemovePreferredRequest
    | RemovePreferredResponse
    | HealthRequest
    | HealthResponse
)
