"""The clock of leases: it never stands still."""

from __future__ import annotations

import time

__all__ = ["boot_s"]


def boot_s() -> float:
    """Seconds since the machine was started; goes on while the process is stopped, and while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
