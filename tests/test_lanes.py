"""Each test is in one of the two lanes of `make test`; what runs beside the clusters has none and keeps no time."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import lanes

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("path", lanes.BESIDE)
def test_what_runs_beside_only_calculates(path: str) -> None:
    """Pages and fixtures that start something are known by their names."""
    files = sorted((ROOT / path).rglob("*.py")) if (ROOT / path).is_dir() else [ROOT / path]
    assert files
    starts = ("ray_head", "zookeeper_server", "mark.cluster", "mark.spark", "EmbeddedZooKeeper")
    assert [(file.name, name) for file in files for name in starts if name in file.read_text()] == []


def test_every_test_is_in_one_lane() -> None:
    first, beside = lanes.lanes(["-x"])
    assert [f"--ignore={path}" for path in lanes.BESIDE] == first[:-1]
    assert [*lanes.BESIDE, "--timeout=1800", "-x"] == beside, "a core that is taken away makes no test fail"
    assert first[-1] == "-x"


@pytest.mark.parametrize(
    ("codes", "told"), [([0, 0], 0), ([0, 1], 1), ([2, 0], 2), ([1, -9], 1), ([5, 0], 0), ([0, 5], 0), ([5, 5], 5)]
)
def test_one_that_failed_is_enough(codes: list[int], told: int) -> None:
    assert lanes.outcome(codes) == told


def test_both_run_and_what_the_one_beside_says_comes_last(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lanes, "_PYTEST", (sys.executable, "-c", "import sys; print(sys.argv[1]); sys.exit(3)"))
    assert lanes.main([]) == 3
    told = capfd.readouterr().out
    assert told.startswith(f"--ignore={lanes.BESIDE[0]}\n\n==== ")
    assert told.endswith(f"\n{lanes.BESIDE[0]}\n")


def test_named_tests_run_alone(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(lanes, "_PYTEST", (sys.executable, "-c", "import sys; print(sys.argv[1:])"))
    assert lanes.main(["tests/test_lanes.py::test_named_tests_run_alone", "-x"]) == 0
    assert capfd.readouterr().out == "['tests/test_lanes.py::test_named_tests_run_alone', '-x']\n"


def test_what_runs_in_the_background_can_still_be_interrupted(tmp_path: Path) -> None:
    """A shell ignores SIGINT for its jobs in the background, and whom they start inherits that."""
    code = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    script = f"""
import sys
from tests import lanes
lanes._PYTEST = (sys.executable, "-c", {code!r})
lanes.main(["tests"])
"""
    told = tmp_path / "told"
    command = 'trap "" INT; "$0" -c "$1" > "$2"'
    subprocess.run(["sh", "-c", command, sys.executable, script, str(told)], cwd=ROOT, check=True)
    assert told.read_text() == "True\n"


def test_who_ends_it_ends_both(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """`make` passes SIGTERM on; pytest would end without taking its clusters down."""
    code = """
import os, signal, sys
print("runs", flush=True)
try:
    if sys.argv[1] != "tests/simulation":
        os.kill(os.getppid(), signal.SIGTERM)
    signal.pause()
except KeyboardInterrupt:
    sys.exit(2)
"""
    monkeypatch.setattr(lanes, "_PYTEST", (sys.executable, "-c", code))
    before = signal.getsignal(signal.SIGTERM)
    assert lanes.main([]) == 2
    assert signal.getsignal(signal.SIGTERM) is before
