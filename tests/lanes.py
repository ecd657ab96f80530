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
from collections.abc import Sequence
from pathlib import Path
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
_NO_TESTS = 5  # pytest's exit status
_PYTEST = (sys.executable, "-m", "pytest", "-W", "error", "-m", "not long")


def lanes(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What pytest is to be given in the one lane and in the one beside it; together they are every test once."""
    return [*(f"--ignore={path}" for path in BESIDE), *arguments], [*BESIDE, *arguments]


def outcome(codes: Sequence[int]) -> int:
    """One exit status for both lanes. With ``-k`` it is enough that one of them has such tests."""
    told = [code for code in codes if code != _NO_TESTS] or [_NO_TESTS]
    return next((code for code in told if code), 0)


def _names_tests(argument: str) -> bool:
    return (ROOT / argument.split("::")[0]).exists()


def _started(arguments: Sequence[str], niceness: int, output: IO[bytes] | None) -> subprocess.Popen[bytes]:
    nice = ["nice", "-n", str(niceness)] if niceness else []
    return subprocess.Popen([*nice, *_PYTEST, *arguments], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)


def main(arguments: Sequence[str]) -> int:
    """Run both lanes; 0 if every test of both has passed."""
    # Not the ignored one of a job in the background: pytest, and what its tests interrupt, would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if any(_names_tests(argument) for argument in arguments):
        return _ended(_started(arguments, 0, None))
    first, beside = lanes(arguments)
    with tempfile.TemporaryFile() as told:
        running = [_started(first, 0, None), _started(beside, _LOWEST_PRIORITY, told)]
        codes = [_ended(process) for process in running]
        told.seek(0)
        sys.stdout.flush()
        sys.stdout.buffer.write(b"\n==== the lane beside it: " + " ".join(BESIDE).encode() + b"\n" + told.read())
        sys.stdout.flush()
    return outcome(codes)


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Wait for it, also through Ctrl-C, which the terminal sends to it as well: it takes its clusters down first."""
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1:]))
