"""Who belongs to a cluster, changed without its processes: what ZooKeeper and the cluster's directory say then."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from waltz_ray.actors.settings import Settings, to_json
from waltz_ray.cli import members as of_command_line
from waltz_ray.config import ClusterConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.coordination.upgrade_store import UpgradeStore
from waltz_ray.errors import (
    CoordinationError,
    InvalidInput,
    PartitionNotReady,
    RayNotRunning,
    StorageError,
    ZooKeeperUnreachable,
)
from waltz_ray.finding import cluster_file
from waltz_ray.finding.cluster_file import ClusterFile
from waltz_ray.members import Members
from waltz_ray.protocol.placement import Assignment, Owner
from waltz_ray.protocol.rolling import RollingUpgrade


class OwnMembers(Members):
    """Over a ZooKeeper in memory; nothing has to be found."""

    def __init__(self, directory: Path) -> None:
        found: Any = SimpleNamespace(directory=str(directory))
        config = ClusterConfig("demo", str(directory), 2, 4, 2, replication=3)
        store = ClusterStore(MemoryZooKeeper(MemoryZooKeeperServer()), "demo")
        store.initialize(2, range(4), to_json(Settings(config, dict.fromkeys(range(4), "CPU"))), 3)
        cluster_file.write(ClusterFile("demo", str(directory), 2, 4, 2, replication=3))
        self._store, self._found, self.store = store, found, store


def test_a_change_is_noted_in_the_clusters_directory(tmp_path: Path) -> None:
    members = OwnMembers(tmp_path)
    assert members.add_server() == 2
    noted = cluster_file.read(tmp_path)
    assert noted is not None
    assert noted.servers == 3


def test_a_directory_that_cannot_be_written_is_no_reason_to_make_a_change_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever was told that it failed would add another one."""
    members = OwnMembers(tmp_path)

    def refused(cluster: ClusterFile) -> None:
        raise StorageError("cluster.json cannot be written: Read-only file system")

    monkeypatch.setattr(cluster_file, "write", refused)
    with caplog.at_level(logging.WARNING):
        assert members.add_server() == 2
    assert "the change was made, and is not noted in the directory" in caplog.text
    members.drain_server(2)
    members.prefer([0], 1)
    members.drain_server(1)
    members.remove_server(1)
    assert members.membership.servers == {0, 2}
    assert members.store.preferred(1) == (), "what comes behind the file is done, too"


def test_a_change_beside_a_waltz_up_or_down_leaves_the_clusters_file_to_that(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it had read before could say for ever that a cluster runs which was just ended."""
    members = OwnMembers(tmp_path)
    before = cluster_file.read(tmp_path)
    with caplog.at_level(logging.WARNING), cluster_file.alone(tmp_path):
        assert members.add_server() == 2
        assert cluster_file.read(tmp_path) == before
    assert "is not noted in the directory until the next waltz up: a waltz up or down of" in caplog.text
    assert members.add_server() == 3
    noted = cluster_file.read(tmp_path)
    assert noted is not None
    assert noted.servers == 4


def test_a_server_is_not_drained_kept_or_removed_beside_who_changes_the_cluster(tmp_path: Path) -> None:
    """A rolling upgrade would keep the server that it has drained itself, whoever else wants it drained."""
    members = OwnMembers(tmp_path)
    with members.admin_lock("upgrade, pid 7"):
        for change in (members.drain_server, members.keep_server, members.remove_server):
            with pytest.raises(CoordinationError, match="the admin lock is held by upgrade, pid 7"):
                change(1)
        members.drain_server_under_lock(1)
        members.keep_server_under_lock(1)
    assert members.membership.draining_servers == frozenset()
    upgrades = UpgradeStore(members.store.zookeeper, "demo")
    upgrades.write(RollingUpgrade({"server/1": 4711}, drained=1))
    with pytest.raises(InvalidInput, match="server 1 is drained for an upgrade that was interrupted"):
        members.drain_server(1)
    members.drain_server(0)
    upgrades.end()
    members.keep_server(0)
    members.drain_server(1)
    assert members.membership.draining_servers == {1}


def test_what_is_no_whole_number_never_gets_into_zookeeper(tmp_path: Path) -> None:
    """Nobody could read the nodes any more, the manager included: of 1.0 they would say "1.0"."""
    members = OwnMembers(tmp_path)
    wrong: Any
    for wrong in (1.0, True, "1", None):
        changes: list[Callable[..., object]] = [
            lambda wrong=wrong: members.move([wrong], [0, 1, 2]),
            lambda wrong=wrong: members.move([0], [0, wrong, 2]),
            lambda wrong=wrong: members.prefer([wrong], 1),
            lambda wrong=wrong: members.prefer([0], wrong),
            lambda wrong=wrong: members.drain_replica(wrong),
            lambda wrong=wrong: members.drain_server(wrong),
        ]
        for change in changes:
            with pytest.raises(InvalidInput, match="must be an integer, not"):
                change()
    numbers: Any = np.arange(3)
    assert members.move(numbers[1:2], numbers) == {1: frozenset((0, 1, 2))}
    members.prefer(numbers[:1], numbers[1])
    members.drain_server(numbers[0])
    assert members.store.moves.read().wanted == {1: frozenset((0, 1, 2))}
    assert members.store.preferred(1) == (0,)
    assert members.membership.draining_servers == {0}


def test_two_who_say_at_once_where_partitions_are_to_be_served_are_both_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = OwnMembers(tmp_path)
    client, meanwhile = members.store.zookeeper, [lambda: members.prefer([1], 0)]
    set_node = client.set

    def overtaken(path: str, data: bytes, version: int) -> int:
        while meanwhile:
            meanwhile.pop()()
        return set_node(path, data, version)

    monkeypatch.setattr(client, "set", overtaken)
    members.prefer([0], 0)
    assert sorted(members.store.preferred(0)) == [0, 1]
    members.prefer([0], 1)
    assert (members.store.preferred(0), members.store.preferred(1)) == ((1,), (0,))


def test_a_partition_whose_space_is_being_made_is_waited_for(tmp_path: Path) -> None:
    """The manager makes what it needs in ZooKeeper a moment later: that is no error of who asks for a move."""
    members, told = OwnMembers(tmp_path), list[str]()
    members.store.spaces.create("orders", 1)
    assert members.move([2], [1, 2, 3]) == {2: frozenset((1, 2, 3))}
    assert members.waits_for([0, 2]) == {2: "its space is being made"}

    def progress(text: str) -> None:
        told.append(text)
        members.store.spaces.finish(3)
        members.store.moves.done(2, frozenset((1, 2, 3)))

    members.wait_until_moved([2], progress, 30)
    assert told == ["0 of 1 partitions are moved; partition 2: its space is being made"]


def test_who_waits_is_told_that_somebody_else_has_wanted_something_else_meanwhile(tmp_path: Path) -> None:
    """Else it would be told that it is done, or wait for an hour for what nobody wants any more."""
    members = OwnMembers(tmp_path)
    moves = members.store.moves

    def waiting(wait: Callable[..., None], *what: Any, does: Callable[[], object]) -> None:
        def progress(text: str) -> None:
            does()
            moves.forget(range(2))  # what the manager does when all are where they are to be

        with pytest.raises(CoordinationError) as refused:
            wait(*what, progress, 30)
        told.append(str(refused.value))

    told = list[str]()
    members.drain_replica(0)
    waiting(members.wait_until_replica_has_none, 0, does=lambda: members.keep_replica(0))
    members.move([1], [1, 2, 3])
    waiting(members.wait_until_on, [1], [1, 2, 3], does=lambda: members.move([1], [0, 2, 3]))
    members.store.set_assignment(Assignment({0: Owner(0, 1)}, {}), members.store.assignment()[1])
    members.prefer([0], 1)
    waiting(members.wait_until_served, [0], 1, does=lambda: members.prefer([0], 0))
    members.prefer([0], 1)
    waiting(members.wait_until_served, [0], 1, does=lambda: members.drain_server(1))
    members.keep_server(1)
    members.drain_server(0)
    waiting(members.wait_until_server_has_none, 0, does=lambda: members.keep_server(0))
    here = ", ".join(map(str, sorted(members.sets()[1])))
    assert told == [
        "replica 0 stays: somebody else has said so meanwhile (waltz replica drain 0 --cancel)",
        f"partition 1 is on replicas {here}, not 1, 2, 3: somebody else has moved it meanwhile",
        "partition 0 is to be served by another server: somebody else has said so meanwhile",
        "server 1 is given nothing: somebody else has drained it meanwhile",
        "server 0 stays: somebody else has said so meanwhile (waltz server drain 0 --cancel)",
    ]


def test_no_replica_is_removed_while_a_manager_may_be_about_to_give_it_a_partition(tmp_path: Path) -> None:
    """It was paused when it had read who belongs to the cluster, and goes on when the replica has been drained."""
    members = OwnMembers(tmp_path)
    members.store.spaces.create("orders", 2)
    before = members.membership
    members.drain_replica(3)
    members.store.moves.forget(range(4))
    for p in range(2):
        roster, version = members.store.roster(p)
        members.store.set_roster(p, roster.with_replicas(range(3)), version)
    with pytest.raises(InvalidInput, match="partition 2 is being made, and may be given to it; try again when"):
        members.check_replica_removal(3)
    with pytest.raises(InvalidInput, match="partition 2 is being made"):
        members.remove_replica(3)
    after = members.membership
    members.store.members.change(lambda _: before)
    members.store.spaces.finish(4)
    members.store.members.change(lambda _: after)
    assert 3 in members.sets()[2] | members.sets()[3]
    with pytest.raises(InvalidInput, match="partitions are on it; drain it first"):
        members.remove_replica(3)


@pytest.mark.parametrize("added", [True, False])
def test_who_interrupts_an_addition_is_told_whether_there_is_one_more(
    added: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else he gives the same command again, and has two."""

    def interrupted(members: OwnMembers) -> int:
        if added:
            members.store.members.change(lambda now: now.with_server())
        raise KeyboardInterrupt

    monkeypatch.setattr(OwnMembers, "add_server", interrupted)
    monkeypatch.setattr(OwnMembers, "close", lambda members: None)
    monkeypatch.setattr(of_command_line, "open_members", lambda *where: OwnMembers(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        of_command_line.add_server()
    assert ("server 2 has been added" in capsys.readouterr().err) is added


def away(monkeypatch: pytest.MonkeyPatch, store: Any, method: str, times: int) -> None:
    """The next so many calls find no ZooKeeper."""
    call, left = getattr(store, method), [*range(times)]

    def called(*arguments: Any) -> Any:
        if left and left.pop() >= 0:
            raise ZooKeeperUnreachable("ConnectionLoss")
        return call(*arguments)

    monkeypatch.setattr(store, method, called)


def test_who_waits_for_what_takes_hours_waits_for_zookeeper_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("waltz_ray.members._POLL_S", 0.0)
    members = OwnMembers(tmp_path)
    away(monkeypatch, members.store.moves, "read", 2)
    told: list[str] = []
    members.wait_until_moved([0], told.append, 60)
    assert told == ["ZooKeeper does not answer just now (ConnectionLoss)"]
    away(monkeypatch, members.store.moves, "read", 100)
    with pytest.raises(PartitionNotReady, match=r"not done after 0 s: ZooKeeper does not answer .* the same command"):
        members.wait_until_moved([0], told.append, 0)


def test_who_waits_for_one_more_that_was_added_is_told_so_where_zookeeper_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same command, given again because of an error that does not say so, would add another one."""
    members = OwnMembers(tmp_path)
    monkeypatch.setattr(of_command_line, "open_members", lambda *where: members)
    monkeypatch.setattr(Members, "close", lambda self: None)
    away(monkeypatch, members.store, "servers", 100)
    with pytest.raises(PartitionNotReady, match=r"ZooKeeper does not answer just now .* it is added, and"):
        of_command_line.add_server(timeout=0)
    assert members.membership.servers == {0, 1, 2}


@pytest.mark.parametrize("added", [False, True])
def test_whom_an_error_ends_is_told_of_one_more_that_was_added(
    added: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where Ray's head is started again while its actor is waited for."""
    members = OwnMembers(tmp_path)
    monkeypatch.setattr(of_command_line, "open_members", lambda *where: members)
    monkeypatch.setattr(Members, "close", lambda self: None)

    def gone(self: Members) -> Any:
        raise RayNotRunning("the head of the Ray at x does not answer")

    monkeypatch.setattr(Members, "servers" if added else "add_server", gone)
    with pytest.raises(RayNotRunning):
        of_command_line.add_server()
    told = capsys.readouterr().err
    assert ("waltz: server 2 has been added" in told) is added
    assert members.membership.servers == ({0, 1, 2} if added else {0, 1})
