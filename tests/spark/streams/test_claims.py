"""One local service for a category of a root: two of them are refused, in one file and in two processes."""

from __future__ import annotations

import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from waltz_spark.streams.claims import CLAIMS, root_identity
from waltz_spark.streams.files import LocalFiles
from waltz_spark.streams.services import StreamService
from waltz_spark.streams.settings import StreamSettings

from tests.spark.streams.memory_files import MemoryFiles
from tests.spark.streams.world import NOW, World
from waltz_ray.coordination.memory import MemoryZooKeeperServer
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import ConfigError

PATIENCE_S = 60


class Died(BaseException):
    """A run ends here."""


def test_the_second_is_refused_and_may_come_when_the_first_has_gone() -> None:
    files, server = MemoryFiles(), MemoryZooKeeperServer()
    world = World(files, "/x")
    tokyo = world.settings["tokyo"]

    def service(settings: StreamSettings) -> StreamService:
        return StreamService(settings, server.client(), lambda root: files, lambda: NOW)

    other = replace(tokyo, name="other", zookeeper_root="/elsewhere")
    with service(tokyo) as one, service(other) as two, service(replace(other, categories=("shop",))) as three:
        assert len(one.run_once().committed) == 2
        for _ in range(2):
            with pytest.raises(ConfigError, match="databus/tokyo takes the same categories from /x/a"):
                two.run_once()
        with pytest.raises(ConfigError, match="the same categories"):
            three.run_once()  # tokyo takes all
        one.close()
        three.run_once()
        with pytest.raises(ConfigError, match="the same categories"):
            one.run_once()
        with service(replace(tokyo, categories=("bank",))) as four:
            four.run_once()
    assert server.client().children(f"{CLAIMS}/{root_identity(files, '/x/a')}") == []
    world.finish(server.client())
    assert world.problems(server.client()) == []


def test_what_a_killed_one_began_is_carried_through_first() -> None:
    files, server = MemoryFiles(), MemoryZooKeeperServer()
    world = World(files, "/x")

    def die(point: str) -> None:
        if point == "after TRANS_MV_COMPLETE":
            raise Died

    client = server.client()
    with pytest.raises(Died):
        StreamService(world.settings["tokyo"], client, lambda root: files, lambda: NOW, die).run_once()
    renamed = replace(world.settings["tokyo"], name="kyoto")
    refused = pytest.raises(ConfigError, match="is in flight in thread tokyo; carry it through first")
    with StreamService(renamed, client, lambda root: files, lambda: NOW) as service, refused:
        service.run_once()
    client.delete("/databus/kyoto")
    world.finish(client)
    assert world.problems(client) == []


def test_the_same_root_is_the_same_wherever_it_is_seen(tmp_path: Path) -> None:
    for name in ("disk", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "mount").symlink_to(tmp_path / "disk")
    files = LocalFiles()
    there = root_identity(files, str(tmp_path / "disk"))
    assert root_identity(files, str(tmp_path / "mount")) == there
    assert root_identity(files, str(tmp_path / "other")) != there


def test_two_processes(tmp_path: Path, zookeeper_server: str) -> None:
    node = f"/{uuid.uuid4().hex}"
    world = World(LocalFiles(), str(tmp_path), node)
    config = tmp_path / "other.toml"
    config.write_text(
        f'zookeeper = "{zookeeper_server}"\nzookeeper_root = "{node}-other"\n'
        f'[roots]\na = "{world.root("tokyo")}"\n[services.other]\nkind = "local"\nroot = "a"\n'
    )
    zookeeper = KazooZooKeeper(zookeeper_server)
    command = [sys.executable, "-m", "waltz_spark.streams", "run", "--once", "--config", str(config)]
    try:
        with world.service("tokyo", zookeeper) as service:
            service.run_once()
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
            assert done.returncode == 1
            assert "takes the same categories" in done.stderr
        assert subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False).returncode == 0
        world.finish(zookeeper)
        assert world.problems(zookeeper) == []
    finally:
        zookeeper.close()
