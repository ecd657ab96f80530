"""One ZooKeeper and one Ray for the whole test session; both end with it, also when tests fail."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import settings

from tests.zookeeper_fixture import zookeeper_server

__all__ = ["ray_head", "zookeeper_server"]

# How long an example takes says something about the machine, nothing about the code.
settings.register_profile("waltz_ray", deadline=None)
settings.load_profile("waltz_ray")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write tests/scenarios/*.txt and docs/images anew")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark's tests last: Spark lives as long as this process is joined to the session's Ray, which whoever takes a
    cluster down leaves."""
    items.sort(key=lambda item: "spark" in item.path.relative_to(Path(__file__).parent).parts)


@pytest.fixture(scope="session", autouse=True)
def _nobodys_contexts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The contexts of who runs the tests say nothing about clusters here."""
    with mock.patch.dict(os.environ, XDG_CONFIG_HOME=str(tmp_path_factory.mktemp("configuration"))):
        yield


@pytest.fixture
def whole_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has come at once is worked off in one turn of a loop, however long a loaded machine takes for it."""
    monkeypatch.setattr("waltz_ray.net.stream._TURN_S", 60.0)
    monkeypatch.setattr("waltz_ray.net.backlog._TURN_S", 60.0)


@pytest.fixture(scope="session")
def ray_head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Ray that this process has joined; "127.0.0.1:port"."""
    from waltz_ray.actors import local_ray
    from waltz_ray.finding import ray_lookup

    head = local_ray.start(tmp_path_factory.mktemp("ray"), dashboard=False)
    try:
        yield ray_lookup.join(head.address)
    finally:
        ray_lookup.leave()
        local_ray.stop(head)
