"""Feed credit over several mounts of one stream: what an earlier mount sent is not paid for by the newest one."""

from __future__ import annotations

from typing import Any

import numpy as np

from waltz_ray.config import ClientConfig
from waltz_ray.protocol.ids import Endpoint, Location
from waltz_ray.protocol.messages.client import FeedBatch, FeedMode, Mounted
from waltz_ray.protocol.messages.original import MountState
from waltz_ray.protocol.mounting import Mounting
from waltz_ray.protocol.mounting_types import (
    Applied,
    Deliver,
    Event,
    Located,
    OpenStream,
    Received,
    SendCredit,
    SendMount,
    Started,
    StreamOpened,
)

FRAME_BYTES = 4096
CONFIG = ClientConfig(feed_credit_bytes=4 * FRAME_BYTES)


def _frame(first_id: int) -> FeedBatch:
    column = np.zeros(1, np.int32)
    return FeedBatch(0, first_id, column, column, column, column)


def test_frames_of_an_earlier_mount_do_not_enlarge_the_credit() -> None:
    machine: Mounting[Any] = Mounting(0, 7, FeedMode.HEADERS, -1, CONFIG)
    sent: list[Any] = []

    def tell(event: Event) -> None:
        for effect in machine.step(event):
            sent.append(effect)
            if isinstance(effect, OpenStream):
                tell(StreamOpened())
            elif isinstance(effect, Deliver):  # applied at once: all that comes is given back
                tell(Applied(effect.frame_bytes))
        assert machine.broken() is None

    def newest_mount() -> Any:
        return [effect.message for effect in sent if isinstance(effect, SendMount)][-1]

    tell(Started(Location(1, 1, Endpoint("127.0.0.1", 1))))
    first = newest_mount()
    assert first.credit_bytes == CONFIG.feed_credit_bytes
    for transaction_id in range(3):
        tell(Received(_frame(transaction_id), FRAME_BYTES))
    tell(Received(Mounted(first.req_id, MountState.READY, 1, 2), 0))
    tell(Located(Location(1, 2, Endpoint("127.0.0.1", 1))))  # the same server has it again
    second = newest_mount()
    assert (second.client_mark, second.credit_bytes) == (2, CONFIG.feed_credit_bytes)
    sent.clear()
    for transaction_id in (3, 4):  # had left before the server heard of the second mount
        tell(Received(_frame(transaction_id), FRAME_BYTES))
    for transaction_id in (3, 4, 5):  # what it sends for that
        tell(Received(_frame(transaction_id), FRAME_BYTES))
    tell(Received(Mounted(second.req_id, MountState.READY, 2, 5), 0))
    given = sum(effect.message.credit_bytes for effect in sent if isinstance(effect, SendCredit))
    assert given + machine._credit_bytes == 3 * FRAME_BYTES
    assert machine.position == 5
