"""Where an actor may run is said when it is made."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest
from ray.exceptions import RuntimeEnvSetupError

from waltz_ray.actors import supervision
from waltz_ray.actors.settings import Settings
from waltz_ray.config import ClusterConfig
from waltz_ray.errors import RuntimeEnvFailed


class _Made:
    """What ``ray.remote`` gives, which makes nothing."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.given: tuple[object, ...] = ()

    def options(self, **options: Any) -> _Made:
        self.asked = options
        return self

    def remote(self, *arguments: object) -> None:
        self.given = arguments


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> _Made:
    found = _Made()
    monkeypatch.setattr("ray.remote", lambda kind: found)
    return found


def test_what_is_tied_to_no_node_keeps_off_those_that_want_none(made: _Made) -> None:
    supervision.ensure_actor(object, "server/0", "waltz-c", (), threads=None)
    assert made.asked["label_selector"] == {"waltz-actors": "!none"}
    assert "resources" not in made.asked


def test_what_is_tied_to_a_disk_is_where_that_is(made: _Made) -> None:
    supervision.ensure_actor(object, "replica/0", "waltz-c", (), threads=4, resource="waltz-replica-0")
    assert made.asked["resources"].keys() == {"waltz-replica-0"}
    assert "label_selector" not in made.asked, "also if its node is labelled"


def test_an_environment_that_cannot_be_set_up_is_told_by_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was Ray's traceback of thirty lines, or a ZooKeeper that did not start."""

    def get(call: object, timeout: float) -> None:
        raise RuntimeEnvSetupError("Traceback ...\nSubprocessCalledProcessError: ...\n    ERROR: no such package\n")

    monkeypatch.setattr(supervision, "find_actor", lambda cluster, name: MagicMock())
    monkeypatch.setattr("ray.get", get)
    with pytest.raises(RuntimeEnvFailed, match=r"runtime_env with which zookeeper of .*made: ERROR: no such package;"):
        supervision.ask("c", "zookeeper", "connect_string", 1.0)


@pytest.mark.parametrize("zookeeper", ["", "z:1"])
def test_the_manager_has_somebody_look_after_an_embedded_zookeeper(
    zookeeper: str, made: _Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that Ray had given up was never made again, though ``waltz doctor`` said so."""
    monkeypatch.setattr(supervision, "ensure_data_plane", lambda settings, zookeeper: None)
    monkeypatch.setattr(supervision, "find_actor", lambda cluster, name: None)
    config = ClusterConfig("c", "/d", 1, 1, 1, zookeeper=zookeeper)
    supervision.RaySupervisor("z:1").ensure(Settings(config, {}))
    if zookeeper:
        assert made.asked == {}
    else:
        assert made.asked["name"] == "zookeeper"
        assert made.asked["resources"].keys() == {"node:__internal_head__"}
        assert made.given == ("/d/zookeeper", 30.0)
