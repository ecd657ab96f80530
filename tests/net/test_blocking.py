"""The time that a blocking stream waits for a payload."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from waltz_ray.net.blocking import BlockingStream
from waltz_ray.wire.framing import MAGIC_CLIENT, encode_frame

VERSION = 5
LIMIT_S = 0.3
PATIENCE_S = 20.0


@contextmanager
def stream_from(pieces: Iterator[bytes], limit_s: float | None) -> Iterator[BlockingStream]:
    """A stream past its HELLO, whose peer sends a piece every few milliseconds."""
    here, there = socket.socketpair()
    over = threading.Event()

    def send() -> None:
        for piece in pieces:
            if over.wait(0.005):
                return
            there.sendall(piece)

    peer = threading.Thread(target=send, daemon=True)
    stream = BlockingStream(here, "the peer", MAGIC_CLIENT, (VERSION,), 1 << 20, "a test")
    stream.version = VERSION
    if limit_s is not None:
        stream.settimeout(limit_s)
    peer.start()
    try:
        yield stream
    finally:
        over.set()
        peer.join(PATIENCE_S)
        stream.close()
        there.close()


def keep_alives() -> Iterator[bytes]:
    while True:
        yield encode_frame(MAGIC_CLIENT, VERSION)


def byte_by_byte() -> Iterator[bytes]:
    for byte in encode_frame(MAGIC_CLIENT, VERSION, bytes(100_000)):
        yield bytes([byte])


@pytest.mark.parametrize("pieces", [keep_alives, byte_by_byte])
def test_pieces_and_keep_alives_do_not_prolong_the_wait_for_a_payload(pieces: type[Iterator[bytes]]) -> None:
    began_s = time.monotonic()
    with stream_from(pieces(), LIMIT_S) as stream, pytest.raises(TimeoutError, match="nothing whole"):
        stream.receive()
    assert LIMIT_S * 0.9 < time.monotonic() - began_s < PATIENCE_S


@pytest.mark.parametrize("limit_s", [PATIENCE_S, None])
def test_a_wait_that_ends_leaves_the_whole_time_to_what_follows(limit_s: float | None) -> None:
    frame = encode_frame(MAGIC_CLIENT, VERSION, b"payload")
    with stream_from((bytes([byte]) for _ in range(3) for byte in frame), limit_s) as stream:
        for _ in range(3):
            assert stream.receive() == b"payload"
            assert stream._socket.gettimeout() == limit_s
