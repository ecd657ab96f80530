"""Consuming from NATS JetStream through raw sockets: one durable pull consumer, several connections that fetch from it.

A fetch asks for some hundred messages; its last one is acknowledged for all before it (ack policy "all" as far as one
connection is concerned, each batch by itself else). Messages are counted by their heads, not parsed.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import uuid
from time import perf_counter

from waltz_bench.nats_cluster import HOST, STREAM, SUBJECT, Nats
from waltz_bench.nats_wire import CONNECT, subscribe
from waltz_ray.errors import AppendFailed, AppendTimeout

__all__ = ["FETCH", "NatsConsumeLoad"]

FETCH = 500
_WAIT_S = 30.0
_MESSAGE = f"MSG {SUBJECT} ".encode()


class NatsConsumeLoad:
    """See ``measure.Load``: messages of the stream, from its beginning, by ``members`` threads. Use it once."""

    def __init__(self, nats: Nats, members: int) -> None:
        self.records_per_call = 1
        self.latencies_s: list[float] = []
        self.failed = threading.Event()
        self.errors: list[BaseException] = []
        self._nats, self._name = nats, f"c{uuid.uuid4().hex}"
        self._stopped = False
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(members)]

    def start(self) -> None:
        """See ``measure.Load``."""
        config = {
            "durable_name": self._name,
            "ack_policy": "explicit",
            "deliver_policy": "all",
            "max_ack_pending": 100_000,
            "num_replicas": 3,
        }
        asyncio.run(
            self._nats.request(
                f"CONSUMER.DURABLE.CREATE.{STREAM}.{self._name}", {"stream_name": STREAM, "config": config}
            )
        )
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """See ``measure.Load``."""
        self._stopped = True
        for thread in self._threads:
            thread.join(_WAIT_S)
            if thread.is_alive():
                raise AppendTimeout(f"a NATS consumer has not ended within {_WAIT_S:g} s")
        if self.errors:
            raise self.errors[0]

    def _run(self, number: int) -> None:
        try:
            self._consume(f"_C.{self._name}.{number}")
        except BaseException as error:  # noqa: BLE001 - raised by stop()
            self.errors.append(error)
            self.failed.set()

    def _consume(self, inbox: str) -> None:
        ask = json.dumps({"batch": FETCH, "expires": 5_000_000_000}).encode()
        topic = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{self._name}"
        fetch = f"PUB {topic} {inbox} {len(ask)}\r\n".encode() + ask + b"\r\n"
        with socket.create_connection((HOST, self._nats.port), timeout=_WAIT_S) as raw:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.sendall(CONNECT + subscribe(inbox) + b"PING\r\n")
            held = b""
            while not self._stopped:
                raw.sendall(fetch)
                began, acks, got = perf_counter(), [], 0
                while got < FETCH and not self._stopped:
                    data = raw.recv(1 << 20)
                    if not data:
                        raise AppendFailed("NATS closed the connection")
                    held += data
                    if b"-ERR" in held[:200]:
                        raise AppendFailed(f"NATS refused a consumer: {held[:200]!r}")
                    replies, held = _replies(held)
                    acks += replies
                    got += len(replies)
                raw.sendall(b"".join(b"PUB %s 4\r\n+ACK\r\n" % reply for reply in acks))
                self.latencies_s.extend([perf_counter() - began] * got)


def _replies(data: bytes) -> tuple[list[bytes], bytes]:
    """Where each whole message in ``data`` is to be acknowledged, and what is left."""
    found: list[bytes] = []
    at = 0
    while True:
        begin = data.find(_MESSAGE, at)
        end = data.find(b"\r\n", begin) if begin >= 0 else -1
        if end < 0:
            return found, data[begin if begin >= 0 else max(at, len(data) - 2048) :]
        words = data[begin:end].split(b" ")
        stop = end + 4 + int(words[-1])
        if stop > len(data):
            return found, data[begin:]
        found.append(words[-2])
        at = stop
