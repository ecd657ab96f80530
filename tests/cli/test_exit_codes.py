"""The table of exit codes in docs/operations.md: each is had, and no command has another."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.test_commands import run
from waltz_ray.cli import under_lock

ROOT = Path(__file__).parents[2]


def documented() -> set[int]:
    page = (ROOT / "docs" / "operations.md").read_text()
    table = page.partition("## Exit codes")[2].partition("\n## ")[0]
    return {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}


def interrupted(monkeypatch: pytest.MonkeyPatch) -> int:
    def press() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("waltz_ray.cli.context.config_file", press)
    return run("context", "list")


CASES: dict[int, Callable[[pytest.MonkeyPatch], int]] = {
    0: lambda monkeypatch: run("context", "list"),
    1: lambda monkeypatch: run("context", "use", "nobody"),
    2: lambda monkeypatch: run("context", "list", "--bogus"),
    75: lambda monkeypatch: under_lock.EXIT_LOST,
    130: interrupted,
}


@pytest.mark.parametrize("code", CASES)
def test_a_code_is_had(code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert CASES[code](monkeypatch) == code


def test_the_table_has_them_all() -> None:
    assert documented() == set(CASES)


def test_no_command_leaves_with_another() -> None:
    found: dict[int, str] = {}
    for path in sorted((ROOT / "waltz_ray" / "cli").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "typer.Exit":
                for number in ast.walk(node):
                    if isinstance(number, ast.Constant) and type(number.value) is int:
                        found[number.value] = path.name
    assert set(found) >= {1, 2}
    assert set(found) <= documented(), found
