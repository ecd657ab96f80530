"""What a process says of itself, for whoever compares those of a cluster."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import platform
import resource
import time
from functools import cache

from waltz_ray.runtime.status import ProcessStatus

__all__ = ["about_process", "installed_version"]


def about_process() -> ProcessStatus:
    """Of this process, now."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return ProcessStatus(
        version=installed_version(),
        python=platform.python_version(),
        now_ms=time.time_ns() // 1_000_000,
        open_files=_open_files(limit),
        open_files_limit=limit,
    )


def _open_files(limit: int) -> int | None:
    """Looking takes one more: who has none left serves on, and is to say so."""
    try:
        return len(os.listdir("/proc/self/fd"))
    except FileNotFoundError:
        return None  # no Linux
    except OSError as error:
        return limit if error.errno == errno.EMFILE else None


@cache
def installed_version() -> str:
    """Of the distribution, as pyproject.toml has it: the only place where it is written."""
    try:
        return importlib.metadata.version("waltz-ray")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"  # it runs from its sources
