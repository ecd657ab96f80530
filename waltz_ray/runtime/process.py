"""What a process says of itself, for whoever compares those of a cluster."""

from __future__ import annotations

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
    open_files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    return ProcessStatus(
        version=installed_version(),
        python=platform.python_version(),
        now_ms=time.time_ns() // 1_000_000,
        open_files=open_files,
        open_files_limit=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    )


@cache
def installed_version() -> str:
    """Of the distribution, as pyproject.toml has it: the only place where it is written."""
    try:
        return importlib.metadata.version("waltz-ray")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"  # it runs from its sources
