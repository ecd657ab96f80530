"""Clients in Ray's tasks and actors, and Ray Data, on a real cluster of actors. (Here because the cluster is.)"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.data
from ray.cloudpickle import register_pickle_by_value

import waltz_ray
from waltz_ray import AsyncWaltzClient, ClientConfig, WaltzClient, WaltzDatasink, block_rows, read_dataset
from waltz_ray.bring_up import Cluster
from waltz_ray.client.ray.datasink import WrittenPiece

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(300),
    # Ray Data warns of the options that it sets itself.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context"),
]

# Ray's workers cannot import this module.
register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]

PARTITION = 0


def test_coroutines_over_actor_calls(bank: Cluster) -> None:
    async def main() -> None:
        async with await waltz_ray.connect_async(bank.name, transport="actor") as client:
            mark = await client.server_high_water_mark(PARTITION)
            ids = await asyncio.gather(*[client.append(PARTITION, b"%d" % i) for i in range(200)])
            assert ids == list(range(mark + 1, mark + 201))
            assert [one.data async for one in client.feed(PARTITION, start=mark + 1)] == [b"%d" % i for i in range(200)]
            async with client.feed(PARTITION, start="latest", follow=True) as follower:
                await follower.poll(0)
                assert (await client.append_many(PARTITION, [b"a", b"b"])).tolist() == [mark + 201, mark + 202]
                seen = [await anext(follower), await anext(follower)]
            assert [one.data for one in seen] == [b"a", b"b"]

    asyncio.run(main())


class Appender:
    """An async actor that is given a client, and appends at once what it has room for 50 of."""

    async def run(self, client: AsyncWaltzClient, count: int) -> tuple[list[int], float]:
        """The transaction IDs, and the longest time that the actor had for nobody else."""
        async with client:
            tasks = [asyncio.create_task(client.append(PARTITION, b"%d" % i)) for i in range(count)]
            longest_s, last_s = 0.0, time.thread_time()
            while not all(task.done() for task in tasks[-50:]):
                await asyncio.sleep(0)
                now_s = time.thread_time()
                longest_s, last_s = max(longest_s, now_s - last_s), now_s
            return await asyncio.gather(*tasks), longest_s


def test_clients_travel_to_actors_and_tasks(bank: Cluster) -> None:
    async def main() -> tuple[list[int], float]:
        config = ClientConfig(outstanding_appends=50)
        async with await waltz_ray.connect_async(bank.name, config=config) as client:
            actor: Any = ray.remote(num_cpus=0)(Appender).remote()
            result: tuple[list[int], float] = await actor.run.remote(client, 3000)
            ray.kill(actor)
            return result

    ids, longest_s = asyncio.run(main())
    assert ids == list(range(ids[0], ids[0] + 3000))
    assert longest_s < 0.1  # tests/client/test_aio.py is exact

    @ray.remote(num_cpus=0)
    def append(client: WaltzClient, data: bytes) -> Any:
        with client:
            transaction_id = client.append(PARTITION, data).result(60)
            return next(client.feed(PARTITION, start=transaction_id))

    with waltz_ray.connect(bank.name) as client:
        transaction = ray.get(append.remote(client, b"of a task"), timeout=60)
    assert (transaction.transaction_id, transaction.data) == (ids[-1] + 1, b"of a task")


class DiesOnce(WaltzDatasink):
    """Its process dies in the middle of a task, when some of its pieces are in the log and some on their way."""

    def __init__(self, client: WaltzClient, marker: Path) -> None:
        super().__init__(client, header=99, piece_bytes=1000)
        self.marker = str(marker)

    def pieces(self, blocks: Iterable[Any], task: int) -> Iterator[WrittenPiece]:
        for number, piece in enumerate(super().pieces(blocks, task)):
            if number == 40 and task == 1:
                try:
                    os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    pass
                else:
                    os.kill(os.getpid(), signal.SIGKILL)
            yield piece


def test_a_dataset_is_written_once_though_its_task_dies(bank: Cluster, tmp_path: Path) -> None:
    with waltz_ray.connect(bank.name) as client:
        start = {p: client.server_high_water_mark(p) + 1 for p in range(bank.partitions)}
        sink = DiesOnce(client, tmp_path / "killed")
        ray.data.range(20_000, override_num_blocks=3).write_datasink(sink)
    assert (tmp_path / "killed").exists()
    dataset = read_dataset(bank.name, start=start, header=99, columns=["data"], decoder=block_rows)
    assert sorted(row["id"] for row in dataset.take_all()) == list(range(20_000))
