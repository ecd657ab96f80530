"""A command that runs while a lock is had, as ``flock`` has it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from waltz_ray.cli.common import tell
from waltz_ray.errors import InvalidInput, KvLockLost

if TYPE_CHECKING:
    from waltz_ray.kv.client.client import KvLock

__all__ = ["CODE_VARIABLE", "EXIT_LOST", "run_under"]

CODE_VARIABLE = "WALTZ_LOCK_CODE"
"""Where the command finds the lock's code, its fencing token."""
EXIT_LOST = 75
"""The lock was lost while the command ran (EX_TEMPFAIL of sysexits.h)."""

_LOOK_S = 0.1
_END_S = 10.0


def run_under(lock: KvLock, command: Sequence[str]) -> int:
    """Acquire ``lock``, run ``command`` to its end, release; what to exit with: as a shell says it, or EXIT_LOST.

    A command whose lock is lost is sent SIGTERM, and 10 s later SIGKILL. KvLockTaken; InvalidInput: it cannot be run.
    """
    try:
        with lock:
            code = _run(lock, command)
    except KvLockLost as error:
        tell(f"waltz: {error}")
        return EXIT_LOST
    return code if code >= 0 else 128 - code


def _run(lock: KvLock, command: Sequence[str]) -> int:
    """KvLockLost: and so it was ended."""
    with _signals_are_its_own() as begun:
        try:
            process = subprocess.Popen(command, env={**os.environ, CODE_VARIABLE: str(lock.code)})
        except (OSError, ValueError) as error:
            raise InvalidInput(f"{command[0]!r} cannot be run: {getattr(error, 'strerror', error)}") from error
        begun(process)
        while True:
            try:
                return process.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                if lock.lost:
                    break
        tell(f"waltz: lock {lock.name!r} was lost, so {command[0]!r} is ended")
        process.terminate()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    lock.check()
    raise AssertionError("a lost lock is lost")


@contextmanager
def _signals_are_its_own() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Who ends us means the command, which is given to what this gives: the lock is had until it has ended. What comes
    before it has begun reaches it then. A terminal's Ctrl-C reaches it by itself."""
    own: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def begun(process: subprocess.Popen[bytes]) -> None:
        own.append(process)
        for number in early:
            process.send_signal(number)

    def hand_on(number: int, frame: object) -> None:
        if own:
            own[0].send_signal(number)
        else:
            early.append(number)

    def leave(number: int, frame: object) -> None:
        pass

    before = {
        number: signal.signal(number, what)
        for number, what in ((signal.SIGTERM, hand_on), (signal.SIGHUP, hand_on), (signal.SIGINT, leave))
    }
    try:
        yield begun
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
