"""A replica whose disk fails, becomes read-only, slow, or rots: it says so, leaves, and comes back; nobody waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.cluster.harness import wait_until
from tests.cluster.network import Felt
from tests.cluster.sick import SickCluster, flip
from tests.cluster.test_log import connect, final_numbers, records_on_disk
from waltz_ray.config import StorageConfig
from waltz_ray.runtime.figures import REPLICA
from waltz_ray.runtime.status import ActorState, ReplicaStatus

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

SICK = 2

STORAGE = StorageConfig(
    segment_size_bytes=8_000,
    index_flush_interval=20,
    preallocate_bytes=0,
    journal_bytes=64 * 1024,
    journal_partitions=1,
    scrub_bytes_per_s=0x4000_0000,
    scrub_interval_s=1,
)


@pytest.fixture
def cluster(tmp_path: Path, zookeeper_server: str) -> Iterator[SickCluster]:
    with SickCluster(tmp_path, zookeeper_server, storage=STORAGE) as running:
        running.wait_members(0, {0, 1, 2})
        yield running


def figure(name: str, status: ReplicaStatus) -> object:
    (metric,) = (each for each in REPLICA if each.name == name)
    ((_, value),) = metric.values(status)
    return value


def session(cluster: SickCluster) -> int:
    return cluster.store.roster(0)[0].session_id


def checked(cluster: SickCluster, replica_id: int) -> None:
    """All of its closed segments were read again, and nothing is rotten. Appends have to go on: rot above the mark is
    mended by who sends the next one."""
    begin_ms = time.time_ns() // 1_000_000 + 1000 * STORAGE.scrub_interval_s

    def done() -> bool:
        scrub = cluster.told(replica_id).scrub
        passed = scrub is not None and scrub.last_pass_ms is not None and scrub.last_pass_ms > begin_ms
        if not passed or scrub is None or scrub.unrepaired:
            return False
        return not any(held.damaged for held in cluster.told(replica_id).partitions.values())

    wait_until(done, "a whole pass of the scrub")


def shown_whole(cluster: SickCluster, felt: Felt) -> None:
    cluster.wait_members(0, {0, 1, 2})
    with connect(cluster) as client:
        log = list(final_numbers(client, 0))
    felt.check(log)
    # What is committed two of them have: the third may not have got the last of it.
    wait_until(lambda: len({cluster.told(each).partitions[0].last_id for each in range(3)}) == 1, "all have all")
    cluster.open_files()
    assert len({records_on_disk(cluster, replica, 0) for replica in range(3)}) == 1


@pytest.mark.parametrize(
    ("sickness", "why"), [("broken", "Input/output error"), ("read_only", "Read-only file system")]
)
def test_a_disk_that_fails_for_a_while(cluster: SickCluster, sickness: str, why: str) -> None:
    with connect(cluster) as client, Felt(client) as felt:
        felt.goes_on()
        felt.longest_s()
        before = session(cluster)
        setattr(cluster.disks[SICK], sickness, True)
        cluster.wait_members(0, {0, 1})
        told = cluster.wait_told(SICK, why)
        assert told.state is ActorState.REFUSED
        assert not figure("waltz_replica_serving", told)
        felt.goes_on(500)
        assert felt.longest_s() < 2.0
        assert session(cluster) - before <= 2, "it comes and goes"
        assert cluster.hosted[SICK].starts <= 3
        cluster.disks[SICK].heal()
        cluster.wait_members(0, {0, 1, 2})
        felt.goes_on()
        assert felt.longest_s() < 2.0
        assert figure("waltz_replica_serving", cluster.told(SICK))
    shown_whole(cluster, felt)


@pytest.mark.parametrize(("sync_s", "stays", "what"), [(0.3, True, "a sync takes 30"), (10.0, False, "not ended for")])
def test_a_disk_that_is_slow_says_so(cluster: SickCluster, sync_s: float, stays: bool, what: str) -> None:
    with connect(cluster) as client, Felt(client) as felt:
        felt.goes_on()
        felt.longest_s()
        before = session(cluster)
        cluster.disks[SICK].sync_s = sync_s
        told = cluster.wait_told(SICK, what)
        assert told.state is ActorState.SERVING
        assert figure("waltz_replica_disk_slow", told)
        cluster.wait_members(0, {0, 1, 2} if stays else {0, 1})
        felt.goes_on(500)
        assert felt.longest_s() < 1.0, "others wait for it"
        assert session(cluster) - before == (0 if stays else 1), "it comes and goes"
        cluster.disks[SICK].heal()
        cluster.wait_members(0, {0, 1, 2})
        felt.goes_on()
        wait_until(lambda: not cluster.told(SICK).slow, "it says that it is well")
    shown_whole(cluster, felt)


@pytest.mark.long
def test_a_disk_somewhat_slower_than_is_waited_for_does_not_flap(cluster: SickCluster) -> None:
    """Its syncs take 2.5 s, and 2 s are waited for an answer."""
    with connect(cluster) as client, Felt(client) as felt:
        felt.goes_on()
        before = session(cluster)
        cluster.disks[SICK].sync_s = 2.5
        cluster.wait_members(0, {0, 1})
        felt.longest_s()
        for _ in range(40):
            felt.goes_on(100)
        assert felt.longest_s() < 1.0
        assert session(cluster) - before <= 3
        cluster.disks[SICK].heal()
    shown_whole(cluster, felt)


def until_member(cluster: SickCluster) -> None:
    """The replica is back, and nobody had to do anything for it."""
    wait_until(lambda: set(cluster.served(0).members) == {0, 1, 2}, "the replica is a member again")
    wait_until(lambda: not cluster.told(SICK).lost, "it says that it is well")


KINDS = {
    "a record": "*/*.seg",
    "an index": "*/*.idx",
    "the journal": "waltz-journal.*",
    "the control file": "waltz-storage.ctl",
}


@pytest.mark.parametrize(
    "kind", ["a record", "the control file", *(pytest.param(kind, marks=pytest.mark.long) for kind in list(KINDS)[1:3])]
)
def test_one_bad_byte_anywhere(cluster: SickCluster, kind: str) -> None:
    """While it is away: at the next start it is repaired, or copied anew, and what is served is right. In the control
    file the other slot has the same, or what is beside it says what it was."""
    chance, header_bytes = Random(kind), 32 if kind == "the control file" else 0
    with connect(cluster) as client, Felt(client) as felt:
        felt.goes_on(300)
        for _ in range(4):
            cluster.stop_replica(SICK)
            cluster.wait_members(0, {0, 1})
            directory = cluster.replica_directory(SICK)
            files = [path for path in sorted(directory.glob(KINDS[kind])) if path.stat().st_size]
            assert files, sorted(directory.rglob("*"))
            path = chance.choice(files)
            flip(path, chance.randrange(header_bytes, path.stat().st_size))
            cluster.start_replica(SICK)
            until_member(cluster)
            felt.goes_on(50)
        felt.goes_on(300)  # the segments of before are closed: the newest one is checked by who reads it
        assert felt.longest_s() < 2.0
        checked(cluster, SICK)
    shown_whole(cluster, felt)


def test_a_control_file_of_another_version_takes_the_replica_out_until_it_is_right(cluster: SickCluster) -> None:
    """It is that byte alone which says it, so a person decides; the others go on."""
    path = cluster.replica_directory(SICK) / "waltz-storage.ctl"
    with connect(cluster) as client, Felt(client) as felt:
        felt.goes_on()
        cluster.stop_replica(SICK)
        cluster.wait_members(0, {0, 1})
        flip(path, 3)
        cluster.start_replica(SICK)
        assert cluster.wait_told(SICK, "version").state is ActorState.REFUSED
        felt.goes_on()
        flip(path, 3)
        cluster.wait_members(0, {0, 1, 2})
        felt.goes_on()
    shown_whole(cluster, felt)
