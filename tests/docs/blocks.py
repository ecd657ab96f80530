"""The code blocks of README.md and docs/, and what is said about each in the comments before it.

A block of Python or ``console`` (commands, after ``$`` where output is shown, too) is run as it is written. HTML
comments in the lines directly before it may say:

- ``<!-- not run: why -->``
- ``<!-- long: why -->``: only by ``make docs-test``
- ``<!-- alone -->``: without the cluster that the others share
- ``<!-- goes on -->``: after the block before it on the page, in the same process
- ``<!-- first: command -->``: by a shell, before it; ``<!-- afterwards: command -->``: after it, whatever has happened
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Block", "all_blocks", "blocks_of", "runs"]

ROOT = Path(__file__).resolve().parent.parent.parent
WORDS = ("not run", "long", "alone", "goes on", "first", "afterwards")

_COMMENT = re.compile(r"<!-- (?P<word>[a-z ]+?)(?:: (?P<text>.+?))? -->")


@dataclass
class Block:
    """``line``: of its first line of code, from 1. ``said``: word -> text of the comments before it."""

    page: str
    line: int
    language: str
    code: str
    said: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> str:
        """Of a console block, for a shell."""
        lines = self.code.splitlines()
        prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return "\n".join(prompted or lines)


def blocks_of(page: str, text: str) -> list[Block]:
    """All fenced blocks of a page."""
    found: list[Block] = []
    said: dict[str, str] = {}
    block: Block | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if block is not None:
            if line == "```":
                found.append(block)
                block, said = None, {}
            else:
                block.code += line + "\n"
        elif line.startswith("```"):
            block = Block(page, number + 1, line.removeprefix("```"), "", said)
        elif match := _COMMENT.fullmatch(line):
            said[match["word"]] = match["text"] or ""
        else:
            said = {}
    return found


def all_blocks() -> list[Block]:
    """Of README.md and docs/."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [block for page in pages for block in blocks_of(str(page.relative_to(ROOT)), page.read_text())]


def runs(blocks: list[Block]) -> Iterator[list[Block]]:
    """What is run together: a block, and those that go on from it."""
    run: list[Block] = []
    for block in blocks:
        if block.language not in ("python", "console") or "not run" in block.said:
            continue
        if "goes on" in block.said and run and run[0].page == block.page:
            run.append(block)
        else:
            if run:
                yield run
            run = [block]
    if run:
        yield run
