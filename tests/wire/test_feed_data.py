"""The feed of versions 0-4, made at once: the bytes of one FEED_DATA after another."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.client import FeedBatch
from waltz_ray.protocol.messages.original import FeedData
from waltz_ray.wire.codec import encode_client
from waltz_ray.wire.feed_data import feed_data_frames
from waltz_ray.wire.framing import MAGIC_CLIENT, encode_frame

INT = st.integers(-(1 << 31), (1 << 31) - 1)


@given(st.integers(0, 1 << 62), st.lists(st.tuples(INT, INT, INT, INT), max_size=20))
@settings(max_examples=50)
@pytest.mark.parametrize("version", range(5))
def test_frames_are_those_of_the_messages(version: int, first_id: int, rows: list[tuple[int, int, int, int]]) -> None:
    columns = np.array(rows, dtype=np.int32).reshape(-1, 4).T
    feed = FeedBatch(3, first_id, *columns)
    messages = [
        FeedData(ReqId(client_id, generation, 3, number), first_id + n, header)
        for n, (client_id, generation, number, header) in enumerate(rows)
    ]
    one_by_one = [encode_frame(MAGIC_CLIENT, version, *encode_client(version, message)) for message in messages]
    assert feed_data_frames(version, feed) == b"".join(one_by_one)
