"""Nothing in storage but ``disk.py`` touches the operating system, and storage imports no other layer."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import waltz_ray.storage

PACKAGE = Path(waltz_ray.storage.__file__).parent
OUTSIDE = {"os", "io", "fcntl", "pathlib", "time", "datetime", "random", "socket", "shutil", "tempfile", "mmap", "glob"}
ALLOWED_OURS = ("waltz_ray.storage", "waltz_ray.protocol", "waltz_ray.wire", "waltz_ray.errors", "waltz_ray.config")


def imports_and_calls(source: str) -> tuple[set[str], set[str]]:
    imported, called = set[str](), set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called.add(node.func.id)
    return imported, called


def faults(source: str) -> list[str]:
    imported, called = imports_and_calls(source)
    found = [name for name in imported if name.partition(".")[0] in OUTSIDE]
    found += [name for name in imported if name.startswith("waltz_ray") and not name.startswith(ALLOWED_OURS)]
    return found + [name for name in called if name in ("open", "exec", "eval", "__import__")]


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*.py")), ids=lambda path: path.name)
def test_one_gate(path: Path) -> None:
    if path.name != "disk.py":
        assert faults(path.read_text()) == []


def test_the_check_has_teeth() -> None:
    assert faults("import os.path") == ["os.path"]
    assert faults("from pathlib import Path") == ["pathlib"]
    assert faults("open('x')") == ["open"]
    assert faults("from waltz_ray.coordination import x") == ["waltz_ray.coordination"]
