"""Trying again until a deadline: what all blocking readers do. No threads, no event loop, no Ray."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from waltz_ray.errors import DataUnavailable, ReplicaRefused, WireError, ZooKeeperUnreachable
from waltz_ray.net.backoff import Backoff

__all__ = ["persist"]

T = TypeVar("T")


def persist(what: str, timeout_s: float, attempt: Callable[[float], T]) -> T:
    """``attempt(seconds left)`` until it does not fail with what may pass: a peer that is gone, moves or refuses.

    DataUnavailable names ``what`` and the last reason after ``timeout_s``; there is at least one attempt.
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
