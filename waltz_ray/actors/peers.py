"""Another replica as a source of committed records: ``Read`` of session -1 over R2, one question at a time.

Nothing is opened there and no fence moves; a replica tells every reader what lies at or below its low-water mark. A
connection is made when it is needed and given up with the first thing that goes wrong."""

from __future__ import annotations

from functools import partial

from waltz_ray.errors import ConfigError, PeerUnavailable, WireError
from waltz_ray.net.blocking import BlockingStream
from waltz_ray.protocol.ids import NO_SESSION, Endpoint
from waltz_ray.protocol.messages.replica import Read, Records
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.security.handshakes import Keyring
from waltz_ray.wire.framing import MAGIC_REPLICA
from waltz_ray.wire.replica_codec import MAX_REPLICA_FRAME_BYTES, REPLICA_VERSIONS, decode_replica, encode_replica

__all__ = ["PeerReplica"]

_ANSWER_S = 5.0


class PeerReplica:
    """Replica ``number`` at ``endpoint``, for one thread. ``greeting``: who asks, for its log."""

    def __init__(self, number: int, endpoint: Endpoint, greeting: str, keyring: Keyring) -> None:
        self.name = f"replica {number}"
        self._prove, self._tls = partial(keyring.open, number), keyring.context
        self._endpoint, self._greeting = endpoint, greeting
        self._stream: BlockingStream | None = None

    def read(self, partition_id: int, first_id: int, end_id: int, max_bytes: int) -> RecordBatch:
        """Records from ``first_id`` on that it knows to be committed, as it sent them. PeerUnavailable."""
        try:
            answer = decode_replica(self._asked(Read(partition_id, NO_SESSION, first_id, end_id, max_bytes)))
        except (OSError, WireError, ConfigError) as error:
            self.close()  # an answer that comes late must not be taken for the next one's
            raise PeerUnavailable(str(error)) from error
        if not isinstance(answer, Records):
            raise PeerUnavailable(getattr(answer, "message", f"it answers with {type(answer).__name__}"))
        return answer.batch

    def _asked(self, request: Read) -> bytes:
        if self._stream is None:
            place = *self._endpoint, MAGIC_REPLICA, REPLICA_VERSIONS, MAX_REPLICA_FRAME_BYTES
            self._stream = BlockingStream.open(*place, self._greeting, _ANSWER_S, self._tls(), self._prove)
        self._stream.send(*encode_replica(request))
        return self._stream.receive()

    def close(self) -> None:
        """The connection is made anew when it is needed."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
