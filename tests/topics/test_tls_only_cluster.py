"""Topic actors of a cluster whose replicas and servers are spoken to by TLS alone, with rights from the beginning."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from tests.security.tls_files import takes_tokens, tls_files
from waltz_ray.bring_up import bring_up
from waltz_ray.cli import main
from waltz_ray.config import ClusterConfig, HttpConfig, KvConfig, StorageConfig, TopicConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.security.certificates import make_certificates
from waltz_ray.spaces import Spaces
from waltz_ray.take_down import take_down_in

pytestmark = [pytest.mark.cluster, pytest.mark.long, pytest.mark.timeout(300)]

NAME = "topicstls"


def secure(directory: Path) -> ClusterConfig:
    """As ``waltz up`` makes it of its flags."""
    make_certificates(directory, ["127.0.0.1"], ["ann"], 2)
    own, key, authority = of_cluster = tls_files(directory)
    rights = directory / "rights.json"
    entries = [{"client": "ann", "space": "*", "may": ["read", "append"]}]
    rights.write_text(json.dumps({"tls_only": True, "clients": {"ann": {}}, "rights": entries}))
    return ClusterConfig(
        NAME,
        str(directory / "cluster"),
        1,
        1,
        1,
        storage=StorageConfig(tls_certificate=own, tls_key=key, tls_authority=authority, tls_only=True),
        server=takes_tokens(of_cluster),
        kv=KvConfig(tls_certificate=own, tls_key=key, tls_clients=authority),
        topics=TopicConfig(actors=1),
        http=HttpConfig(tls_certificate=own, tls_key=key, tls_clients=authority, interval_ms=500),
        rights_file=str(rights),
    )


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    with suppress(SystemExit):
        main([*arguments, "--cluster", NAME])
    return capsys.readouterr().out.split()


def test_topics_are_served_over_tls_and_still_are_after_a_restart(
    ray_head: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = secure(tmp_path)
    for name, file in (("AUTHORITY", "authority.pem"), ("CERTIFICATE", "ann.pem"), ("KEY", "ann.key")):
        monkeypatch.setenv(f"WALTZ_TLS_{name}", str(tmp_path / file))
    try:
        for turn in range(2):
            running = bring_up(config, ray_head, deadline_s=120.0)
            zookeeper = KazooZooKeeper(running.zookeeper)
            try:
                rules = ClusterStore(zookeeper, NAME).access.rules()
            finally:
                zookeeper.close()
            assert rules is not None
            assert rules.tls_only
            where = ("--zookeeper", running.zookeeper)
            if turn == 0:
                with Spaces(NAME, zookeeper=running.zookeeper) as spaces:
                    spaces.create("orders", 1, "topic")
            [sent] = told(capsys, "topic", "produce", "orders", f"message-{turn}", *where)
            assert sent.startswith("0/"), sent
            assert told(capsys, "topic", "consume", "orders", "--group", "g", "--limit", "1", *where) == [
                f"message-{turn}"
            ]
            take_down_in(tmp_path / "cluster")
    finally:
        take_down_in(tmp_path / "cluster")
