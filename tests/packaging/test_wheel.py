"""The wheel: what is in it, what it says of itself, and that it is enough in an empty environment."""

from __future__ import annotations

import email
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from waltz_ray.compat import tomllib

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OF_THE_WHEEL = ("waltz_ray", "spark", "benchmarks", "pyproject.toml", "README.md")


def run(*command: str, cwd: Path, **more: str) -> str:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "WALTZ_", "PYTHON"))}
    done = subprocess.run(command, cwd=cwd, env=own | more, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built of a copy: setuptools leaves things beside its sources, and takes what it has left before."""
    copy, out = tmp_path_factory.mktemp("sources"), tmp_path_factory.mktemp("wheel")
    for name in OF_THE_WHEEL:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info", "results"))
        else:
            shutil.copy(source, copy / name)
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel")
    run(*pip, ".", "--no-deps", "--wheel-dir", str(out), cwd=copy)
    (found,) = out.glob("*.whl")
    return found


def sources(kinds: tuple[str, ...]) -> set[str]:
    """Of the packages, as they are called in the wheel."""
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT / "waltz_ray").rglob("*")}
    for folder in ("spark", "benchmarks"):
        found |= {path.relative_to(ROOT / folder).as_posix() for path in (ROOT / folder).rglob("waltz_*/**/*")}
    return {name for name in found if name.endswith(kinds) and "egg-info" not in name}


def test_the_wheel_has_all_of_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == sources((".py", ".pyi", ".html", "py.typed"))
    assert {"waltz_ray/py.typed", "waltz_ray/kv/__init__.pyi", "waltz_ray/actors/status_page.html"} <= names
    assert not any(name.startswith("tests/") or "/tests/" in name for name in names)


def test_the_wheel_says_what_the_project_says(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        said = email.message_from_bytes(archive.read(path))
    assert said["Version"] == PROJECT["version"]
    assert set(said.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])


def test_the_version_is_in_one_place() -> None:
    import waltz_ray

    assert waltz_ray.__version__ == PROJECT["version"]
    written = re.escape(PROJECT["version"])
    for path in (ROOT / "waltz_ray").rglob("*.py"):
        assert not re.search(rf"[\"']{written}[\"']", path.read_text()), f"{path} has the version a second time"


def test_every_extra_is_described() -> None:
    page = (ROOT / "docs/packaging.md").read_text()
    assert set(re.findall(r"^\| `([a-z0-9]+)` \|", page, re.MULTILINE)) == set(PROJECT["optional-dependencies"])


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_an_empty_environment_needs_nothing_else(wheel: Path, tmp_path: Path) -> None:
    """Minutes: Ray and Spark are installed anew. As a user does, away from the sources."""
    environment, away = tmp_path / "venv", tmp_path / "away"
    away.mkdir()
    venv.create(environment, with_pip=True)
    pip = (str(environment / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
    run(*pip, "-c", str(ROOT / "constraints.txt"), f"waltz-ray[demo] @ {wheel.as_uri()}", cwd=away)
    waltz, path = str(environment / "bin/waltz"), f"{environment}/bin:{os.environ['PATH']}"
    assert run(waltz, "--version", cwd=away) == f"waltz {PROJECT['version']}\n"
    try:
        run(waltz, "up", "--dir", "cluster", "--partitions", "2", cwd=away, PATH=path)
        told = run(waltz, "doctor", "--dir", "cluster", cwd=away, PATH=path)
        assert "no problem" in told.lower()
    finally:
        run(waltz, "down", "--dir", "cluster", cwd=away, PATH=path)
    assert "flights" in run(waltz, "demo", "--flights", "2000", cwd=away, PATH=path)
