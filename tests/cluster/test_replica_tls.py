"""A cluster whose replicas take TLS only: it commits, loses a server and a replica, and its log is read over TLS."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.cluster.harness import Cluster
from waltz_ray.actors.peers import PeerReplica
from waltz_ray.client.readers.ranges import Range
from waltz_ray.client.readers.reading import Reading
from waltz_ray.config import StorageConfig
from waltz_ray.connecting import connect
from waltz_ray.errors import PeerUnavailable
from waltz_ray.security.certificates import make_certificates
from waltz_ray.security.handshakes import Keyring

pytestmark = pytest.mark.cluster


def test_it_commits_and_recovers_and_is_read_over_tls(tmp_path: Path, zookeeper_server: str) -> None:
    files = tmp_path / "certificates"
    make_certificates(files, ["127.0.0.1"], [], 2)
    storage = StorageConfig(
        preallocate_bytes=0,
        tls_certificate=str(files / "server.pem"),
        tls_key=str(files / "server.key"),
        tls_authority=str(files / "authority.pem"),
        tls_only=True,
    )
    with Cluster(tmp_path / "c", zookeeper_server, storage=storage) as cluster:
        with connect(cluster.name, zookeeper=cluster.zookeeper) as client:
            cluster.wait_members(0, {0, 1, 2})
            for number in range(20):
                client.append(0, bytes(100_000) + b"%d" % number).result(20)
            cluster.stop_replica(2)
            cluster.start_server(2)
            cluster.stop_server(1)
            cluster.place()
            assert client.append(0, b"another server has recovered it").result(20) == 20
            cluster.start_replica(2)
            cluster.wait_members(0, {0, 1, 2})
            cluster.stop_replica(0)
            assert client.append(0, b"and the one that was away counts").result(20) == 21
        reading = Reading.of(cluster.zookeeper, cluster.name, "replica", columns=("transaction_id", "data"))
        assert sum(rows.num_rows for rows in pickle.loads(pickle.dumps(reading)).batches([Range(0, 0, 22)])) == 22
        for replica_id, endpoint in cluster.endpoints.items():
            plain = PeerReplica(replica_id, endpoint.endpoint, "test", Keyring.of_reader(cluster.secret))
            with pytest.raises(PeerUnavailable, match="it takes TLS only"):
                plain.read(0, 0, 1, 100)
            assert set(endpoint.statistics().refusals) <= {"unauthenticated", "fenced"}
