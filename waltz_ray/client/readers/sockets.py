"""One greeted blocking connection: what the readers need. No threads, no event loop, no Ray."""

from __future__ import annotations

import os
import ssl

from waltz_ray.net.blocking import BlockingStream
from waltz_ray.net.handshake import Prove
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.wire.framing import meaning_cluster

__all__ = ["open_stream"]

_MAX_FRAME_BYTES = 64 * 1024 * 1024


def open_stream(
    endpoint: Endpoint,
    magic: int,
    version: int,
    timeout_s: float,
    prove: Prove | None = None,
    tls: ssl.SSLContext | None = None,
    cluster_key: str = "",
) -> BlockingStream:
    """A greeted connection that speaks ``version``; ``prove``: what it has to prove first. OSError, WireError.
    ``cluster_key``: of the cluster that is meant, which a server of the log looks at."""
    greeting = meaning_cluster(f"waltz_spark reader {os.getpid()}", cluster_key)
    return BlockingStream.open(*endpoint, magic, (version,), _MAX_FRAME_BYTES, greeting, timeout_s, tls, prove)
