"""The crash and zombie tests with one rule broken at a time: each must be noticed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import pytest
from waltz_spark.streams.commit import CommitThread, Staged
from waltz_spark.streams.files import FilesOf
from waltz_spark.streams.layout import join, tmp_path
from waltz_spark.streams.services import StreamService
from waltz_spark.streams.settings import StreamSettings
from waltz_spark.streams.states import RECOVERY, Action, PathInFlight, Row, StreamState, ThreadNode, encode_node
from waltz_spark.streams.work import Found

from tests.spark.streams.faults import FaultyFiles, Fuse
from tests.spark.streams.staging import Make, make_service, stage_before
from tests.spark.streams.test_zombies import after_zombie
from tests.spark.streams.world import CHAIN, NOW
from waltz_ray.coordination.api import ZooKeeper


def found_by_crashes(make: Make, name: str, power: bool = False, consumer: bool = True) -> set[str]:
    """The problems that a crash at any change of ``name`` brings to light."""
    start = stage_before(name, make)
    at, crashed, problems = 0, True, set[str]()
    while crashed:
        stage = start.copied()
        crashed = not stage.run(name, Fuse(at))
        if power:
            stage.lose_power()
        if consumer:
            stage.run(CHAIN[CHAIN.index(name) + 1], Fuse())
        problems |= set(stage.problems())
        at += 1
    return problems


def found_by_zombies(make: Make, name: str) -> set[str]:
    start = stage_before(name, make)
    at, slept, problems = 0, True, set[str]()
    while slept:
        found, slept = after_zombie(start, name, at, Fuse(), consumer=True)
        problems |= set(found)
        at += 1
    return problems


def with_thread(kind: Callable[..., CommitThread], recovery: Mapping[StreamState, Row] = RECOVERY) -> Make:
    def make(settings: StreamSettings, zookeeper: ZooKeeper, files_of: FilesOf) -> StreamService:
        service = make_service(settings, zookeeper, files_of)
        service.thread = kind(service.settings, zookeeper, files_of, lambda: NOW, recovery=recovery)
        return service

    return make


class LiteralThread(CommitThread):
    """The Databus page: "START: nothing was done, delete the path and exit"."""

    def _look(self, path: PathInFlight) -> bool:
        return False


class RemovesFirst(CommitThread):
    """The announcement goes before the consumer's own data is committed."""

    def commit(self, staged: Staged) -> None:
        if staged.work.source:
            self.put_away_input(staged.work)
        super().commit(staged)


class NoFence(CommitThread):
    """Older runs keep the directories they rename from."""

    def _fence(self) -> None:
        directory = tmp_path(self.settings.root, self.settings.name)
        self._files.make_directories(directory)
        self._files.make_directory(join(directory, self._run))


class NoVersion(NoFence):
    """Nor is anything looked at before an action, and every write succeeds."""

    def check_held(self) -> None:
        pass

    def _write(self, node: ThreadNode) -> None:
        self._zookeeper.set(self.settings.node, encode_node(node), -1)
        self.node = node


class ForgetfulService(StreamService):
    def is_replay(self, found: Found) -> bool:
        return False


LITERAL_MV_COMPLETE = MappingProxyType({**RECOVERY, StreamState.MOVED: Row(Action.ANNOUNCE, StreamState.SUCCESS)})
"""The Databus page: "MV_COMPLETE: write consumers' paths and exit"."""


@pytest.mark.parametrize("name", CHAIN[:3])
def test_the_unbroken_rules_find_nothing(name: str) -> None:
    assert found_by_crashes(make_service, name) == set()


@pytest.mark.parametrize("name", CHAIN[:3])
def test_the_literal_recovery_of_start_is_caught(name: str) -> None:
    problems = found_by_crashes(with_thread(LiteralThread), name, consumer=False)
    assert any("neither announced" in problem for problem in problems), problems


def test_the_literal_recovery_of_mv_complete_is_caught() -> None:
    problems = found_by_crashes(with_thread(CommitThread, LITERAL_MV_COMPLETE), "tokyo")
    assert any("left in data/" in problem for problem in problems), problems


def test_a_removal_before_the_commit_is_caught() -> None:
    problems = found_by_crashes(with_thread(RemovesFirst), "all")
    assert any(problem.startswith("all: missing") for problem in problems), problems


def test_no_fence_is_caught() -> None:
    assert found_by_zombies(with_thread(NoFence), "tokyo") != set()


def test_no_version_check_is_caught() -> None:
    assert found_by_zombies(with_thread(NoVersion), "tokyo") != set()


def test_no_memory_of_what_was_applied_is_caught() -> None:
    def make(settings: StreamSettings, zookeeper: ZooKeeper, files_of: FilesOf) -> StreamService:
        return ForgetfulService(settings, zookeeper, files_of, lambda: NOW)

    assert any("quarantined" in problem for problem in found_by_crashes(make, "tokyo"))


@pytest.mark.parametrize("name", CHAIN[:3])
def test_no_sync_of_names_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FaultyFiles, "sync_directory", lambda self, path: None)
    assert found_by_crashes(make_service, name, power=True) != set()
