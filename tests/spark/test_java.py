"""The ``java`` that stands before one without the module Spark 4 asks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from waltz_spark import session


def made_home(directory: Path, modules: str) -> Path:
    """A Java that prints its arguments, one a line."""
    home = directory / "a home"
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text(f'MODULES="{modules}"\n')
    java = home / "bin" / "java"
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    return home


def test_the_option_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_SPARK", 4)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    home = session._fitting(made_home(tmp_path, "java.base"))
    assert home == tmp_path / "venv" / "var" / "waltz-java"
    command = [str(home / "bin" / "java"), "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "Main"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.split("\n") == ["-Xmx1g", "a b", "", "Main", ""]
    assert session._fitting(home) == home, "found again as JAVA_HOME"


@pytest.mark.parametrize(("spark", "modules"), [(3, "java.base"), (4, "java.base jdk.incubator.vector")])
def test_a_java_that_does_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: int, modules: str
) -> None:
    monkeypatch.setattr(session, "_SPARK", spark)
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    home = made_home(tmp_path, modules)
    assert session._fitting(home) == home
    assert not (tmp_path / "venv").exists()
