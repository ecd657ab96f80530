from __future__ import annotations

import os
import subprocess
import sys

import pytest

from waltz_ray.demo.failures import felt_ms, kill_process, wait_until


def test_felt_is_the_longest_pause_of_one_partition() -> None:
    steady = [t / 100 for t in range(0, 500)]
    paused = [t for t in steady if not 2.0 < t < 2.5]
    assert felt_ms([{0: steady, 1: paused}], 2.1, 3.0) == 500.0
    assert felt_ms([{0: steady}], 2.1, 3.0) == 10.0


def test_a_pause_outside_of_the_window_is_not_counted() -> None:
    paused = [t / 100 for t in range(0, 500) if not 200 < t < 250]
    assert felt_ms([{0: paused}], 2.6, 3.0) == 10.0
    assert felt_ms([{0: paused}], 0.5, 1.0) == 10.0


def test_what_any_client_saw_counts() -> None:
    assert felt_ms([{0: [1.0, 3.0]}, {0: [2.0]}], 0.0, 5.0) == 1000.0
    assert felt_ms([{0: [1.0]}, {}], 0.0, 5.0) == 0.0


def test_kill_process_kills_that_process_only() -> None:
    victim = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    kill_process(victim.pid)
    assert victim.wait(timeout=30) == -9
    assert victim.stdin is not None
    victim.stdin.close()
    for pid in (0, 1, -1, os.getpid()):
        with pytest.raises(ValueError, match="not the process of an actor"):
            kill_process(pid)


def test_wait_until_gives_up() -> None:
    assert wait_until(lambda: True, 0.0)
    assert not wait_until(lambda: False, 0.0)
