"""The feed of versions 0-4: one FEED_DATA frame per transaction, made of the columns of a whole batch at once.

The bytes are those of ``client_codec`` in frames of their own (docs/wire.md, "Client protocol, versions 0-4"); a test
holds both equal.
"""

from __future__ import annotations

import numpy as np

from waltz_ray.protocol.messages.client import FeedBatch
from waltz_ray.wire.framing import FRAME_HEADER_BYTES, MAGIC_CLIENT

__all__ = ["feed_data_frames"]

_FEED_DATA = 4
_FRAME = np.dtype(
    [
        ("magic", "u1"),
        ("version", ">i2"),
        ("length", ">i4"),
        ("type", "u1"),
        ("client_id", ">i4"),
        ("generation", ">i4"),
        ("partition_id", ">i4"),
        ("sequence_number", ">i4"),
        ("transaction_id", ">i8"),
        ("header", ">i4"),
    ]
)


def feed_data_frames(version: int, feed: FeedBatch) -> bytes:
    """The whole frames of all its transactions, one behind the other."""
    frames = np.empty(len(feed), dtype=_FRAME)
    frames["magic"], frames["version"], frames["type"] = MAGIC_CLIENT, version, _FEED_DATA
    frames["length"] = _FRAME.itemsize - FRAME_HEADER_BYTES
    frames["client_id"], frames["generation"] = feed.client_ids, feed.generations
    frames["partition_id"], frames["sequence_number"] = feed.partition_id, feed.sequence_numbers
    frames["transaction_id"] = np.arange(feed.first_id, feed.first_id + len(feed))
    frames["header"] = feed.headers
    return frames.tobytes()
