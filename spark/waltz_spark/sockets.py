"""One greeted blocking connection, and trying again: what the readers need. No threads, no event loop, no Ray."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from waltz_ray.errors import DataUnavailable, ReplicaRefused, WireError, ZooKeeperUnreachable
from waltz_ray.net.backoff import Backoff
from waltz_ray.net.connector import connect_blocking
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.wire.framing import (
    MAGIC_HELLO,
    Frame,
    FrameDecoder,
    Hello,
    decode_hello,
    encode_frame,
    encode_hello,
    negotiate,
)
from waltz_ray.wire.primitives import BytesLike

__all__ = ["BlockingStream", "persist"]

_RECEIVE_BYTES = 256 * 1024
_MAX_FRAME_BYTES = 64 * 1024 * 1024

T = TypeVar("T")


def persist(what: str, timeout_s: float, attempt: Callable[[float], T]) -> T:
    """``attempt(seconds left)`` until it does not fail with what may pass: a peer that is gone, moves or refuses.

    DataUnavailable names ``what`` and the last reason after ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    pauses = Backoff(0.02, 0.5)
    trouble: Exception | None = None
    while trouble is None or time.monotonic() < deadline:
        try:
            return attempt(max(0.001, deadline - time.monotonic()))
        except (OSError, WireError, ReplicaRefused, DataUnavailable, ZooKeeperUnreachable) as error:
            trouble = error
        time.sleep(max(0.0, min(pauses.next_s(), deadline - time.monotonic())))
    raise DataUnavailable(f"{what} could not be read within {timeout_s:g} s: {str(trouble) or repr(trouble)}")


class BlockingStream:
    """Frames of ``magic``, version ``version``, to and from ``endpoint``. OSError, WireError. One thread at a time."""

    def __init__(self, endpoint: Endpoint, magic: int, version: int, timeout_s: float) -> None:
        self._magic, self._version = magic, version
        self._frames: list[Frame] = []
        self._decoder = FrameDecoder(_MAX_FRAME_BYTES)
        self._socket = connect_blocking(*endpoint, timeout_s)
        try:
            self._socket.sendall(encode_hello(Hello((version,), f"waltz_spark reader {os.getpid()}")))
            hello = self._frame()
            if hello.magic != MAGIC_HELLO:
                raise WireError(f"the first frame of {endpoint} is not HELLO but magic 0x{hello.magic:02X}")
            negotiate((version,), decode_hello(hello.payload).versions)
            self._decoder.expect(magic, version)
        except BaseException:
            self._socket.close()
            raise

    def settimeout(self, timeout_s: float) -> None:
        """For each of the following sends and receives."""
        self._socket.settimeout(max(0.001, timeout_s))

    def send(self, *parts: BytesLike) -> None:
        """One frame with this payload."""
        self._socket.sendall(encode_frame(self._magic, self._version, *parts))

    def receive(self) -> BytesLike:
        """The payload of the next frame."""
        return self._frame().payload

    def _frame(self) -> Frame:
        while not self._frames:
            data = self._socket.recv(_RECEIVE_BYTES)
            if not data:
                self._decoder.eof()
                raise ConnectionResetError("the peer closed the connection")
            self._frames = self._decoder.feed(data)
        return self._frames.pop(0)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> BlockingStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
