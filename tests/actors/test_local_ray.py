"""The environment of a Ray of our own; that it runs is seen by every test with a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import pytest

from waltz_ray.actors import local_ray
from waltz_ray.errors import InvalidInput
from waltz_ray.finding.cluster_file import LocalRay

_LEADER = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "print('lives', flush=True); input()"], stdout=subprocess.PIPE)
print(child.pid, child.stdout.readline().decode().strip(), flush=True)
input()
"""


@contextmanager
def session(tmp_path: Path, environment: dict[str, str]) -> Iterator[tuple[LocalRay, psutil.Process, psutil.Process]]:
    """A session of two processes, as a Ray's is: what ``cluster.json`` would say of it, its leader, and the other."""
    shell = {name: value for name, value in os.environ.items() if name != local_ray.LOOPBACK_ONLY}
    leader = subprocess.Popen(
        [sys.executable, "-c", _LEADER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=shell | environment,
        start_new_session=True,
    )
    assert leader.stdout is not None
    head = psutil.Process(leader.pid)
    other = psutil.Process(int(leader.stdout.readline().split()[0]))
    try:
        yield LocalRay("LOCALHOST:1", "", head.pid, head.create_time(), str(tmp_path)), head, other
    finally:
        for each in (other, head):
            if each.is_running():
                each.kill()
        leader.communicate(timeout=10)


def lives(process: psutil.Process) -> bool:
    """A zombie, where nobody reaps orphans, does not."""
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)


def test_a_token_of_somebody_else_s_ray_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ray start` asks for one where ~/.ray has it, and ray.init(address=...) would not send it."""
    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    assert local_ray._environment(1, 2)["RAY_AUTH_MODE"] == "disabled"
    assert "RAY_ENABLE_AUTO_CONNECT" not in local_ray._environment(1, 2), "jobs on it are the user's"
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    assert local_ray._environment(1, 2)["RAY_AUTH_MODE"] == "token"


def test_what_a_killed_head_has_left_is_ended(tmp_path: Path) -> None:
    with session(tmp_path, local_ray._environment(1, 2)) as (ray, head, other):
        head.kill()
        psutil.wait_procs([head], timeout=10)
        local_ray.stop(ray)
        assert not lives(other)


@pytest.mark.parametrize("leader_lives", [True, False])
def test_a_session_that_has_got_a_head_s_number_since_is_not_ended(tmp_path: Path, leader_lives: bool) -> None:
    """As after a loss of power: ``cluster.json`` names a process of before it, and numbers begin anew."""
    with session(tmp_path, {}) as (now, head, other):
        if not leader_lives:
            head.kill()
            psutil.wait_procs([head], timeout=10)
        local_ray.stop(replace(now, started_at=now.started_at - 3600))
        assert lives(head) == leader_lives
        assert lives(other)


def test_a_ray_of_another_user_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(process: psutil.Process) -> None:
        raise psutil.AccessDenied(process.pid)

    monkeypatch.setattr(psutil.Process, "terminate", refused)
    with session(tmp_path, local_ray._environment(1, 2)) as (ray, head, _):
        with pytest.raises(InvalidInput, match=f"pid {head.pid}. is another user's: end it as that user"):
            local_ray.stop(ray)
        assert lives(head)
