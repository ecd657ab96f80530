"""The pages as a site: built strictly, nothing fetched from elsewhere, and every public name in the reference."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(sys.version_info < (3, 11), reason="mkdocs-material is for Python 3.11 and newer")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # With --quiet mkdocs does not count its warnings, and --strict means nothing.
    built = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(built)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return built


def test_every_page_is_there_and_linked(site: Path) -> None:
    names = {path.stem for path in (ROOT / "docs").glob("*.md")} | {"architecture", "contributing", "changelog", "api"}
    front = (site / "index.html").read_text()
    assert {name for name in names if f'href="{name}/"' not in front} == set()
    assert {name for name in names if not (site / name / "index.html").is_file()} == set()


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    elsewhere = re.compile(r"<(?:script|img|iframe)[^>]* src=\"https?:[^\"]*|<link[^>]* href=\"https?:[^\"]*")
    fetched = {page.name: found for page in site.rglob("*.html") if (found := elsewhere.findall(page.read_text()))}
    assert fetched == {}


PUBLIC = ["waltz_ray", "waltz_ray.kv", "waltz_ray.topics", "waltz_ray.testing", "waltz_spark"]


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_is_in_the_reference(site: Path, module: str) -> None:
    told = set(re.findall(r' id="([\w.]+)"', (site / "api/index.html").read_text()))
    public = set(importlib.import_module(module).__all__) - {"errors"}
    assert {name for name in public if f"{module}.{name}" not in told} == set()
