"""A deployment file as its operator uses it: a Ray job, twice; the difference; a change while it runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operate.jobs import Ray, ray_with_dashboard
from waltz_ray import Spaces, connect

pytestmark = [pytest.mark.cluster, pytest.mark.long]
JOB = ("python", "deploy/bring_up.py", "--config")


@pytest.fixture
def ray_head_of_our_own(tmp_path: Path) -> Iterator[Ray]:
    with ray_with_dashboard(tmp_path) as ray:
        yield ray


def text_of(directory: Path, more: str = "") -> str:
    return f"""
name: deployed
directory: {directory}/cluster
partitions: 2
servers: 2
disks:
  - {{directory: {directory}/disk-a}}
  - {{directory: {directory}/disk-b}}
  - {{}}
server: {{connections: 100}}
kv: {{actors: 1}}
spaces:
  orders: {{partitions: 2, retention_ms: 3600000}}
{more}"""


def test_a_job_brings_a_cluster_up_and_applies_what_is_changed(tmp_path: Path, ray_head_of_our_own: Ray) -> None:
    ray, file = ray_head_of_our_own, tmp_path / "cluster.yaml"
    file.write_text(text_of(tmp_path))
    dry = ray.waltz("apply", "--config", str(file), "--dry-run")
    assert dry.stdout.startswith(f"+ name: deployed  (a new cluster, in {tmp_path}/cluster)\n"), dry.stderr

    first = ray.submit(*JOB, str(file))
    assert first.returncode == 0, first.stdout + first.stderr
    assert "+ name: deployed  (a new cluster)" in first.stdout
    assert "+ spaces.orders: kind log, partitions 2, retention_ms 3600000" in first.stdout
    for replica_id, disk in enumerate(("disk-a", "disk-b", "cluster")):
        assert (tmp_path / disk / f"replica-{replica_id}" / "waltz-storage.ctl").is_file()

    second = ray.submit(*JOB, str(file))
    assert second.returncode == 0, second.stdout + second.stderr
    assert "cluster deployed is as the file says: nothing to change" in second.stdout

    zookeeper = json.loads(ray.waltz("status", "--dir", f"{tmp_path}/cluster", "--json").stdout)["zookeeper"]
    with connect("deployed", zookeeper=zookeeper, space="orders") as client:
        assert client.append_many(1, [b"x"] * 10).result(30)[-1] == 9
        changed = "  clicks: {partitions: 1}\nhttp: {interval_ms: 500}\n"
        file.write_text(text_of(tmp_path, changed))
        refused = ray.submit(*JOB, str(file))
        assert refused.returncode != 0
        line = file.read_text().splitlines().index("http: {interval_ms: 500}") + 1
        told = f"{file}:{line}: http.interval_ms is 2000, not 500: was decided when the cluster was made"
        assert told in refused.stdout
        with Spaces("deployed", zookeeper=zookeeper) as spaces:
            assert {space.name for space in spaces.list()} == {"log", "kv", "orders"}, "nothing was changed"

        file.write_text(text_of(tmp_path, "  clicks: {partitions: 1}\n").replace("3600000", "7200000"))
        dry = ray.waltz("apply", "--config", str(file), "--dry-run")
        assert dry.stdout.splitlines() == [
            "~ spaces.orders.retention_ms: 3600000 -> 7200000",
            "+ spaces.clicks: kind log, partitions 1",
        ], dry.stderr
        applied = ray.submit(*JOB, str(file), "--json")
        assert applied.returncode == 0, applied.stdout + applied.stderr
        with Spaces("deployed", zookeeper=zookeeper) as spaces:
            found = {space.name: dict(space.settings) for space in spaces.list()}
            assert found["orders"] == {"retention_ms": 7200000}
            assert found["clicks"] == {}
        assert client.append(1, b"after").result(30) == 10
    assert ray.waltz("apply", "--config", str(file), "--dry-run").stdout.startswith("cluster deployed is as the file")
    assert ray.waltz("down", "--dir", f"{tmp_path}/cluster").returncode == 0
