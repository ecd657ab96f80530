"""Every block of Python and of commands in README.md and docs/ is run as it is written, or says why it is not.

Each run is a process of its own in a directory of its own; all share one cluster, ``waltz``. See ``blocks.py`` for what
the pages may say. ``make docs-test`` runs the long ones, too.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, WORDS, Block, all_blocks, blocks_of, runs
from waltz_ray.bring_up import bring_up
from waltz_ray.config import ClusterConfig

BLOCKS = all_blocks()
TIMEOUT_S = 280
COMMAND = re.compile(r"(\$ )?(waltz|make|pip|python3?|curl|deploy/\S+|[A-Z_]+=\S+) \S", re.MULTILINE)


def parameters() -> Iterator[object]:
    for run in runs(BLOCKS):
        long = any("long" in block.said for block in run)
        yield pytest.param(run, id=run[0].name, marks=[pytest.mark.long] if long else [])


@pytest.fixture(scope="module")
def environment(ray_head: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Of the processes: they find the cluster ``waltz`` by themselves, and ``waltz`` and ``python`` on the path."""
    directory = tmp_path_factory.mktemp("docs")
    bring_up(ClusterConfig(name="waltz", directory=str(directory)), ray_head)
    try:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        modules = f"{ROOT}:{ROOT}/spark:{ROOT}/benchmarks"
        found = {"RAY_ADDRESS": ray_head, "WALTZ_DIR": str(directory)}
        own = {name: value for name, value in os.environ.items() if name != "RAY_ENABLE_AUTO_CONNECT"}  # the tests'
        yield own | found | {"PATH": path, "PYTHONPATH": modules}
    finally:
        subprocess.run([sys.executable, "-m", "waltz_ray", "down", "--dir", str(directory)], check=True)


@pytest.mark.cluster
@pytest.mark.parametrize("run", list(parameters()))
def test_a_block_runs(run: list[Block], environment: dict[str, str], tmp_path: Path) -> None:
    said = {word: text for block in run for word, text in block.said.items()}
    environment = environment | {"XDG_CONFIG_HOME": str(tmp_path / "configuration")}  # its contexts are its own
    if "alone" in said:
        environment = {name: value for name, value in environment.items() if name not in ("RAY_ADDRESS", "WALTZ_DIR")}
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    if "first" in said:
        shell(said["first"], environment, tmp_path)
    try:
        if run[0].language == "python":
            script = tmp_path / "block.py"
            script.write_text("\n".join(block.code for block in run))
            call([sys.executable, str(script)], environment, tmp_path)
        else:
            shell("\n".join(block.commands for block in run), environment, tmp_path)
    finally:
        if "afterwards" in said:
            shell(said["afterwards"], environment, tmp_path)


def shell(commands: str, environment: dict[str, str], directory: Path) -> None:
    call(["bash", "-e", "-o", "pipefail", "-c", commands], environment, directory)


def call(command: list[str], environment: dict[str, str], directory: Path) -> None:
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=lambda block: block.name)
def test_python_is_python(block: Block) -> None:
    compile(block.code, block.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_what_is_said_about_a_block(block: Block) -> None:
    assert set(block.said) <= set(WORDS)
    assert all(block.said[word] for word in set(block.said) - {"alone", "goes on"}), "say why"
    assert block.language in ("", "python", "console", "toml"), "a language that nothing is known about"
    if not block.language:
        assert not COMMAND.match(block.code), "commands are a block of ```console"


def test_blocks_are_found() -> None:
    said = "<!-- first: touch x -->\n<!-- long: why -->\n"
    text = f"a\n{said}```console\n$ x  # y\nout\n```\n<!-- not run: z -->\n\n```\nq\n```\n"
    one, two = blocks_of("p", text)
    assert one == Block("p", 5, "console", "$ x  # y\nout\n", {"first": "touch x", "long": "why"})
    assert one.commands == "x  # y"
    assert two == Block("p", 11, "", "q\n")  # the comment is not directly before it


def test_what_is_run_together() -> None:
    def block(page: str, language: str = "python", **said: str) -> Block:
        return Block(page, 1, language, "", {word.replace("_", " "): text for word, text in said.items()})

    first, on, other = block("a"), block("a", goes_on=""), block("b", "console")
    assert list(runs([first, block("a", ""), on, block("a", not_run="x"), other])) == [[first, on], [other]]
