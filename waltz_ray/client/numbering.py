"""A space's clients number its partitions from 0; the wire, the disks and ZooKeeper know their numbers in the cluster.

The directory says both: what it calls partition p is at a ``Location``, which has the ``number``. From there on a
client uses its own number everywhere, also in what it tells the application; it is exchanged where messages leave and
feeds come in (``PartitionShell``, ``Rpc``; ``RangeReader``, ``HeaderReader`` and ``ReplicaReader`` for the readers).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from waltz_ray.protocol.messages.client import FeedBatch, FeedCredit, Mount, Unmount
from waltz_ray.protocol.records import RecordBatch

__all__ = ["feed_in_space", "in_cluster"]

F = TypeVar("F", RecordBatch, FeedBatch, RecordBatch | FeedBatch)


def in_cluster(message: Mount | Unmount | FeedCredit, number: int) -> Mount | Unmount | FeedCredit:
    """``message``, about the partition that has ``number`` in the cluster."""
    if isinstance(message, Mount):
        if message.req_id.partition_id == number:
            return message
        return replace(message, req_id=message.req_id._replace(partition_id=number))
    return message if message.partition_id == number else replace(message, partition_id=number)


def feed_in_space(feed: F, partition_id: int) -> F:
    """``feed``, as of the partition that its clients call ``partition_id``. The records' bytes stay as they are."""
    if feed.partition_id == partition_id:
        return feed
    return feed.called(partition_id)
