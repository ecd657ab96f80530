"""What a server and a replica tell of the time that appends take, with the real drivers between."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import cast

import pytest

from tests.actors.bench_server import Door, bench_server, open_with
from tests.actors.bench_turns import GENERATION, Willing, append_of
from waltz_ray.actors.measured_disk import MeasuredDisk
from waltz_ray.actors.replica_link import ReplicaLink
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.client import FeedMode, Mount
from waltz_ray.runtime.status import ServerMeasures, ServerStatus
from waltz_ray.storage.disk import OsDisk


async def _one_append() -> tuple[ServerStatus, dict[int, int]]:
    server = bench_server(bench=open_with(1))
    for replica_id in range(3):
        server.links[replica_id] = cast(ReplicaLink, Willing(server, replica_id))
    door, slow = Door(server).greet(), Door(server).greet()
    door.send(Mount(ReqId(900, GENERATION, 0, 0), 0, FeedMode.OWN, 1 << 20))
    slow.send(Mount(ReqId(901, GENERATION, 0, 0), 0, FeedMode.HEADERS, 0))
    door.send(append_of(900, 1), append_of(902, 1))  # who has not mounted is refused
    for _ in range(100):
        await asyncio.sleep(0)
    return server.status(), server.drivers[0].machine.lags(1)


def test_an_append_passes_each_stage_once_and_each_replica() -> None:
    status, furthest = asyncio.run(_one_append())
    measures = cast(ServerMeasures, status.measures)
    counts = {name: view.count for name, view in measures.stages.items()}
    assert counts == {"queue": 1, "lock": 1, "replicate": 3, "commit": 1, "feed": 1}
    assert (measures.records, measures.batch_records.total) == (1, 1)
    assert measures.refused == {"not_mounted": 1}
    assert status.partitions[0].lags == {900: 0, 901: 1}
    assert furthest == {901: 1}


class _Failing(OsDisk):
    def fdatasync(self, handle: int) -> None:
        raise OSError(errno.EIO, "rotten")


def test_a_disks_syncs_are_measured_also_those_that_fail(tmp_path: Path) -> None:
    measured, failing = MeasuredDisk(OsDisk()), MeasuredDisk(_Failing())
    handle = measured.disk.open(str(tmp_path / "f"), "create")
    measured.disk.pwrite(handle, b"x", 0)
    measured.disk.fdatasync(handle)
    with pytest.raises(OSError, match="rotten"):
        failing.disk.fdatasync(handle)
    measured.disk.close(handle)
    assert (measured.syncs().count, failing.syncs().count) == (1, 1)
    assert (tmp_path / "f").read_bytes() == b"x"
