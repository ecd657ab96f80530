"""A generator that never waits, and disks that do not answer: nothing grows beyond its limit, nothing is lost."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, wait_until
from waltz_ray.config import ClientConfig, ServerConfig
from waltz_ray.connecting import connect
from waltz_ray.storage.disk import Disk, OsDisk

pytestmark = pytest.mark.cluster

QUEUE_BYTES = RETAINED_BYTES = 2_000_000
BATCH_BYTES = 200_000
RECORDS, RECORD_BYTES = 1500, 10_000


class GatedDisk(OsDisk):
    """A disk that syncs nothing while its gate is closed."""

    def __init__(self, gate: threading.Event) -> None:
        self._gate = gate

    def fdatasync(self, handle: int) -> None:
        self._gate.wait()
        super().fdatasync(handle)


def test_what_is_in_flight_stays_within_its_limit_and_every_append_gets_its_fate(
    tmp_path: Path, zookeeper_server: str
) -> None:
    gate = threading.Event()
    gate.set()

    def disk(replica_id: int) -> Disk:
        return GatedDisk(gate)

    config = ServerConfig(append_queue_bytes=QUEUE_BYTES, retained_bytes=RETAINED_BYTES, replica_timeout_ms=20_000)
    unbounded = ClientConfig(outstanding_appends=1_000_000, outstanding_bytes=1 << 30, batch_bytes=BATCH_BYTES)
    with Cluster(tmp_path, zookeeper_server, partitions=1, config=config, disk=disk) as cluster:
        cluster.wait_members(0, {0, 1, 2})
        server = next(iter(cluster.servers.values()))
        try:
            with connect(cluster.name, zookeeper=cluster.zookeeper, config=unbounded) as client:
                client.append(0, b"the first").result(20)
                gate.clear()
                futures = [client.append(0, b"%d" % n + bytes(RECORD_BYTES)) for n in range(RECORDS)]
                most = 0

                def refused() -> bool:
                    nonlocal most
                    most = max(most, cluster.call(lambda: server.queue.used_bytes))
                    return client.statistics()["retries"] > 0

                wait_until(refused, "a refusal because the queue is full")
                refused()  # it may have filled up between the look at it and that at the refusals
                assert QUEUE_BYTES // 2 < most <= QUEUE_BYTES + BATCH_BYTES
                gate.set()
                ids = [future.result(60) for future in futures]
                assert sorted(ids) == list(range(1, RECORDS + 1))
                machine = server.machine_of(0)
                assert machine is not None
                wait_until(lambda: cluster.call(lambda: server.queue.used_bytes) == 0, "an empty queue")
                assert cluster.call(lambda: machine.recent(1, 2)) is None, "old records are forgotten"
                assert [bytes(t.data)[:4] for t in client.read(0, ids[7], ids[7] + 1)] == [b"7\0\0\0"]
        finally:
            gate.set()
