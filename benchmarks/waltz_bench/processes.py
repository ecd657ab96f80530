"""What processes use: CPU, memory, bytes read. Everything of one machine, by pid."""

from __future__ import annotations

import os
from collections.abc import Mapping

import psutil  # type: ignore[import-untyped]

from waltz_ray.errors import DataUnavailable

__all__ = ["DRIVER", "Processes"]

DRIVER = "driver"


class Processes:
    """Named processes, and always this one, the load generator, as ``driver``.

    DataUnavailable if one of them has gone while it is looked at.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self.pids = {DRIVER: os.getpid(), **pids}
        try:
            self._processes = {name: psutil.Process(pid) for name, pid in self.pids.items()}
        except psutil.NoSuchProcess as error:
            raise _gone(error) from error

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds of each process since it began, user and system."""
        try:
            times = {name: process.cpu_times() for name, process in self._processes.items()}
        except psutil.NoSuchProcess as error:
            raise _gone(error) from error
        return {name: each.user + each.system for name, each in times.items()}

    def rss_bytes(self) -> dict[str, int]:
        """Resident memory of each process."""
        try:
            return {name: int(process.memory_info().rss) for name, process in self._processes.items()}
        except psutil.NoSuchProcess as error:
            raise _gone(error) from error

    def read_bytes(self) -> dict[str, int]:
        """Bytes each process has read by system calls since it began (``rchar``: from the cache or the disk)."""
        try:
            return {name: int(process.io_counters().read_chars) for name, process in self._processes.items()}
        except psutil.NoSuchProcess as error:
            raise _gone(error) from error

    def disk_bytes(self) -> int:
        """Bytes that all of them together have had read from disks since they began."""
        try:
            return sum(int(process.io_counters().read_bytes) for process in self._processes.values())
        except psutil.NoSuchProcess as error:
            raise _gone(error) from error


def _gone(error: psutil.NoSuchProcess) -> DataUnavailable:
    return DataUnavailable(f"process {error.pid} ended while it was measured; see its log, and measure again")
