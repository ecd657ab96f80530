"""What tests of the native client share."""

from __future__ import annotations

import asyncio

import pytest

from tests.topics.client.world import FAST, TopicWorld
from waltz_ray import compat
from waltz_ray.errors import ClientClosed
from waltz_ray.topics import AsyncTopicConsumer, MessageBatch, TopicClient

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


def in_a_thread(world: TopicWorld) -> None:
    with TopicClient(world.place, FAST) as client:
        with client.producer() as producer:
            sent = producer.send("orders", b"first", type="new", attributes="a=b", time="202611231200")
            futures = [producer.send_nowait("orders", b"%d" % n, partition=1) for n in range(100)]
            many = producer.send_many("orders", [b"m1", b"m2"], partition=sent.partition)
            producer.flush()
            assert [f.result() for f in futures] == sorted(f.result() for f in futures)
            assert many.offsets[1] == many.offsets[0] + 1
        found: dict[bytes, tuple[str, str | None, str]] = {}
        with client.consumer("g", "orders") as consumer:
            for message in consumer:
                found[message.data] = message.type, message.attributes, message.time
                if len(found) == 103:
                    break
        assert found[b"first"] == ("new", "a=b", "202611231200")
    with pytest.raises(ClientClosed):
        client.producer()
