"""The clock of leases: it never stands still."""

from __future__ import annotations

import time

__all__ = ["boot_s"]

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # where clients run that is no Linux, the other does so


def boot_s() -> float:
    """Seconds since the machine was started; goes on while the process is stopped, and while the machine sleeps."""
    return time.clock_gettime(_CLOCK)
