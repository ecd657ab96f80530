"""The copies of one partition beside each other: behind, contradicting, lost, and what is nobody's fault."""

from __future__ import annotations

import pytest

from tests.storage.faulty_disk import FaultyDisk
from tests.storage.helpers import KEY, records
from waltz_ray.config import StorageConfig
from waltz_ray.storage.compare import PartitionComparison
from waltz_ray.storage.store import ReplicaStore
from waltz_ray.storage.verify import compare_reports, verify_directory

SEGMENTS = (StorageConfig(segment_size_bytes=3_000), StorageConfig(segment_size_bytes=50_000))


class Cluster:
    def __init__(self) -> None:
        self.disk = FaultyDisk()
        self.directories: list[str] = []

    def replica(self, *appends: tuple[int, int, int], mark: int = -1, session: int = 1) -> None:
        """Records of (last ID, tag), each in its session; segments end elsewhere in every replica.

        ``session`` -1: none was ever opened.
        """
        directory = f"/data/replica-{len(self.directories)}"
        config = SEGMENTS[len(self.directories) % 2]
        store = ReplicaStore.create(self.disk, directory, KEY, 1, config)
        log = store.partition(0)
        for of_session, last_id, tag in appends:
            log.open_session(of_session)
            while log.last_id < last_id:
                count = min(100, last_id - log.last_id)
                log.append(of_session, records(log.last_id + 1, count, tag))
            log.sync()
        if session != -1:
            log.open_session(session)
        if mark >= 0:
            log.set_low_water_mark(session, mark, min(mark, log.last_id))
        store.close()
        self.directories.append(directory)

    def compare(self, replicas: int = 3, replication: int = 0) -> PartitionComparison:
        reports = [verify_directory(self.disk, directory) for directory in self.directories]
        assert all(report.ok for report in reports), [str(report.damage) for report in reports]
        (found,) = compare_reports(self.disk, reports, replicas, replication)
        return found


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.mark.parametrize("last_id", [-1, 0, 254, 255, 256, 700])
def test_equal_copies_are_ok_however_their_segments_are_cut(cluster: Cluster, last_id: int) -> None:
    for _ in range(3):
        cluster.replica((1, last_id, 0))
    found = cluster.compare()
    assert (found.verdict, found.committed_id, found.errors) == ("ok", last_id, ())
    assert [standing.behind for standing in found.standings] == [0, 0, 0]


def test_a_copy_that_was_cut_is_behind(cluster: Cluster) -> None:
    cluster.replica((1, 700, 0))
    cluster.replica((1, 300, 0))
    cluster.replica((1, 700, 0))
    found = cluster.compare()
    assert found.verdict == "BEHIND"
    assert [standing.behind for standing in found.standings] == [0, 400, 0]


def test_one_that_is_ahead_of_the_quorum_makes_nobody_behind(cluster: Cluster) -> None:
    cluster.replica((1, 500, 0))
    cluster.replica((1, 510, 0))
    cluster.replica((1, 500, 0))
    assert cluster.compare().verdict == "ok"


def test_a_mark_above_what_a_quorum_has_is_a_loss(cluster: Cluster) -> None:
    cluster.replica((1, 500, 0), mark=500)
    cluster.replica((1, 400, 0))
    cluster.replica((1, 499, 0))
    found = cluster.compare()
    assert found.verdict == "WRONG"
    assert found.errors == ("transaction 500 was committed, and 1 of 3 copies have it; 2 of 3 must",)
    assert [standing.behind for standing in found.standings] == [0, 100, 1]


def test_replicas_that_are_not_here_may_have_it(cluster: Cluster) -> None:
    cluster.replica((1, 500, 0), mark=500)
    cluster.replica((1, 400, 0))
    assert cluster.compare(replicas=3).verdict == "BEHIND"
    assert cluster.compare(replicas=2).verdict == "WRONG"


@pytest.mark.parametrize("at", [0, 100, 255, 256, 300, 599, 699])
def test_one_other_record_is_found_at_its_place(cluster: Cluster, at: int) -> None:
    cluster.replica((1, 700, 0))
    cluster.replica((1, at - 1, 0), (1, at, 9), (1, 699, 0))
    cluster.replica((1, 700, 0))
    found = cluster.compare()
    assert found.errors == (
        f"replica-0 and replica-1 differ from transaction {at} on",
        f"replica-1 and replica-2 differ from transaction {at} on",
    )


def test_what_an_older_session_left_unfinished_is_never_committed_and_no_contradiction(cluster: Cluster) -> None:
    cluster.replica((1, 500, 0), (2, 600, 2), session=2, mark=550)
    cluster.replica((1, 520, 0), session=1, mark=300)
    cluster.replica((1, 500, 0), (2, 600, 2), session=2)
    found = cluster.compare()
    assert (found.verdict, found.errors) == ("BEHIND", ())
    assert [(standing.behind, standing.differs_from) for standing in found.standings] == [
        (0, None),
        (100, 501),
        (0, None),
    ]


def test_below_its_own_mark_an_older_copy_may_not_differ(cluster: Cluster) -> None:
    cluster.replica((1, 500, 0), (2, 600, 2), session=2)
    cluster.replica((1, 520, 0), session=1, mark=510)
    found = cluster.compare(replicas=2)
    assert "replica-0 and replica-1 differ from transaction 501 on" in found.errors


def test_a_quorum_counts_only_copies_with_the_same_records(cluster: Cluster) -> None:
    cluster.replica((1, 500, 0), (2, 520, 2), session=2, mark=520)
    cluster.replica((1, 520, 0), session=1)
    cluster.replica((1, 400, 0), session=1)
    found = cluster.compare()
    assert found.errors == ("transaction 520 was committed, and 1 of 3 copies have it; 2 of 3 must",)


# ---- where a partition is on some of the replicas only ----------------------------------------------------------


def test_replicas_that_never_had_a_partition_are_not_behind_in_it(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.replica((1, 500, 0), mark=400)
    cluster.replica(session=-1)
    cluster.replica(session=-1)
    found = cluster.compare(replicas=5, replication=3)
    assert (found.verdict, found.committed_id) == ("ok", 500)
    assert [standing.replica for standing in found.standings] == ["replica-0", "replica-1", "replica-2"]


def test_two_of_three_are_a_quorum_of_five_replicas_too(cluster: Cluster) -> None:
    cluster.replica((1, 500, 0))
    cluster.replica((1, 500, 0))
    cluster.replica((1, 200, 0))
    for _ in range(2):
        cluster.replica(session=-1)
    found = cluster.compare(replicas=5, replication=3)
    assert (found.verdict, found.committed_id) == ("BEHIND", 500)


def test_what_is_lost_is_not_believed_to_be_on_replicas_that_never_had_it(cluster: Cluster) -> None:
    cluster.replica((1, 500, 0), mark=400)
    for _ in range(4):
        cluster.replica(session=-1)
    found = cluster.compare(replicas=5, replication=3)
    assert found.errors == ("transaction 400 was committed, and 1 of 1 copies have it; 2 of 3 must",)


def test_a_directory_that_is_not_here_may_hold_it(cluster: Cluster) -> None:
    cluster.replica((1, 500, 0), mark=400)
    cluster.replica(session=-1)
    assert cluster.compare(replicas=3, replication=3).verdict == "BEHIND"
    assert cluster.compare(replicas=5, replication=3).verdict == "ok"


# ---- partitions that were moved to other replicas, and such that are on more of them --------------------------------


def test_what_a_partition_has_left_where_it_was_is_not_behind(cluster: Cluster) -> None:
    """One gave it up, one was away when it was to: both are on the disk, and neither is in the set."""
    cluster.replica((1, -1, 0), session=3)
    cluster.replica((1, 200, 0), session=2)
    for _ in range(3):
        cluster.replica((1, 500, 0), mark=500, session=5)
    found = cluster.compare(5, 3)
    assert (found.verdict, found.committed_id) == ("ok", 500)
    assert [standing.replica for standing in found.standings] == ["replica-2", "replica-3", "replica-4"]


def test_where_one_of_the_set_is_away_what_was_given_up_is_not_taken_for_it(cluster: Cluster) -> None:
    cluster.replica((1, -1, 0), session=3)
    cluster.replica((1, 300, 0), session=4)
    cluster.replica((1, 500, 0), mark=500, session=5)
    cluster.replica((1, 500, 0), mark=500, session=5)
    found = cluster.compare(5, 3)
    assert (found.verdict, found.errors) == ("BEHIND", ())
    assert [standing.behind for standing in found.standings] == [200, 0, 0]


def test_a_partition_on_five_replicas_beside_others_on_three(cluster: Cluster) -> None:
    for last_id in (500, 500, 500, 400, 300):
        cluster.replica((1, last_id, 0), mark=min(last_id, 350), session=5)
    found = cluster.compare(7, 3)
    assert (found.verdict, found.committed_id) == ("BEHIND", 500), "three of five have it"
    assert [standing.behind for standing in found.standings] == [0, 0, 0, 100, 200]


def test_a_record_that_one_of_a_moved_partitions_replicas_has_is_lost(cluster: Cluster) -> None:
    cluster.replica((1, 500, 0), session=3)
    cluster.replica((1, 500, 0), mark=500, session=5)
    cluster.replica((1, 400, 0), session=5)
    cluster.replica((1, 400, 0), session=5)
    found = cluster.compare(4, 3)
    assert found.errors == ("transaction 500 was committed, and 1 of 3 copies have it; 2 of 3 must",)
