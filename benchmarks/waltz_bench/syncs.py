"""Counting the syncs of running processes with strace: what was really made durable, by the kernel's account."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from waltz_ray.errors import DataUnavailable

__all__ = ["count_syncs", "parse_trace", "strace_problem", "synchronous_files"]

_SYNCS = ("fsync", "fdatasync", "sync", "syncfs", "sync_file_range", "msync")
_CALL = re.compile(r"^(?:\d+ +)?(?:\d+\.\d+ +)?(\w+)\(")
_O_DSYNC = 0o10000
_STOP_S = 10.0


def strace_problem() -> str:
    """Why syncs cannot be counted here; "" if they can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    tried = subprocess.run(["strace", "-qq", "-e", "trace=none", "true"], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else f"strace is not permitted: {tried.stderr.strip()[:200]}"


def parse_trace(text: str) -> dict[str, int]:
    """Sync calls that were begun, by name. A call that failed raises DataUnavailable: it made nothing durable."""
    counts: dict[str, int] = {}
    for line in text.splitlines():
        found = _CALL.match(line)
        if found and found[1] in _SYNCS:
            counts[found[1]] = counts.get(found[1], 0) + 1
        if " = -1 " in line and any(name in line for name in _SYNCS):
            raise DataUnavailable(f"a sync failed while syncs were counted: {line}")
    return counts


def synchronous_files(pid: int) -> int:
    """Files the process has open with O_SYNC or O_DSYNC: writes to them need no call to be durable."""
    count = 0
    for entry in os.scandir(f"/proc/{pid}/fdinfo"):
        try:
            text = Path(entry.path).read_text()
        except FileNotFoundError:  # closed meanwhile
            continue
        flags = re.search(r"^flags:\s+(\d+)", text, re.MULTILINE)
        count += bool(flags and int(flags[1], 8) & _O_DSYNC)
    return count


def count_syncs(pids: Mapping[str, int], directory: Path, action: Callable[[], None]) -> dict[str, dict[str, int]]:
    """Sync calls of each process, with all its threads, during ``action``."""
    traced: dict[str, subprocess.Popen[str]] = {}
    files = {name: directory / f"syncs-{name}.trace" for name in pids}
    try:
        for name, pid in pids.items():
            command = ["strace", "-f", "-e", f"trace={','.join(_SYNCS)}", "-o", str(files[name]), "-p", str(pid)]
            traced[name] = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for name, tracer in traced.items():
            _wait_attached(name, tracer)
        action()
    finally:
        for tracer in traced.values():
            tracer.send_signal(signal.SIGINT)  # it detaches
        for tracer in traced.values():
            tracer.communicate(timeout=_STOP_S)
    return {name: parse_trace(file.read_text()) for name, file in files.items()}


def _wait_attached(name: str, tracer: subprocess.Popen[str]) -> None:
    assert tracer.stderr is not None
    for line in tracer.stderr:
        if "attached" in line:
            return
    raise DataUnavailable(f"strace could not be attached to {name}; count the syncs as its owner or as root")
