"""``waltz move``, ``rebalance`` and ``replica remove``: what they say; of the cluster there is only its ZooKeeper, in
memory, so that nobody carries anything out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from unittest import mock

import pytest

from tests.cli.test_commands import run
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeperServer
from waltz_ray.members import Members


class MembersInMemory(Members):
    """Of four partitions on three each of four replicas; all on 0, 1 and 2."""

    def __init__(self) -> None:
        zookeeper = MemoryZooKeeperServer().client()
        self._zookeeper, self._store = zookeeper, ClusterStore(zookeeper, "demo")
        self._store.initialize(4, range(3), {}, 3)
        self._store.members.change(lambda each: each.with_replica("waltz-replica-3", each.places[0]).with_server())


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> Iterator[Members]:
    with MembersInMemory() as members:
        again = mock.MagicMock()
        again.return_value.__enter__.return_value = members
        for module in ("move", "members"):
            monkeypatch.setattr(f"waltz_ray.cli.{module}.open_members", again)
        yield members


@pytest.mark.parametrize(
    ("to", "wanted"), [(("--replicas", "0,1,3"), "replicas 0, 1, 3"), (("--to", "server/0"), "server 0")], ids=str
)
def test_a_move_that_is_not_waited_for_is_not_said_to_be_done(
    members: Members, capsys: pytest.CaptureFixture[str], to: tuple[str, str], wanted: str
) -> None:
    assert run("move", "-p", "0", *to, "--timeout", "0") == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "not done after 0 s: " in said.err
    assert run("move", "-p", "0", *to, "--no-wait") == 0
    assert capsys.readouterr().out == f"partition 0 of cluster demo is on its way to {wanted}\n"


def test_a_partition_is_counted_once_where_it_is_and_is_wanted(
    members: Members, capsys: pytest.CaptureFixture[str]
) -> None:
    members.move([0], [0, 1, 3])  # 2 has it still, and 3 is to have it
    for number, held in ((0, 4), (2, 4), (3, 1)):
        assert run("replica", "remove", str(number)) == 1
        assert f"replica {number} cannot be removed: {held} partitions are on it" in capsys.readouterr().err


@pytest.mark.parametrize("how", [("--json",), ()], ids=str)
def test_a_space_that_is_made_while_a_rebalance_is_planned(
    members: Members, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, how: tuple[str, ...]
) -> None:
    monkeypatch.setattr(members, "sets", lambda: {0: frozenset({0, 1, 2})})
    monkeypatch.setattr(members, "rebalanced", lambda: {1: frozenset({1, 2, 3})})
    assert run("rebalance", "--dry-run", *how) == 0
    told = capsys.readouterr().out
    assert json.loads(told) == {"1": {"from": [], "to": [1, 2, 3]}} if how else "1 2 3" in told
