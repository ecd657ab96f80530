"""One greeted blocking connection, and trying again: what the readers need. No threads, no event loop, no Ray."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from waltz_ray.errors import DataUnavailable, ReplicaRefused, WireError, ZooKeeperUnreachable
from waltz_ray.net.backoff import Backoff
from waltz_ray.net.blocking import BlockingStream
from waltz_ray.protocol.ids import Endpoint

__all__ = ["open_stream", "persist"]

_MAX_FRAME_BYTES = 64 * 1024 * 1024

T = TypeVar("T")


def persist(what: str, timeout_s: float, attempt: Callable[[float], T]) -> T:
    """``attempt(seconds left)`` until it does not fail with what may pass: a peer that is gone, moves or refuses.

    DataUnavailable names ``what`` and the last reason after ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    pauses = Backoff()
    trouble: Exception | None = None
    while trouble is None or time.monotonic() < deadline:
        try:
            return attempt(max(0.001, deadline - time.monotonic()))
        except (OSError, WireError, ReplicaRefused, DataUnavailable, ZooKeeperUnreachable) as error:
            trouble = error
        time.sleep(max(0.0, min(pauses.next_s(), deadline - time.monotonic())))
    raise DataUnavailable(f"{what} could not be read within {timeout_s:g} s: {str(trouble) or repr(trouble)}")


def open_stream(endpoint: Endpoint, magic: int, version: int, timeout_s: float) -> BlockingStream:
    """A greeted connection that speaks ``version``. OSError, WireError."""
    greeting = f"waltz_spark reader {os.getpid()}"
    return BlockingStream.open(*endpoint, magic, (version,), _MAX_FRAME_BYTES, greeting, timeout_s)
