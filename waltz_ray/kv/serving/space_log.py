"""The log of one space as a kv actor uses it: records appended under locks, partitions followed. For one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache

from waltz_ray.client.append_fates import AppendFates
from waltz_ray.client.engine import Engine
from waltz_ray.client.subscription import FeedItem, Subscription
from waltz_ray.errors import WaltzError
from waltz_ray.kv.model import Record
from waltz_ray.kv.records import encode_record, header_of
from waltz_ray.kv.routing import Unit
from waltz_ray.protocol.ids import LockId

__all__ = ["SpaceLog", "owner_lock"]


def owner_lock(unit: Unit) -> LockId:
    """The lock that an owner's writes rest on."""
    return LockId(f"kv owner {unit.mask:X}", unit.bucket)


@lru_cache(maxsize=8192)  # more than there are units
def _lock_hash(unit: Unit) -> int:
    return owner_lock(unit).hash


class SpaceLog:
    """``engine``: of a client of the space without callbacks, on the loop that runs now. ``next_client_id`` gives a
    client ID that nobody else has."""

    def __init__(self, engine: Engine, next_client_id: Callable[[], Awaitable[int]]) -> None:
        self._engine = engine
        self._next_client_id = next_client_id

    def append(
        self,
        partition: int,
        record: Record,
        mark: int,
        fates: AppendFates,
        read: Sequence[Unit] = (),
        write: Sequence[Unit] = (),
    ) -> None:
        """Append under these units' locks; ``fates`` is told how it ends, never within this call."""
        hashes = ([*map(_lock_hash, write)], [*map(_lock_hash, read)], ())
        try:
            data, header = encode_record(record), header_of(record)
            self._engine.append_under(partition, data, header, hashes, mark, fates)
        except WaltzError as error:  # no record, too long for any server, or the client is closed
            asyncio.get_running_loop().call_soon(fates.set_exception, error)

    def together(self) -> AbstractContextManager[None]:
        """What is appended within it has been gathered: it is sent when it ends."""
        return self._engine.together()

    async def high_water_marks(self, partitions: int) -> dict[int, int]:
        """Of each partition the last committed transaction. DataUnavailable."""
        rpc = self._engine.rpc
        found = await asyncio.gather(*(rpc.high_water_mark(partition) for partition in range(partitions)))
        return dict(enumerate(found))

    async def follow(
        self, first_ids: Mapping[int, int], put: Callable[[FeedItem], None], earliest: bool
    ) -> Subscription:
        """Have ``put`` called with every frame from these IDs on, or with the error that ends it.

        Call ``used`` of the subscription for each frame that is done with.
        """
        client_id = await self._next_client_id()
        return self._engine.follow(client_id, first_ids, put, earliest=earliest)

    async def unfollow(self, subscription: Subscription) -> None:
        """Nothing more comes. Idempotent."""
        await self._engine.unsubscribe(subscription)
