"""What tests of the native client share."""

from __future__ import annotations

import asyncio

from waltz_ray import compat
from waltz_ray.topics import AsyncTopicConsumer, MessageBatch

LIMIT_S = 20


async def pulled(consumer: AsyncTopicConsumer, count: int) -> list[MessageBatch]:
    """Batches with so many messages; nothing is confirmed."""
    found: list[MessageBatch] = []
    async with compat.timeout(LIMIT_S):
        while sum(len(list(batch)) for batch in found) < count:
            batch = await consumer.pull()
            assert batch is not None
            found.append(batch)
    return found


def run(work: object) -> None:
    asyncio.run(work)  # type: ignore[arg-type]
