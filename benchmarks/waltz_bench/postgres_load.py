"""Load on PostgreSQL through raw sockets: the extended protocol, one prepared INSERT, frames made once.

A call is one transaction, with one row or with a batch of them; its answer is always the same bytes, which is how it
is checked: anything else is an error.
"""

from __future__ import annotations

import socket
import struct

from waltz_bench.nats_cluster import HOST
from waltz_bench.nats_load import NatsConnection, NatsLoad
from waltz_ray.errors import AppendFailed

__all__ = ["OPENING", "TABLE", "ConstantAnswers", "PostgresLoad", "bind_and_execute", "query"]

_STARTUP = b"user\0bench\0database\0postgres\0\0"
OPENING = struct.pack("!ii", 8 + len(_STARTUP), 196608) + _STARTUP
TABLE = "CREATE TABLE bench (id bigserial PRIMARY KEY, data bytea NOT NULL)"

_READY = b"Z\0\0\0\x05I"
_SYNC = b"S\0\0\0\x04"
_ROW = b"2\0\0\0\x04" + b"C\0\0\0\x0fINSERT 0 1\0"
_ANSWER_S = 30.0


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", 4 + len(body)) + body


_PREPARE = _message(b"P", b"i\0INSERT INTO bench (data) VALUES ($1)\0\0\0") + _SYNC


def bind_and_execute(data: bytes) -> bytes:
    """One row, by the prepared statement ``i``, in binary. A Sync ends the transaction."""
    bind = b"\0i\0" + struct.pack("!hhhi", 1, 1, 1, len(data)) + data + b"\0\0"
    return _message(b"B", bind) + _message(b"E", b"\0" + struct.pack("!i", 0))


class ConstantAnswers:
    """Counts answers that must all be ``answer``, in a stream that may be cut anywhere. AppendFailed for any other."""

    pings = 0

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._tail = b""

    def feed(self, data: bytes) -> int:
        """How many answers ``data`` completes."""
        held = self._tail + data
        count, rest = divmod(len(held), len(self._answer))
        if held != self._answer * count + self._answer[:rest]:
            raise AppendFailed(f"PostgreSQL refused an insert: {held[-200:]!r}")
        self._tail = held[len(held) - rest :]
        return count


class PostgresLoad(NatsLoad):
    """See ``measure.Load``."""

    def _connection(self, number: int) -> NatsConnection:
        return _PostgresConnection(self, f"client {number}")


class _PostgresConnection(NatsConnection):
    """Shapes mean what they mean for NATS; a chunk of more than one record is one transaction."""

    system = "PostgreSQL"

    def _prepare(self, datas: list[bytes]) -> None:
        self._prepared = False
        chunk = self._load.shape.chunk
        if self._load.shape.atomic:
            rows = b"".join(bind_and_execute(datas[i % len(datas)]) for i in range(chunk))
            self._batches.append(rows + _SYNC)
        else:
            self._repeat([bind_and_execute(data) + _SYNC for data in datas])
        self._acks = ConstantAnswers(_ROW * (chunk if self._load.shape.atomic else 1) + _READY)

    def _opening(self) -> bytes:
        return OPENING

    def _greet(self, data: bytes) -> None:
        self._hello += data
        if b"FATAL" in self._hello or b"ERROR" in self._hello:
            self.ready.set_exception(AppendFailed(f"PostgreSQL refused the connection: {self._hello[-200:]!r}"))
        elif self._hello.endswith(_READY):
            self._hello = b""
            if self._prepared:
                self.ready.set_result(None)
            else:
                self._prepared = True
                self._transport.write(_PREPARE)


def query(port: int, text: str) -> bytes:
    """The raw answer to one simple query. AppendFailed if it is an error."""
    with socket.create_connection((HOST, port), timeout=_ANSWER_S) as raw:
        raw.sendall(OPENING)
        _until_ready(raw)
        raw.sendall(_message(b"Q", text.encode() + b"\0"))
        return _until_ready(raw)


def _until_ready(raw: socket.socket) -> bytes:
    answer = b""
    while not answer.endswith(_READY):
        data = raw.recv(1 << 16)
        if not data:
            raise AppendFailed(f"PostgreSQL closed the connection: {answer[-200:]!r}")
        answer += data
        if b"SERROR\0" in answer or b"SFATAL\0" in answer:
            raise AppendFailed(f"PostgreSQL refused: {answer[-200:]!r}")
    return answer
