"""Which actors a rolling upgrade has left, and in which order."""

from __future__ import annotations

import pytest

from waltz_ray.errors import InvalidInput
from waltz_ray.protocol.rolling import RollingUpgrade, in_order

BEFORE = {"cluster-manager": 1, "kv/0": 2, "replica/10": 3, "replica/2": 4, "server/0": 5, "server/1": 6, "topic/0": 7}


def test_servers_then_replicas_then_layers_the_manager_last() -> None:
    order = ["server/0", "server/1", "replica/2", "replica/10", "kv/0", "topic/0", "cluster-manager"]
    assert in_order([*BEFORE, "zookeeper"]) == order
    assert RollingUpgrade(BEFORE).left(BEFORE) == order


def test_whose_process_is_another_one_is_done() -> None:
    now = {**BEFORE, "server/0": 50, "replica/2": 40}
    assert RollingUpgrade(BEFORE).left(now) == ["server/1", "replica/10", "kv/0", "topic/0", "cluster-manager"]
    assert RollingUpgrade(BEFORE).left(dict.fromkeys(BEFORE, 99)) == []


def test_who_says_nothing_is_left_and_who_came_or_went_is_not() -> None:
    now: dict[str, int | None] = {"server/0": None, "server/2": 8, "replica/2": 40}
    assert RollingUpgrade(BEFORE).left(now) == ["server/0"]


def test_one_server_is_drained_at_a_time() -> None:
    upgrade = RollingUpgrade(BEFORE).draining(1)
    assert upgrade.draining(1) == upgrade
    with pytest.raises(InvalidInput, match="server 1 is drained for the upgrade; server 0 has to wait"):
        upgrade.draining(0)
    assert upgrade.draining(None) == RollingUpgrade(BEFORE)


def test_it_comes_back_from_its_fields() -> None:
    for upgrade in (RollingUpgrade(BEFORE, 1), RollingUpgrade()):
        assert RollingUpgrade.of_fields(upgrade.fields()) == upgrade


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"before": [], "drained": None},
        {"before": {"server/0": "5"}, "drained": None},
        {"before": {"server/0": True}, "drained": None},
        {"before": {"server/x": 5}, "drained": None},
        {"before": {}, "drained": "0"},
    ],
)
def test_strange_fields_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError, KeyError)):
        RollingUpgrade.of_fields(fields)
