"""A cluster of five replicas that has each partition on three of them, by its commands: real Ray, ZooKeeper and files.

The tests build on each other, in order: a cluster costs ten seconds to start.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

import waltz_ray
from tests.cli.test_lifecycle import Lifecycle, until
from waltz_ray.protocol.replica_sets import choose_sets, nowhere_in_particular
from waltz_ray.spaces import Spaces

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(300)]

PARTITIONS = 5
SETS = [set(one) for one in islice(choose_sets(nowhere_in_particular(range(5)), 3), PARTITIONS + 2)]


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lifecycle]:
    life = Lifecycle(tmp_path_factory.mktemp("sets"))
    try:
        shape = ["--partitions", str(PARTITIONS), "--replicas", "5", "--replication", "3"]
        life.waltz("up", "--dir", str(life.directory), "--cluster", "sets", *shape)
        yield life
    finally:
        life.end()


def append_everywhere(life: Lifecycle) -> None:
    """Each of the payloads, to each partition."""
    with waltz_ray.connect(directory=str(life.directory)) as client:
        for p in range(PARTITIONS):
            for future in [client.append(p, payload) for payload in life.payloads]:
                future.result(60)


def members(status: dict[str, Any]) -> list[set[int]]:
    return [set(each["members"]) for each in status["partitions"]]


def held(status: dict[str, Any]) -> list[set[int]]:
    """By partition, the replicas that say they have it."""
    return [
        {int(n) for n, replica in status["replicas"].items() if str(each["partition"]) in replica["partitions"]}
        for each in status["partitions"]
    ]


def test_each_partition_is_on_its_three_replicas_and_nowhere_else(life: Lifecycle) -> None:
    append_everywhere(life)
    until(lambda: members(life.status()) == SETS[:PARTITIONS], "all replicas of each set are members")
    status = life.status()
    assert held(status) == SETS[:PARTITIONS]
    for replica in range(5):
        folders = {p for p in range(PARTITIONS) if any(life.directory.glob(f"replica-{replica}/{p}/*.seg"))}
        assert folders == {p for p in range(PARTITIONS) if replica in SETS[p]}


def test_up_again_knows_the_shape_and_another_one_is_refused(life: Lifecycle) -> None:
    assert "was running already" in life.waltz("up", "--dir", str(life.directory)).stdout
    refused = life.waltz("up", "--dir", str(life.directory), "--replication", "5", code=1)
    assert "replication 3, not 5" in refused.stderr.splitlines()[-1]


def test_a_new_space_goes_on_with_the_next_sets(life: Lifecycle) -> None:
    with Spaces("sets", directory=str(life.directory)) as spaces:
        assert spaces.create("more", 2).first == PARTITIONS
    until(lambda: members(life.status()) == SETS, "all replicas of each set are members")
    assert held(life.status()) == SETS


def test_a_killed_replica_is_missed_by_its_own_partitions_only_and_comes_back(life: Lifecycle) -> None:
    before = life.status()
    os.kill(before["replicas"]["0"]["pid"], signal.SIGKILL)
    append_everywhere(life)
    until(lambda: members(life.status()) == SETS, "it is a member of its partitions again")
    sessions = [
        (a["session"], b["session"]) for a, b in zip(before["partitions"], life.status()["partitions"], strict=True)
    ]
    for p, (earlier, later) in enumerate(sessions):
        assert (later > earlier) == (0 in SETS[p]), "those of the others have no new session"


def test_a_lost_disk_is_copied_from_the_sets_it_is_in(life: Lifecycle) -> None:
    os.kill(life.status()["replicas"]["4"]["pid"], signal.SIGKILL)
    shutil.rmtree(life.directory / "replica-4")
    until(lambda: life.status()["replicas"]["4"]["state"] == "REFUSED", "the empty replica is refused")
    without = [one - {4} for one in SETS]
    until(lambda: members(life.status()) == without, "sessions go on without it")
    append_everywhere(life)
    life.waltz("replace-replica", "4", "--yes", "--dir", str(life.directory))
    until(lambda: members(life.status()) == SETS, "it is a member again")
    assert held(life.status()) == SETS


def test_a_backup_has_everything_and_verify_finds_nobody_behind(life: Lifecycle) -> None:
    backup, restored = life.directory / "backup", life.directory.with_name("new")
    life.waltz("backup", str(backup), "--dir", str(life.directory))
    life.waltz("down", "--dir", str(life.directory))
    compared = life.waltz("verify", str(life.directory)).stdout
    assert "BEHIND" not in compared
    assert "WRONG" not in compared
    life.waltz("restore", str(backup), "--into", str(restored))
    again = Lifecycle(restored)
    for when in ("before the first start", "after it"):
        assert "BEHIND" not in life.waltz("verify", str(restored)).stdout, when
        if when == "before the first start":
            try:
                again.waltz("up", "--dir", str(restored))
                until(lambda: members(again.status()) == SETS, "each partition has its replicas")
                assert held(again.status()) == SETS
                again.waltz("down", "--dir", str(restored))
            finally:
                again.end()
