"""Replicas whose disks are full: whoever appends is told why, and sessions are not opened for nothing."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster, wait_until
from waltz_ray.connecting import connect, connect_async
from waltz_ray.errors import AppendFailed, AppendTimeout
from waltz_ray.storage.disk import OsDisk, Writable

pytestmark = pytest.mark.cluster

HINDRANCES = "waltz_ray.client.hindrances"

_LONGEST_S = 6.0  # until who appends knows why it takes so long; ten are promised


class FullableDisk(OsDisk):
    """No segment can grow on it while it is ``full``; sessions are opened, in what has its place already."""

    full = False

    def pwrite(self, handle: int, data: Writable, offset: int) -> None:
        grows = self.full and offset + len(data) > os.fstat(handle).st_size
        if grows and os.readlink(f"/proc/self/fd/{handle}").endswith(".seg"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().pwrite(handle, data, offset)


@pytest.fixture
def disks() -> dict[int, FullableDisk]:
    return {replica_id: FullableDisk() for replica_id in range(3)}


@pytest.fixture
def cluster(tmp_path: Path, zookeeper_server: str, disks: dict[int, FullableDisk]) -> Iterator[Cluster]:
    with Cluster(tmp_path, zookeeper_server, partitions=1, disk=disks.__getitem__) as running:
        running.wait_members(0, {0, 1, 2})
        yield running


def _session(cluster: Cluster) -> int:
    return cluster.store.roster(0)[0].session_id


def test_who_appends_is_told_of_full_disks_within_seconds(
    cluster: Cluster, disks: dict[int, FullableDisk], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, HINDRANCES)
    with connect(cluster.name, zookeeper=cluster.zookeeper) as client:
        client.append(0, b"fits").result(10)
        disks[1].full = disks[2].full = True
        before, begin_s = _session(cluster), time.monotonic()
        with pytest.raises(AppendTimeout, match=r"its server says: .*replica 1: .*no space left on the disk") as failed:
            client.append(0, b"does not", timeout=_LONGEST_S).result()
        told = [one for one in caplog.records if one.name == HINDRANCES and "no space left" in one.getMessage()]
        assert told, caplog.text
        assert told[0].levelname == "WARNING"
        assert len({record.getMessage() for record in told}) == len(told), "the same reason twice"
        assert time.monotonic() - begin_s < _LONGEST_S + 10, "an append without a limit would wait for ever"
        assert _session(cluster) - before <= 10, "sessions are opened for nothing"
        assert "replica-1" in told[0].getMessage(), "which disk it is"

        async def another() -> None:
            async with await connect_async(cluster.name, zookeeper=cluster.zookeeper) as waiting:
                with pytest.raises((AppendTimeout, AppendFailed), match=r"its server says: .*no space left"):
                    await waiting.append(0, b"nor this", timeout=5)

        asyncio.run(another())
        disks[1].full = disks[2].full = False
        fate = failed.value.fate
        assert isinstance(fate, Future)
        assert fate.result(20) == 1


@pytest.mark.long
@pytest.mark.parametrize("full", [{2}, {1, 2}, {0, 1, 2}])
def test_sessions_do_not_churn_while_disks_are_full(
    cluster: Cluster, disks: dict[int, FullableDisk], full: set[int]
) -> None:
    with connect(cluster.name, zookeeper=cluster.zookeeper) as client:
        client.append(0, b"fits").result(10)
        before, begin_s = _session(cluster), time.monotonic()
        for replica_id in full:
            disks[replica_id].full = True
        futures = []
        while time.monotonic() - begin_s < 60:
            futures.append(client.append(0, b"x" * 100))
            time.sleep(0.05)  # the pace of an application
        opened = _session(cluster) - before
        print(f"{sorted(full)} full: {opened} sessions in a minute")
        for replica_id in full:
            disks[replica_id].full = False
        assert [future.result(20) for future in futures] == list(range(1, len(futures) + 1))
        wait_until(lambda: set(cluster.served(0).members) == {0, 1, 2}, "all replicas back")
    assert opened <= 20, f"{opened} sessions in a minute"
