"""Where a reader of replicas finds what proves that it may read, and what its tasks get."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.security.keys import SECRET, doorkeeper, secret_in
from waltz_ray.client.readers import replica_access
from waltz_ray.client.readers.reading import Reading
from waltz_ray.client.readers.replica_access import keyring_of
from waltz_ray.errors import ClusterNotFound, ConfigError, SecretUnusable
from waltz_ray.finding import ray_lookup
from waltz_ray.protocol.authentication import Credential, Role
from waltz_ray.security.certificates import make_certificates
from waltz_ray.security.handshakes import TICKET_MS, Keyring, ticket_end_ms


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No environment, no Ray, and ZooKeeper names a file in ``tmp_path``, which is not there."""
    monkeypatch.delenv("WALTZ_SECRET_FILE", raising=False)
    monkeypatch.setattr(ray_lookup, "here", lambda: "")
    config = {"secret_file": str(tmp_path / "c/cluster.secret")}
    monkeypatch.setattr(replica_access._Finder, "_recorded", lambda finder: config)


def is_believed(keyring: Keyring) -> Role | None:
    """By a replica with ``SECRET``; None: no."""
    machine, replica = doorkeeper(7).accept()
    opener = keyring.open(7)
    word = opener.begin()
    while word is not None:
        answer = replica.take(word)
        word = None if answer is None else opener.take(answer)
    return machine.role if opener.done and machine.done else None


def test_the_file_that_zookeeper_names(tmp_path: Path) -> None:
    secret_in(tmp_path / "c")
    assert is_believed(keyring_of("z:1", "c")) is Role.READER


def test_the_file_that_the_environment_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = secret_in(tmp_path / "mine")
    monkeypatch.setenv("WALTZ_SECRET_FILE", file.path)
    assert is_believed(keyring_of("z:1", "c")) is Role.READER


def test_what_a_task_gets_is_a_ticket_and_works_where_there_is_no_file(tmp_path: Path) -> None:
    file = secret_in(tmp_path / "c")
    reading = Reading.of("z:1", "c", "replica")
    travelled = pickle.dumps(reading)
    Path(file.path).unlink()
    assert bytes(range(32)) not in travelled
    again = pickle.loads(travelled)
    assert again == reading
    assert is_believed(again.keyring) is Role.READER
    with pytest.raises(SecretUnusable):
        is_believed(keyring_of("z:1", "c"))


def recorded(monkeypatch: pytest.MonkeyPatch, authority: str) -> None:
    config = {"secret_file": "/nowhere", "storage": {"tls_authority": authority}}
    monkeypatch.setattr(replica_access._Finder, "_recorded", lambda finder: config)


def test_tls_is_spoken_where_the_cluster_says_so_and_by_its_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is the one of the cluster, or a copy that the environment names; where it is not, tasks say so."""
    make_certificates(tmp_path / "node", ["127.0.0.1"], [], 2)
    authority = tmp_path / "node" / "authority.pem"
    monkeypatch.setenv("WALTZ_SECRET_FILE", secret_in(tmp_path / "mine").path)
    monkeypatch.setenv("WALTZ_TLS_AUTHORITY", str(authority))  # of servers: they may have TLS where replicas have none
    assert keyring_of("z:1", "c").context() is None
    recorded(monkeypatch, str(authority))
    monkeypatch.setenv("WALTZ_TLS_AUTHORITY", str(tmp_path / "of-servers.pem"))
    travelled = pickle.dumps(keyring_of("z:1", "c"))
    assert b"BEGIN" not in travelled
    task = pickle.loads(travelled)
    context = task.context()
    assert context is not None
    assert len(context.get_ca_certs()) == 1
    assert task.context() is context, "not one for each connection"
    copy = authority.rename(tmp_path / "copy.pem")
    with pytest.raises(ConfigError, match=f"{authority}, cannot be used: No such file or directory"):
        task.context()
    monkeypatch.setenv("WALTZ_TLS_AUTHORITY", str(copy))
    assert keyring_of("z:1", "c").context() is not None


def test_nothing_is_looked_for_before_the_first_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(finder: object) -> dict[str, str]:
        raise AssertionError("ZooKeeper was asked")

    monkeypatch.setattr(replica_access._Finder, "_recorded", fail)
    assert Reading.of("z:1", "c", "replica").keyring is not None
    assert Reading.of("z:1", "c").keyring is None
    pickle.dumps(Reading.of("z:1", "c"))


def test_without_the_file_the_manager_is_asked_for_a_ticket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is used until half of its time is over."""
    asked: list[str] = []

    def ask(cluster: str) -> Credential:
        asked.append(cluster)
        return SECRET.credential(Role.READER, ticket_end_ms())

    monkeypatch.setattr(ray_lookup, "here", lambda: "LOCALHOST:1")
    monkeypatch.setattr(ray_lookup, "ask_for_ticket", ask)
    keyring = keyring_of("z:1", "c")
    assert is_believed(keyring) is Role.READER
    assert is_believed(keyring) is Role.READER
    assert asked == ["c"]
    later = replica_access._now_ms() + TICKET_MS // 2 + 60_000
    monkeypatch.setattr(replica_access, "_now_ms", lambda: later)
    assert is_believed(keyring) is Role.READER
    assert asked == ["c", "c"]


def test_where_there_is_neither_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SecretUnusable, match=f"{tmp_path}/c/cluster.secret cannot be read .*WALTZ_SECRET_FILE"):
        keyring_of("z:1", "c").open(0)

    def silent(cluster: str) -> Credential:
        raise ClusterNotFound("the manager does not answer")

    monkeypatch.setattr(ray_lookup, "here", lambda: "LOCALHOST:1")
    monkeypatch.setattr(ray_lookup, "ask_for_ticket", silent)
    with pytest.raises(SecretUnusable, match="nor a ticket to be had: the manager does not answer"):
        keyring_of("z:1", "c").open(0)
