"""What ends a command that has started other processes lets it take them down."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE_S = 20

_COMMAND = """
import signal, sys
from pathlib import Path
from waltz_ray.interruption import interruptible
with interruptible():
    try:
        print("ready", flush=True)
        signal.sigtimedwait([], float(sys.argv[2]))
    except KeyboardInterrupt:
        print("taking down", file=sys.stderr, flush=True)
        Path(sys.argv[1]).write_text("taken down")
"""


def begun(file: Path, stderr: int, seconds: float, before: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", before + _COMMAND, str(file), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_takes_down_what_it_has_started_also_without_its_terminal(number: int, tmp_path: Path) -> None:
    """What it says then cannot be written where the terminal was."""
    master, slave = pty.openpty()
    with begun(tmp_path / "end", slave, 3600) as process:
        os.close(slave)
        if number == signal.SIGHUP:
            os.close(master)
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0
    if number != signal.SIGHUP:
        os.close(master)
    assert (tmp_path / "end").read_text() == "taken down"


def test_nohup_has_it_go_on(tmp_path: Path) -> None:
    before = "import signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    with begun(tmp_path / "end", subprocess.DEVNULL, 1, before) as process:
        process.send_signal(signal.SIGHUP)
        assert process.wait(PATIENCE_S) == 0
    assert not (tmp_path / "end").exists()
