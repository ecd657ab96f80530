"""Versions 0-4 over the machine of version 5: what is kept for each mounted partition."""

from __future__ import annotations

import numpy as np

from waltz_ray.protocol.dialect import OriginalDialect, ToClient, ToPartition
from waltz_ray.protocol.ids import NO_TRANSACTION, ReqId
from waltz_ray.protocol.messages.client import FeedBatch, LockFailureBatch, Mounted
from waltz_ray.protocol.messages.original import LockFailure, MountRequest, MountState
from waltz_ray.protocol.partition.events import CreditReceived

MOUNT = ReqId(900, 1, 0, 1)


def feed(count: int) -> FeedBatch:
    column = np.ones(count, np.int32)
    return FeedBatch(0, 0, column, column, column, column)


def test_a_mount_that_comes_twice_is_fed_and_told_of_lock_failures() -> None:
    dialect = OriginalDialect(1, 4, lambda _partition_id: 7)
    for _ in range(2):
        [asked] = dialect.receive(MountRequest(MOUNT, NO_TRANSACTION, 1))
        assert isinstance(asked, ToPartition)
    dialect.deliver(Mounted(MOUNT, MountState.NOT_READY, 1, NO_TRANSACTION))  # the first, which the second replaced
    dialect.deliver(Mounted(MOUNT, MountState.READY, 1, 7))
    [credit] = dialect.feed_sent(feed(3))
    assert isinstance(credit, ToPartition)
    assert isinstance(credit.event, CreditReceived), "without it nothing more is fed"
    failed = LockFailureBatch(0, np.array([5], np.int32), np.array([7], np.int64))
    assert dialect.deliver(failed) == [ToClient(LockFailure(ReqId(900, 1, 0, 5), 7))]


def test_a_partition_that_was_not_ready_is_not_mounted() -> None:
    dialect = OriginalDialect(1, 4, lambda _partition_id: 7)
    for _ in range(2):
        dialect.receive(MountRequest(MOUNT, NO_TRANSACTION, 1))
    for _ in range(2):
        dialect.deliver(Mounted(MOUNT, MountState.NOT_READY, 1, NO_TRANSACTION))
    assert dialect.feed_sent(feed(3)) == []
    [asked] = dialect.receive(MountRequest(MOUNT._replace(client_id=901), NO_TRANSACTION, 1))
    assert isinstance(asked, ToPartition), "another client may mount it now"
