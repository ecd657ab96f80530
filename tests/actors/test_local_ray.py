"""The environment of a Ray of our own, and what is ended of it; that it runs is seen by every test with a cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from tests.cluster.harness import wait_until
from waltz_ray.actors import local_ray
from waltz_ray.errors import InvalidInput
from waltz_ray.finding.cluster_file import LocalRay


class Session:
    """Whose leader has ended, or lives: what is left of a killed head, or somebody's who has got its number."""

    def __init__(self, directory: Path, leader: str) -> None:
        command = "sleep 100 & echo $!" if leader == "has ended" else "sleep 100 & echo $!; wait"
        self.leader = subprocess.Popen(
            ["sh", "-c", command], cwd=directory, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.leader.stdout is not None
        self.member = psutil.Process(int(self.leader.stdout.readline()))
        if leader == "has ended":
            self.leader.wait(20)

    @property
    def alive(self) -> bool:
        return bool(self.member.is_running() and self.member.status() != psutil.STATUS_ZOMBIE)

    def close(self) -> None:
        if self.alive:
            self.member.kill()
        self.leader.wait(20)
        assert self.leader.stdout is not None
        self.leader.stdout.close()


@pytest.fixture(params=["has ended", "lives"])
def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Session]]:
    """Somebody's, and one of ours."""
    (tmp_path / "ours").mkdir()
    made = [Session(place, request.param) for place in (tmp_path, tmp_path / "ours")]
    yield made
    for each in made:
        each.close()


def test_who_has_the_number_of_a_head_of_before_is_left_alone(sessions: list[Session], tmp_path: Path) -> None:
    """As after a start of the machine, or of a container: ``waltz up`` ends what a killed head has left."""
    somebodys, ours = sessions
    for session in (somebodys, ours):
        head = LocalRay("LOCALHOST:1", "", session.leader.pid, 1.0, str(tmp_path / "ours" / "ray"))
        assert head.process() is None
        local_ray.stop(head)
    wait_until(lambda: not ours.alive, "it has ended", 20)
    assert somebodys.alive


def test_nor_is_it_ended_for_a_head_whose_directory_an_earlier_version_did_not_write_down(
    sessions: list[Session],
) -> None:
    for session in sessions:
        local_ray.stop(LocalRay("LOCALHOST:1", "", session.leader.pid, 1.0))
        assert session.alive


def test_a_token_of_somebody_else_s_ray_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ray start` asks for one where ~/.ray has it, and ray.init(address=...) would not send it."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert local_ray._environment(1, 2)["RAY_AUTH_MODE"] == "disabled"
    assert "RAY_ENABLE_AUTO_CONNECT" not in local_ray._environment(1, 2), "jobs on it are the user's"
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert local_ray._environment(1, 2)["RAY_AUTH_MODE"] == "token"


def test_a_ray_of_another_user_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(process: psutil.Process) -> None:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "terminate", refused)
    session = Session(tmp_path, "lives")
    started_at = psutil.Process(session.leader.pid).create_time()
    with closing(session), pytest.raises(InvalidInput, match=f"pid {session.leader.pid}. is another user's: end it"):
        local_ray.stop(LocalRay("LOCALHOST:1", "", session.leader.pid, started_at, str(tmp_path)))
