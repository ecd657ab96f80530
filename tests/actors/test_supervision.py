"""Where an actor may run is said when it is made."""

from __future__ import annotations

from typing import Any

import pytest

from waltz_ray.actors import supervision


class _Made:
    """What ``ray.remote`` gives, which makes nothing."""

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}

    def options(self, **options: Any) -> _Made:
        self.asked = options
        return self

    def remote(self, *arguments: object) -> None:
        return


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
