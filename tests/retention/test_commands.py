"""``waltz trim``, ``waltz holds`` and ``waltz feed`` on a cluster whose log is trimmed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

import waltz_ray
from tests.cluster.harness import Cluster, waltz
from waltz_ray.cli.space import parsed_settings
from waltz_ray.config import StorageConfig
from waltz_ray.protocol.spaces import SpaceState

pytestmark = pytest.mark.cluster

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper_server: str) -> Iterator[Cluster]:
    storage = StorageConfig(preallocate_bytes=0, segment_size_bytes=500)
    with Cluster(tmp_path_factory.mktemp("cluster"), zookeeper_server, replicas=1, storage=storage) as cluster:
        for partition_id in range(2):
            cluster.wait_members(partition_id, {0})
        with waltz_ray.connect(cluster.name, zookeeper=cluster.zookeeper) as client:
            for number in range(20):
                client.append(0, b"%d" % number).result(30)
        yield cluster


def told(cluster: Cluster, capsys: Capture, *arguments: str, code: int = 0) -> str:
    capsys.readouterr()
    waltz(cluster, *arguments, code=code)
    said = capsys.readouterr()
    assert (said.err == "") == (code == 0)
    return said.out + said.err


def test_by_hand(cluster: Cluster, capsys: Capture) -> None:
    trims = cluster.store.trims
    where = "partition 0 of space log: "
    dry = told(cluster, capsys, "trim", "-p", "0", "--before", "10", "--dry-run")
    assert dry == where + "the trim mark would be raised from 0 to 10, 10 more transactions may go\n"
    assert trims.marks() == {}
    done = told(cluster, capsys, "trim", "-p", "0", "--before", "10", "--yes")
    assert done == where + "the trim mark is raised from 0 to 10, 10 more transactions may go\n"
    assert told(cluster, capsys, "trim", "-p", "0", "--before", "4") == (
        where + "the trim mark is 10 already, nothing is changed\n"
    )
    assert told(cluster, capsys, "trim", "-p", "0", "--before", "21", code=1) == (
        "waltz: partition 0 of space 'log' cannot be trimmed before 21: only what is committed may go, and its last "
        "committed transaction is 19\n"
    )
    assert "there is no partition 7" in told(cluster, capsys, "trim", "-p", "7", "--before", "1", code=1)
    assert "--before must say" in told(cluster, capsys, "trim", "-p", "0", "--before", "soon", code=1)
    assert "already, nothing" in told(cluster, capsys, "trim", "-p", "0", "--before", "2d"), "all is younger"
    assert trims.marks() == {0: 10}


def test_what_a_hold_keeps_back(cluster: Cluster, capsys: Capture) -> None:
    trims = cluster.store.trims
    before = max(11, trims.marks().get(0, 0))
    trims.holds.hold("audit", {0: before, 1: 0}, "the auditors")
    line = f"partition 0 of space log: not to 18: hold audit keeps transactions from {before} on (the auditors)\n"
    for more in (["--dry-run"], ["--yes"]):
        assert told(cluster, capsys, "trim", "-p", "0", "--before", "18", *more).endswith(line)
    assert trims.marks()[0] <= before
    listed = told(cluster, capsys, "holds", "list")
    assert all(text in listed for text in ("audit", f"log/0: {before}", "log/1: 0", "the auditors"))
    positions = [
        {"space": "log", "partition": 0, "first_id": before},
        {"space": "log", "partition": 1, "first_id": 0},
    ]
    assert json.loads(told(cluster, capsys, "holds", "list", "--json")) == [
        {"name": "audit", "why": "the auditors", "positions": positions}
    ]
    assert told(cluster, capsys, "holds", "release", "audit", "--yes") == "hold audit is released\n"
    assert "has no hold 'audit'; see: waltz holds list" in told(
        cluster, capsys, "holds", "release", "audit", "--yes", code=1
    )
    assert "raised" in told(cluster, capsys, "trim", "-p", "0", "--before", "18", "--yes")


def test_a_feed_from_below_names_the_first_there_is(cluster: Cluster, capsys: Capture) -> None:
    cluster.store.trims.raise_marks({0: 18})
    cluster.stores[0].partition(0).trim(18)
    cluster.stop_server(1)  # with what it has in its memory
    cluster.start_server(1)
    for start in ([], ["--from", "earliest"], ["--from", "18"]):
        ids = [json.loads(line)["transaction_id"] for line in told(cluster, capsys, *FEED, *start).splitlines()]
        assert ids == [18, 19], start
    assert told(cluster, capsys, *FEED, "--from", "3", code=1) == (
        "waltz: partition 0: transaction 3 was trimmed away; the first that can be read is 18 (start='earliest' begins "
        "there)\n"
    )
    assert cluster.served(0).trim_mark == 18
    assert "--from: it must be a transaction ID or earliest" in told(cluster, capsys, *FEED, "--from", "x", code=2)


FEED = ["feed", "-p", "0", "--json"]


def test_a_layer_moves_the_mark_of_its_space_itself(cluster: Cluster, capsys: Capture) -> None:
    spaces = cluster.store.spaces
    space = spaces.create("latest", 1, settings=parsed_settings(["compact=1"]))
    spaces.finish(space.partitions.stop)
    spaces.mark_ready("latest")
    assert spaces.get("latest").state is SpaceState.READY
    refused = told(cluster, capsys, "trim", "-p", "0", "--space", "latest", "--before", "0", code=1)
    assert refused == "waltz: space 'latest' is compacted: its layer says what may go, and nobody else\n"
    items = spaces.create("items", 1, "kv", parsed_settings(["compact=0"]))
    spaces.finish(items.partitions.stop)
    spaces.mark_ready("items")
    refused = told(cluster, capsys, "trim", "-p", "0", "--space", "items", "--before", "0", code=1)
    assert refused == "waltz: space 'items' is of kind kv: its layer says what may go, and nobody else\n"
