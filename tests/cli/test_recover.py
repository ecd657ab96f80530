"""``waltz recover``: ZooKeeper's data is gone, the replicas' disks are there. Real Ray, ZooKeeper, actors and files.

The tests build on each other, in order: a cluster costs ten seconds to start.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import waltz_ray
from tests.cli.test_lifecycle import Lifecycle, until
from waltz_ray.spaces import Spaces

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(300)]

PARTITIONS = 4


class Disaster(Lifecycle):
    """``records``: by partition, all that was committed."""

    def __init__(self, directory: Any) -> None:
        super().__init__(directory)
        self.records: dict[int, list[bytes]] = {p: [] for p in range(PARTITIONS)}

    def append(self, tag: str, count: int = 300) -> None:
        with waltz_ray.connect(directory=str(self.directory)) as client:
            for p in range(PARTITIONS):
                datas = [f"{tag} {p} {n}".encode() for n in range(count)]
                for data, future in [(data, client.append(p, data)) for data in datas]:
                    assert future.result(60) == len(self.records[p])
                    self.records[p].append(data)

    def check_records(self) -> None:
        with waltz_ray.connect(directory=str(self.directory)) as client:
            for p, records in self.records.items():
                assert [transaction.data for transaction in client.feed(p, follow=False)] == records

    def lose_zookeeper(self) -> None:
        """Everything dies at once, and then ZooKeeper's disk."""
        for replica in self.status()["replicas"].values():
            if replica["pid"] is not None:
                os.kill(replica["pid"], signal.SIGKILL)
        self.waltz("down", "--dir", str(self.directory))
        shutil.rmtree(self.directory / "zookeeper")

    def recover(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        done = self.waltz("recover", "--from-replicas", str(self.directory), "--json", *arguments, code=code)
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disaster]:
    life = Disaster(tmp_path_factory.mktemp("disaster"))
    shape = ["--partitions", str(PARTITIONS), "--replicas", "4", "--replication", "3"]
    try:
        life.waltz("up", "--dir", str(life.directory), "--cluster", "disaster", *shape)
        yield life
    finally:
        life.end()


def test_all_that_was_committed_comes_back_and_appends_go_on(life: Disaster) -> None:
    with Spaces("disaster", directory=str(life.directory)) as spaces:
        assert spaces.create("orders", 2).first == PARTITIONS
    life.waltz("move", "-p", "0", "--to", "server/1", "--dir", str(life.directory))
    life.append("before")
    before = life.status()
    sets = {each["partition"]: each["replicas"] for each in before["partitions"]}
    refused = life.waltz("recover", "--from-replicas", str(life.directory), code=1).stderr
    assert "another process has this storage directory open" in refused
    life.lose_zookeeper()
    lost = life.waltz("up", "--dir", str(life.directory), code=1).stderr
    assert "waltz recover" in lost
    shutil.rmtree(life.directory / "zookeeper")  # what that attempt has begun
    (life.directory / "cluster.json").unlink()  # as with the disk that had both
    told = life.waltz("recover", "--from-replicas", str(life.directory)).stdout
    assert "nothing was changed; to do it" in told
    assert f"partition 0: ends with {len(life.records[0]) - 1}: replicas " in told
    done = life.recover("--apply", "--yes")
    assert {int(p): each["last_id"] + 1 for p, each in done["partitions"].items()} == {
        **{p: len(records) for p, records in life.records.items()},
        PARTITIONS: 0,
        PARTITIONS + 1: 0,
    }
    life.waltz("up", "--dir", str(life.directory))
    life.check_records()
    life.append("after")
    life.check_records()
    after = life.status()
    assert {each["partition"]: each["replicas"] for each in after["partitions"]} == sets
    assert [space["name"] for space in after["spaces"]] == [space["name"] for space in before["spaces"]]
    assert 0 in [each["partition"] for each in after["partitions"] if each["server"] == 1], "preferences are kept"
    generations = [each["generation"] for each in after["partitions"][:PARTITIONS]]
    assert min(generations) > max(each["generation"] for each in before["partitions"])


def test_zookeeper_that_is_there_is_not_replaced(life: Disaster) -> None:
    life.waltz("down", "--dir", str(life.directory))
    refused = life.waltz("recover", "--from-replicas", str(life.directory), "--apply", "--yes", code=1).stderr
    assert "ZooKeeper's data is still there" in refused
    life.waltz("up", "--dir", str(life.directory))
    life.check_records()


def test_without_a_quorum_of_a_partition_nothing_is_done_until_somebody_accepts_the_loss(life: Disaster) -> None:
    sets = {each["partition"]: set(each["replicas"]) for each in life.status()["partitions"]}
    until(lambda: all(set(e["members"]) == set(e["replicas"]) for e in life.status()["partitions"]), "all are members")
    life.lose_zookeeper()
    for lost in (1, 2):
        shutil.rmtree(life.directory / f"replica-{lost}")
    without = [p for p, one in sets.items() if len(one - {1, 2}) < 2]
    assert without
    refused = life.recover("--apply", "--yes", code=1)
    assert refused["done"] is False
    assert set(refused["undecided"]) == {str(p) for p in without}
    assert all("are needed" in why for why in refused["undecided"].values())
    assert not (life.directory / "waltz-recovered.json").exists()
    accepted = life.recover("--apply", "--yes", "--accept-data-loss")
    for p in without:
        assert accepted["partitions"][str(p)]["lost"] == [[len(life.records.get(p, [])), None]]
    life.waltz("up", "--dir", str(life.directory))
    life.check_records()  # nothing was in flight, so what is left has all of it
    life.append("and on")
    life.check_records()
