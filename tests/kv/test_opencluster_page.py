"""``docs/opencluster.md`` tells what there is: opcodes, codes, limits, and tests that exist."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from waltz_ray.kv.messages import FailCode, Opcode
from waltz_ray.kv.serving.port import GatewayLimits

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs/opencluster.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_every_opcode_is_tabled() -> None:
    """O23."""
    numbers = re.findall(r"^\| (\d+) \| [a-z_]+ \|", section("Bytes"), re.MULTILINE)
    assert sorted(map(int, numbers)) == sorted(map(int, Opcode))


def test_every_code_is_tabled() -> None:
    """And no other."""
    rows = re.findall(r"^\| (\d+) \| .* \| (?:yes|no|unknown) \|$", section("What a client sees"), re.MULTILINE)
    assert {int(number) for number in rows} == {int(code) for code in FailCode if code}


def test_every_limit_is_tabled() -> None:
    rows = [row for row in section("What a client sees").splitlines() if row.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    assert named == {field.name for field in fields(GatewayLimits)}


def test_every_row_is_there_and_its_tests_are() -> None:
    rows = section("Rows")
    assert all(f"O{number:02}" in rows for number in (*range(1, 37), *range(41, 51)))
    sources = "".join(path.read_text() for path in HERE.glob("test_*.py"))
    for name in re.findall(r"`(test_\w+)(?:\.\.\.)?`", rows):
        assert f"def {name}" in sources or (HERE / f"{name}.py").exists(), name
