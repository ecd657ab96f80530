"""A disk with a record of how long its syncs take."""

from __future__ import annotations

import threading
from typing import cast

from waltz_ray.actors.slow_disk import SlowDisk
from waltz_ray.runtime.histogram import LATENCY_S, Histogram, HistogramView
from waltz_ray.storage.disk import Disk

__all__ = ["MeasuredDisk"]

_PASSED_ON = [name for name in vars(Disk) if not name.startswith("_") and name != "fdatasync"]


class MeasuredDisk:
    """``disk`` is the same disk, for any number of threads."""

    def __init__(self, disk: Disk) -> None:
        self._inner = disk
        self._lock = threading.Lock()
        self._syncs = Histogram(LATENCY_S)
        self._slow = SlowDisk()
        for name in _PASSED_ON:
            setattr(self, name, getattr(disk, name))
        self.disk = cast(Disk, self)

    def fdatasync(self, handle: int) -> None:
        sync = self._slow.begins()
        try:
            self._inner.fdatasync(handle)
        finally:  # one that failed has taken its time, too
            seconds = self._slow.ends(sync)
            with self._lock:
                self._syncs.observe(seconds)

    def slow(self) -> str:
        """One line for people while its syncs take too long, "" else."""
        return self._slow.told()

    def syncs(self) -> HistogramView:
        """Seconds, of every fdatasync since the replica started."""
        with self._lock:
            return self._syncs.view()
