"""A replica whose disk has become slow: nobody waits for it, it does not come and go, it is back when its disk is."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, wait_until
from tests.cluster.test_log import Load, connect, final_numbers, records_on_disk, wait_converged
from waltz_ray.storage.disk import OsDisk

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

SLOW = 2


class SlowDisk(OsDisk):
    """Each sync lasts ``sync_s`` longer, until it is ``well``."""

    def __init__(self) -> None:
        self.sync_s = 0.0
        self.syncs = 0
        self.well = threading.Event()

    def fdatasync(self, handle: int) -> None:
        self._wait()
        super().fdatasync(handle)

    def fsync(self, handle: int) -> None:
        self._wait()
        super().fsync(handle)

    def _wait(self) -> None:
        if self.sync_s:
            self.syncs += 1
            self.well.wait(self.sync_s)


@pytest.mark.parametrize(("sync_s", "stays"), [(0.3, True), (10.0, False)])
def test_nobody_waits_for_a_slow_disk(tmp_path: Path, zookeeper_server: str, sync_s: float, stays: bool) -> None:
    """With 0.3 s it stays a member, behind the others; with 10 s it is left out, in one new session and not in many."""
    disk = SlowDisk()
    with Cluster(
        tmp_path, zookeeper_server, partitions=1, disk=lambda number: disk if number == SLOW else OsDisk()
    ) as cluster:
        cluster.wait_members(0, {0, 1, SLOW})
        with connect(cluster) as client:
            with Load(client) as load:
                load.goes_on()
                session, before = cluster.served(0).session, len(load.ids)
                disk.sync_s = sync_s
                wait_until(lambda: disk.syncs >= 3 or sync_s > 1, "slow syncs")
                if not stays:
                    cluster.wait_members(0, {0, 1})
                load.goes_on(5000)
                sent_at_once = 20
                assert len(load.ids) - before > 2 * sent_at_once * (disk.syncs + 1), "appends wait for each slow sync"
                now = cluster.served(0)
                assert session is not None
                assert (now.session, now.members) == ((session, (0, 1, 2)) if stays else (session + 1, (0, 1)))
                disk.sync_s = 0.0
                disk.well.set()
                cluster.wait_members(0, {0, 1, SLOW})
                load.goes_on()
            numbers = final_numbers(client, 0)
        assert [numbers[at] for at in load.ids] == [b"x%d" % n for n in range(len(load.ids))]
        wait_converged(cluster, 0, len(numbers) - 1)
        assert records_on_disk(cluster, SLOW, 0) == records_on_disk(cluster, 0, 0)
