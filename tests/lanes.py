"""``python -m tests.lanes``: all tests of `make test` in two processes of pytest at once, on two cores.

Those that start clusters wait for half of their time: for processes to come up, for sessions to run out. Beside them
run those that only calculate, at the lowest priority, so that they take what the others leave: nothing that measures a
time is among them, and a core that is taken away cannot make them fail. Each lane has its own Ray, ZooKeeper and
temporary directory, if it has any. What the lane beside has to say is printed when both have ended.

What is given on the command line is given to pytest, in one process, as before, if it names tests.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import IO

__all__ = ["BESIDE", "lanes", "main", "outcome"]

ROOT = Path(__file__).resolve().parent.parent

BESIDE = (
    "tests/simulation",
    "tests/protocol",
    "tests/storage",
    "tests/topics/groups",
    "tests/wire",
    "tests/fuzz",
    "tests/projections",
    "tests/spark/streams/test_crashes.py",
    "tests/spark/streams/test_collector_crashes.py",
    "tests/spark/streams/test_compacting.py",
    "tests/spark/streams/test_spark_copying.py",
    "tests/spark/streams/test_teeth.py",
    "tests/spark/streams/test_zombies.py",
    "tests/test_layers.py",
    "tests/test_references.py",
)
"""Tests that only calculate, and read and write files: no clusters, no ports, no time limits of their own."""

_LOWEST_PRIORITY = 19
_PATIENCE = "--timeout=1800"  # a second of work takes minutes at the lowest priority where two others want both cores
_NO_TESTS = 5  # pytest's exit status
_PYTEST = (sys.executable, "-m", "pytest", "-W", "error", "-m", "not long")


def lanes(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What pytest is to be given in the one lane and in the one beside it; together they are every test once."""
    return [*(f"--ignore={path}" for path in BESIDE), *arguments], [*BESIDE, _PATIENCE, *arguments]


def outcome(codes: Sequence[int]) -> int:
    """One exit status for both lanes. With ``-k`` it is enough that one of them has such tests."""
    told = [code for code in codes if code != _NO_TESTS] or [_NO_TESTS]
    return next((code for code in told if code), 0)


def _names_tests(argument: str) -> bool:
    return (ROOT / argument.split("::")[0]).exists()


class _Running:
    """Processes of pytest. When this one is to end they are interrupted: they take their clusters down first."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self._ending = False

    def start(self, arguments: Sequence[str], niceness: int = 0, output: IO[bytes] | None = None) -> None:
        nice = ["nice", "-n", str(niceness)] if niceness else []
        command = [*nice, *_PYTEST, *arguments]
        self.processes.append(subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT))
        if self._ending:  # the signal came while it was started
            self.processes[-1].send_signal(signal.SIGINT)

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        self._ending = True
        for process in self.processes:
            process.send_signal(signal.SIGINT)


def main(arguments: Sequence[str]) -> int:
    """Run both lanes; 0 if every test of both has passed."""
    running = _Running()
    with _signals(running), tempfile.TemporaryFile() as told:
        if any(_names_tests(argument) for argument in arguments):
            running.start(arguments)
        else:
            first, beside = lanes(arguments)
            running.start(first)
            running.start(beside, _LOWEST_PRIORITY, told)
        codes = [_ended(process) for process in running.processes]
        if len(codes) > 1:
            told.seek(0)
            sys.stdout.flush()
            sys.stdout.buffer.write(b"\n==== the lane beside it: " + " ".join(BESIDE).encode() + b"\n" + told.read())
            sys.stdout.flush()
    return outcome(codes)


@contextmanager
def _signals(running: _Running) -> Iterator[None]:
    """SIGTERM interrupts who is running. And SIGINT is not ignored, as in a job in the background: pytest, and what its
    tests interrupt, would inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler), signal.signal(signal.SIGTERM, running.interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Wait for it, also through Ctrl-C, which the terminal sends to it as well."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
