"""A command that runs under a lock is ended with it, whoever hears of that. The rest is in ``test_kv.py``."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from waltz_ray.cli.under_lock import EXIT_LOST, run_under
from waltz_ray.errors import KvLockLost


class LostWhenRead:
    """A lock that is lost as soon as the command has written its process number."""

    name, code = "nightly", 7

    def __init__(self, written: Path) -> None:
        self._written = written

    @property
    def lost(self) -> bool:
        return self._written.exists() and self._written.read_text().endswith("\n")

    def check(self) -> None:
        raise KvLockLost(self.name, "its lease is over")

    def __enter__(self) -> LostWhenRead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def test_a_command_whose_lock_is_lost_is_ended_where_nobody_reads_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``waltz kv lock nightly -- ./job 2>&1 | head -1``: the job went on beside the one that has the lock now."""
    written = tmp_path / "pid"
    lock: Any = LostWhenRead(written)
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as nobody:
        monkeypatch.setattr("sys.stderr", nobody)
        assert run_under(lock, ["sh", "-c", f"echo $$ > {written}; exec sleep 1000"]) == EXIT_LOST
    with pytest.raises(ProcessLookupError):
        os.kill(int(written.read_text()), 0)


def test_who_ends_it_while_the_command_begins_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It went on, and the lock, which nobody renewed, was somebody else's soon."""
    begun: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def interrupted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        begun.append(popen(*arguments, **options))
        signal.raise_signal(signal.SIGTERM)
        return begun[0]

    def die(number: int, frame: object) -> None:
        raise AssertionError("this ends the process")

    before = signal.signal(signal.SIGTERM, die)
    lock: Any = LostWhenRead(tmp_path / "never")
    monkeypatch.setattr(subprocess, "Popen", interrupted)
    try:
        assert run_under(lock, ["sleep", "1000"]) == 128 + signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) is die
    finally:
        signal.signal(signal.SIGTERM, before)
        begun[0].kill()
        begun[0].wait()
