"""Settings of a cluster that runs: changed with the restart that they need, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest

from waltz_ray.actors.settings import from_json
from waltz_ray.config import ClusterConfig, within_bounds
from waltz_ray.coordination.api import Write
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.coordination.settings_store import SettingsStore
from waltz_ray.coordination.upgrade_store import UpgradeStore
from waltz_ray.errors import CoordinationError
from waltz_ray.protocol.cluster_members import ClusterMembers
from waltz_ray.protocol.rolling import RollingUpgrade

FIRST: dict[str, Any] = {
    "config": {"servers": 2, "server": {"port": 1}, "http": {"port": 2}},
    "placement": {"0": "here"},
}
UPGRADE = RollingUpgrade({"server/0": 7})


@pytest.fixture
def client() -> MemoryZooKeeper:
    client = MemoryZooKeeperServer().client()
    ClusterStore(client, "c").initialize(4, [0, 1, 2], FIRST)
    return client


def kept(client: MemoryZooKeeper) -> object:
    return ClusterStore(client, "c").info().settings


def test_a_section_is_replaced_and_the_rest_stays(client: MemoryZooKeeper) -> None:
    SettingsStore(client, "c").change({"server": {"port": 1}}, {"server": {"port": 9}}, UPGRADE)
    assert kept(client) == FIRST | {"config": {"servers": 2, "server": {"port": 9}, "http": {"port": 2}}}
    assert UpgradeStore(client, "c").read() == UPGRADE


def test_what_an_older_version_did_not_keep_has_its_default(client: MemoryZooKeeper) -> None:
    change = SettingsStore(client, "c").change
    change({"server": {"port": 1, "newer": 0}, "newest": {"a": 1}}, {"newest": {"a": 2}}, UPGRADE)
    assert kept(client) == FIRST | {"config": {**FIRST["config"], "newest": {"a": 2}}}


def test_a_setting_that_an_older_version_took_and_this_one_refuses_is_read_and_changed() -> None:
    client, config = MemoryZooKeeperServer().client(), asdict(ClusterConfig())
    old = {"config": {**config, "topics": {**config["topics"], "client_ms": 100}}, "placement": {}}
    ClusterStore(client, "c").initialize(4, [0, 1, 2], old)
    seen = asdict(from_json(ClusterStore(client, "c").info().settings).config)["topics"]
    assert seen["client_ms"] == 1000, "the least by now"
    store = SettingsStore(client, "c", within_bounds)
    store.change({"topics": seen}, {"topics": {**seen, "client_ms": 2000}}, UPGRADE)
    assert from_json(ClusterStore(client, "c").info().settings).config.topics.client_ms == 2000


def test_nothing_is_done_where_others_were_faster(client: MemoryZooKeeper) -> None:
    with pytest.raises(CoordinationError, match="changed by somebody else meanwhile"):
        SettingsStore(client, "c").change({"server": {"port": 3}}, {"server": {"port": 9}}, UPGRADE)
    assert kept(client) == FIRST
    assert UpgradeStore(client, "c").read() is None


def test_nothing_is_done_while_an_upgrade_is_under_way(client: MemoryZooKeeper) -> None:
    UpgradeStore(client, "c").write(UPGRADE)
    with pytest.raises(CoordinationError, match="finish it with waltz upgrade --rolling"):
        SettingsStore(client, "c").change({"server": {"port": 1}}, {"server": {"port": 9}}, RollingUpgrade({}))
    assert kept(client) == FIRST
    assert UpgradeStore(client, "c").read() == UPGRADE


def test_a_change_may_take_the_place_of_an_upgrade_that_is_under_way(client: MemoryZooKeeper) -> None:
    for port, upgrade in ((9, UPGRADE), (10, RollingUpgrade({"server/1": 8}, 1))):
        before = {"server": {"port": 1 if port == 9 else 9}}
        SettingsStore(client, "c").change(before, {"server": {"port": port}}, upgrade, instead=True)
        assert UpgradeStore(client, "c").read() == upgrade
        assert f"'port': {port}" in str(kept(client))


def test_a_member_that_comes_meanwhile_stays(client: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are in one node: the change looks again."""
    write_all, came = client.write_all, list[ClusterMembers]()

    def slow(writes: Sequence[Write]) -> None:
        if not came:
            came.append(ClusterStore(client, "c").members.change(lambda members: members.with_server()))
        write_all(writes)

    monkeypatch.setattr(client, "write_all", slow)
    SettingsStore(client, "c").change({"server": {"port": 1}}, {"server": {"port": 9}}, UPGRADE)
    assert ClusterStore(client, "c").info().members == came[0]
    assert "'port': 9" in str(kept(client))
