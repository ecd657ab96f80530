"""Headers of a partition behind its tail: what pulls with filters are to look at, without the data of the rest.

They come as a feed of headers, 16 bytes of each transaction instead of the whole record, some ten thousand at a time.
The last few windows are kept: who goes through a log needs one for many pulls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

import numpy as np

from waltz_ray import compat
from waltz_ray.client.subscription import FeedItem
from waltz_ray.errors import DataUnavailable, WaltzError
from waltz_ray.protocol.messages.client import FeedBatch
from waltz_ray.protocol.records import Int32s
from waltz_ray.topics.serving.topic_log import TopicLog

__all__ = ["HeaderWindow", "HeaderWindows"]

_HEADERS = 32_768
_WINDOWS = 4
_WAIT_S = 5.0


@dataclass(frozen=True)
class HeaderWindow:
    """The headers of ``first_id`` and those behind it."""

    first_id: int
    headers: Int32s

    @property
    def end_id(self) -> int:
        """The first ID behind it."""
        return self.first_id + len(self.headers)

    def since(self, offset: int) -> HeaderWindow:
        """What is left of it from ``offset`` on, which lies in it."""
        return HeaderWindow(offset, self.headers[offset - self.first_id :])


class HeaderWindows:
    """Of one partition. In one event loop."""

    def __init__(self, topic_log: TopicLog, partition: int) -> None:
        self._log, self._partition = topic_log, partition
        self._windows: deque[HeaderWindow] = deque(maxlen=_WINDOWS)

    async def since(self, offset: int, end: int) -> HeaderWindow:
        """At least one header from ``offset`` on, none of ``end`` or behind it; all below ``end`` are committed.
        DataUnavailable, Trimmed."""
        known = next((each for each in self._windows if each.first_id <= offset < each.end_id), None)
        if known is None:
            known = await self._read(offset, min(end, offset + _HEADERS))
            self._windows.append(known)
        found = known.since(offset)
        return HeaderWindow(offset, found.headers[: end - offset])

    async def _read(self, first_id: int, end_id: int) -> HeaderWindow:
        items: asyncio.Queue[FeedItem] = asyncio.Queue()
        feed = await self._log.follow_headers(self._partition, first_id, items.put_nowait)
        columns: list[Int32s] = []
        reached = first_id
        try:
            async with compat.timeout(_WAIT_S):
                while reached < end_id:
                    item = await items.get()
                    if isinstance(item, WaltzError):
                        raise item
                    if item is not None and isinstance(item[0], FeedBatch):
                        columns.append(item[0].headers[max(0, reached - item[0].first_id) :])
                        reached = item[0].first_id + len(item[0])
                        feed.used(item)
        except TimeoutError:
            if not columns:
                raise DataUnavailable(f"no header came from partition {self._partition} within {_WAIT_S:g} s") from None
        finally:
            feed.abandon()
        return HeaderWindow(first_id, np.concatenate(columns)[: end_id - first_id])
