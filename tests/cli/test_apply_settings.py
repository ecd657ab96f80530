"""``waltz apply`` on a cluster that runs, under load: TLS comes to one that has none, and goes; nothing is lost."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
import yaml

import waltz_ray
from tests.cli.test_lifecycle import Lifecycle, until
from tests.cli.test_members import PARTITIONS, Load
from tests.cli.test_upgrade import pids
from waltz_ray import kv
from waltz_ray.actors.peers import PeerReplica
from waltz_ray.config import ClientConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import PeerUnavailable
from waltz_ray.security.certificates import make_certificates
from waltz_ray.security.handshakes import Keyring
from waltz_ray.security.secret_file import SecretFile

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(900)]


class Deployed(Lifecycle):
    """The cluster of a deployment file, which ``say`` writes."""

    @property
    def path(self) -> str:
        return f"{self.directory}.yaml"

    def say(self, **sections: object) -> None:
        shape = {"name": "applied", "directory": str(self.directory), "partitions": PARTITIONS, "ray": {"address": ""}}
        with open(self.path, "w") as file:
            yaml.safe_dump({**shape, "kv": {"actors": 2}, **sections}, file)

    def apply(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(
            self.waltz("apply", "--config", self.path, "--json", *arguments, code=code).stdout
        )
        return told


@pytest.fixture
def life(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    life = Deployed(tmp_path_factory.mktemp("applied") / "cluster")
    try:
        life.say()
        life.apply()
        yield life
    finally:
        life.end()


def told_of_plain(life: Deployed) -> list[str]:
    """What each replica says to who comes without TLS."""
    zookeeper, found = KazooZooKeeper(life.file().zookeeper), []
    try:
        for number, replica in ClusterStore(zookeeper, "applied").replicas().items():
            keyring = Keyring.of_reader(SecretFile(f"{life.directory}/cluster.secret"))
            with closing(PeerReplica(number, replica.endpoint, "test", keyring)) as plain:
                try:
                    plain.read(0, 0, 1, 100)
                    found.append("read")
                except PeerUnavailable as error:
                    found.append(str(error))
    finally:
        zookeeper.close()
    return found


def test_tls_comes_and_goes_under_load(life: Deployed) -> None:
    files = life.directory.parent / "certificates"
    make_certificates(files, ["127.0.0.1"], [], 30)
    own = {"tls_certificate": str(files / "server.pem"), "tls_key": str(files / "server.key")}
    authority = str(files / "authority.pem")
    before, load = pids(life), Load(life)
    with kv.connect("applied", directory=str(life.directory)) as items:
        items.set("plain", 1)

    life.say(
        server={**own, "tls_authority": authority, "connections": 1000},
        storage={**own, "tls_authority": authority, "tls_only": True},
        kv={"actors": 2, **own},
        http=own,
    )
    planned = life.apply("--dry-run")["changes"]
    assert {each["verb"] for each in planned} == {"change"}
    assert "storage.tls_only" in {each["what"] for each in planned}
    assert pids(life) == before

    command = [sys.executable, "-m", "waltz_ray", "apply", "--config", life.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as applying:
        until(lambda: pids(life)["server/0"] != before["server/0"], "the first is another one", 120)
        applying.send_signal(signal.SIGINT)
        applying.communicate(timeout=60)
        assert applying.returncode == 130
    assert "an upgrade, or a change of settings" in life.waltz("doctor", "--dir", str(life.directory), code=1).stdout
    life.apply()
    assert life.apply()["changes"] == [], "again: nothing to change"
    assert "no problem" in life.waltz("doctor", "--dir", str(life.directory)).stdout
    assert all("takes TLS only" in each for each in told_of_plain(life))
    config = life.status()["config"]
    assert (config["server"]["connections"], config["storage"]["tls_only"]) == (1000, True)
    tls = ClientConfig(tls_authority=authority)
    with waltz_ray.connect(directory=str(life.directory), config=tls) as client:
        client.append(0, b"over TLS").result(30)
    with kv.connect(
        "applied", directory=str(life.directory), config=kv.KvClientConfig(tls=True, tls_authority=authority)
    ) as items:
        assert items.get("plain") == 1
        items.set("encrypted", 2)

    nothing = {"tls_certificate": "", "tls_key": ""}
    life.say(
        server={**nothing, "tls_authority": ""},
        storage={**nothing, "tls_authority": "", "tls_only": False},
        kv={"actors": 2, **nothing},
        http=nothing,
    )
    life.apply()
    assert told_of_plain(life) == ["read"] * 3
    with kv.connect("applied", directory=str(life.directory)) as items:
        assert [items.get("plain"), items.get("encrypted")] == [1, 2]
    load.end()
    with waltz_ray.connect(directory=str(life.directory)) as client:
        for p, committed in load.committed.items():
            found = {each.transaction_id: each.data for each in client.feed(p)}
            assert committed.items() <= found.items()
    assert min(map(len, load.committed.values())) > 0


def test_settings_with_which_servers_do_not_begin_are_put_right(life: Deployed) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        life.say(server={"port": taken.getsockname()[1]})
        command = [sys.executable, "-m", "waltz_ray", "apply", "--config", life.path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as applying:
            until(lambda: "cannot listen" in life.status()["servers"]["0"]["reason"], "the first does not begin", 120)
            applying.send_signal(signal.SIGINT)
            applying.communicate(timeout=60)
        life.say(server={"port": 0})
        assert {each["what"] for each in life.apply()["changes"]} == {"server.port"}
    assert life.status()["config"]["server"]["port"] == 0
    assert "no problem" in life.waltz("doctor", "--dir", str(life.directory)).stdout
