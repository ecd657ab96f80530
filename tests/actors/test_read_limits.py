"""Whatever reads for a server asks for answers that fit its frames, as far as no single record is longer."""

from __future__ import annotations

from typing import cast

import pytest

from tests.actors.bench_server import bench_server, open_with, records_of
from tests.actors.test_feed_pace import in_loop, until
from waltz_ray.actors.replica_link import BULK_READ_BYTES, ReplicaLink
from waltz_ray.config import ServerConfig
from waltz_ray.protocol.messages.replica import Read, ReadTimes, Times
from waltz_ray.protocol.partition.events import ReadFeed
from waltz_ray.protocol.partition.feed import FEED_READ_BYTES
from waltz_ray.protocol.records import RecordBatch
from waltz_ray.protocol.session_types import ReadRange
from waltz_ray.wire.time_columns import TIME_MARK_BYTES


class Link:
    """Answers every read with one record and remembers what was asked for."""

    up, endpoint = True, None
    most = 1 << 40

    def __init__(self, asked: list[Read]) -> None:
        self._asked = asked

    async def read(self, request: Read) -> RecordBatch:
        self._asked.append(request)
        return records_of(request.first_id, 1)

    async def times(self, request: ReadTimes) -> Times:
        assert (request.end_id - request.first_id) * TIME_MARK_BYTES <= self.most
        return Times(request.partition_id, request.session_id, request.end_id, ())


@pytest.mark.parametrize("max_frame_bytes", [1024, 3 << 20, 64 << 20])
@in_loop
async def test_no_read_asks_for_more_than_half_a_frame(max_frame_bytes: int) -> None:
    config = ServerConfig(join_grace_ms=0, max_frame_bytes=max_frame_bytes, retained_bytes=0)
    bench = open_with(3, config=config)
    server = bench_server(config, bench)
    asked: list[Read] = []
    server.links.update({n: cast(ReplicaLink, Link(asked)) for n in range(3)})
    driver = server.drivers[0]
    session = bench.partition.session
    assert session is not None
    driver._carry_out(ReadRange(session.session_id, 0, 2, 0, 3, 1 << 40))
    driver._carry_out(ReadFeed(1, 1, 0, 3, FEED_READ_BYTES))
    await until(lambda: len(asked) == 2)
    await driver._read_from_replicas(0, 3, 1 << 30)
    most = max_frame_bytes // 2
    Link.most = most
    assert (await driver.times(0, 1 << 40))[0] <= 3
    assert [request.max_bytes for request in asked] == [
        min(BULK_READ_BYTES, most),
        min(FEED_READ_BYTES, most),
        most,
    ]
    await driver.close()
