"""The log of one space as a kv actor uses it: records appended under locks, partitions followed. For one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache

from waltz_ray.client.engine import Engine
from waltz_ray.client.subscription import FeedItem, Subscription
from waltz_ray.errors import LockConflict, WaltzError
from waltz_ray.kv.model import Record
from waltz_ray.kv.records import encode_record, header_of
from waltz_ray.kv.routing import Unit
from waltz_ray.protocol.ids import LockId

__all__ = ["AppendFates", "SpaceLog", "owner_lock"]


def owner_lock(unit: Unit) -> LockId:
    """The lock that an owner's writes rest on."""
    return LockId(f"kv owner {unit.mask:X}", unit.bucket)


@lru_cache(maxsize=8192)  # more than there are units
def _lock_hash(unit: Unit) -> int:
    return owner_lock(unit).hash


class AppendFates:
    """What is told of one append, once: ``committed(ID)``, ``refused(conflicting ID)`` or ``lost(why)``."""

    __slots__ = ("_committed", "_lost", "_refused", "_told")

    def __init__(
        self, committed: Callable[[int], None], refused: Callable[[int], None], lost: Callable[[str], None]
    ) -> None:
        self._committed = committed
        self._refused = refused
        self._lost = lost
        self._told = False

    def done(self) -> bool:
        return self._told

    def set_result(self, result: int) -> None:
        self._told = True
        self._committed(int(result))

    def set_exception(self, exception: BaseException) -> None:
        self._told = True
        if isinstance(exception, LockConflict):
            self._refused(exception.transaction_id)
        else:
            self._lost(str(exception))


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
        data, header = encode_record(record), header_of(record)
        try:
            outbox, append = self._engine.append_under(partition, data, header, hashes, mark, fates)
            if not outbox.offer(append):
                outbox.stand_in_line(append, lambda error: append.fail(error) if error is not None else None)
        except WaltzError as error:  # the client is closed
            asyncio.get_running_loop().call_soon(fates.set_exception, error)

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
