"""What `waltz up` gives to others, with strangers' Rays beside it; and that an interrupted one leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from ray._private.utils import get_ray_address_file  # type: ignore[attr-defined]

from waltz_ray.actors import local_ray
from waltz_ray.coordination.embedded import EmbeddedZooKeeper
from waltz_ray.finding import cluster_file

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

NAME = f"shop-{os.getpid()}"  # whatever else runs on this machine has another one
CURRENT = Path(get_ray_address_file(None))  # what everybody's ray.init() joins
_OF_THE_SHELL = ("RAY_ADDRESS", "WALTZ_DIR", "WALTZ_CLUSTER", "WALTZ_ZOOKEEPER", local_ray.LOOPBACK_ONLY)


def start(*command: str) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if key not in _OF_THE_SHELL}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    """What it printed on stdout, and for an error on stderr."""
    try:
        out, err = process.communicate(timeout=250)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == code, f"{process.args!r}: {process.returncode}\n{out}\n{err}"
    assert "Traceback" not in err
    return out if code == 0 else err


def waltz(*arguments: str, code: int = 0) -> str:
    return ended(start(sys.executable, "-m", "waltz_ray", *arguments), code)


def python(text: str) -> Any:
    """What a program prints last, as JSON; it knows nothing but what is installed."""
    return json.loads(ended(start(sys.executable, "-c", text)).splitlines()[-1])


def of_directory(directory: Path) -> list[str]:
    """The live processes that have to do with it."""
    found = []
    for process in psutil.process_iter():
        try:
            where = f"{' '.join(process.cmdline())} {process.cwd()}"
            alive = process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:  # gone, or not ours to look at
            continue
        if str(directory) in where and alive and process.pid != os.getpid():
            found.append(where)
    return found


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a cluster that two started at once, and two Rays of strangers, started later."""
    directory = tmp_path_factory.mktemp("front") / NAME
    strangers = []
    try:
        both = [start(sys.executable, "-m", "waltz_ray", "up", "--dir", str(directory)) for _ in range(2)]
        first, second = sorted((ended(each) for each in both), key=lambda text: "already" in text)
        assert first.startswith(f"cluster {NAME} is up: 4 partitions, 3 replicas, 2 servers in ")
        assert second.startswith(f"cluster {NAME} was running already, nothing was changed: ")
        assert not CURRENT.exists() or port_of(directory) not in CURRENT.read_text()
        strangers += [local_ray.start(tmp_path_factory.mktemp(f"r{n}"), dashboard=False) for n in range(2)]
        yield directory
    finally:
        for each in strangers:
            local_ray.stop(each)
        known = cluster_file.read(directory)
        if known is not None and known.ray is not None:
            local_ray.stop(known.ray)
        EmbeddedZooKeeper(directory / "zookeeper").stop()


def address_of(directory: Path) -> str:
    known = cluster_file.read(directory)
    assert known is not None
    return known.address


def port_of(directory: Path) -> str:
    return address_of(directory).rpartition(":")[2]


_IN_ANOTHER_JOB = """
import json, ray, waltz_ray
ray.init(address={address!r}, log_to_driver=False)

@ray.remote(num_cpus=0)
def in_a_task(name):
    with waltz_ray.connect(name) as client:
        return client.append(0, b"from a task").result(30)

with waltz_ray.connect() as client:
    client.wait_ready(30)
    mark = client.server_high_water_mark(0)
appended = ray.get(in_a_task.remote({name!r}), timeout=60)
print(json.dumps([appended - mark, waltz_ray.read_dataset({name!r}).count() > 0]))
"""

_SPARK = """
import json, waltz_ray
from waltz_spark import read_feed, start_spark, stop_spark
with waltz_ray.connect({name!r}) as client:
    client.append(0, b"for Spark").result(30)
spark = start_spark("analytics", cluster={name!r}, executor_memory="512m")
rows = read_feed(spark, {name!r}).filter("partition_id = 0").count()
stop_spark()
print(json.dumps(rows))
"""


def test_what_up_prints_works_with_plain_ray_among_strangers(shop: Path) -> None:
    address = address_of(shop)
    assert address in waltz("up", "--dir", str(shop))
    assert python(_IN_ANOTHER_JOB.format(address=address, name=NAME)) == [1, True]
    assert "Active:" in ended(start(sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address))
    assert json.loads(waltz("status", "--json", "--cluster", NAME))["cluster"] == NAME
    assert json.loads(waltz("status", "--json", "--address", address))["cluster"] == NAME


@pytest.mark.spark
def test_spark_joins_by_itself(shop: Path) -> None:
    assert python(_SPARK.format(name=NAME)) > 0


def test_down_of_what_is_down_is_well(shop: Path) -> None:
    assert waltz("down", "--dir", str(shop)).startswith(f"cluster {NAME} is down; its data stays in ")
    assert of_directory(shop) == []
    assert waltz("down", "--dir", str(shop)).startswith(f"cluster {NAME} was down already; ")
    assert "holds no cluster" in waltz("down", "--dir", str(shop.parent), code=1)


@pytest.mark.parametrize("phase", ["starting Ray", "starting ZooKeeper", "waiting for"])
def test_an_interrupted_up_leaves_nothing_running(tmp_path: Path, phase: str) -> None:
    directory = tmp_path / "c"
    up = start(sys.executable, "-m", "waltz_ray", "up", "--dir", str(directory))
    assert up.stderr is not None
    for line in up.stderr:
        if line.startswith(phase):
            break
    up.send_signal(signal.SIGTERM)
    assert ended(up, 130).splitlines()[-1] == "waltz: interrupted; nothing was left running"
    assert of_directory(tmp_path) == []
    known = cluster_file.read(directory)
    assert known is None or not known.running
