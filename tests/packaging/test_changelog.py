"""CHANGELOG.md is in the form of Keep a Changelog."""

from __future__ import annotations

import re
from pathlib import Path

LINES = (Path(__file__).resolve().parents[2] / "CHANGELOG.md").read_text().splitlines()
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def test_versions_are_headed_as_they_should_be() -> None:
    versions = [line for line in LINES if line.startswith("## ")]
    assert LINES[0] == "# Changelog"
    assert versions[0] == "## [Unreleased]"
    released = r"## \[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}"
    assert [line for line in versions[1:] if not re.fullmatch(released, line)] == []


def test_every_entry_is_under_what_it_is() -> None:
    kinds: list[str] = []
    for line in LINES[LINES.index("## [Unreleased]") :]:
        if line.startswith("## "):
            kinds = []
        elif line.startswith("### "):
            kinds.append(line.removeprefix("### "))
            assert kinds == sorted(set(kinds), key=KINDS.index), "each once, in this order"
        elif line:
            assert kinds, f"under no kind: {line}"
            assert line.startswith(("- ", "  ")), f"neither an entry nor a part of one: {line}"
