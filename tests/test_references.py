"""Every page and section that code, tests and docs name is there.

The convention for a reference, everywhere: the page by its path from the top of the repository, a comma, and the title
of its section in double quotes (several sections: more of them, each after a comma); ``backticks`` around the path as
the place wants them. So ``docs/formats.md``, "Segment" is one. A title may be shortened to what stands before its colon
or parenthesis. In a page a Markdown link may be used as well, relative to the page. A whole string of the code
(``"latest.md"``) is a file's name and no reference. Only this file is not looked at: it names what is not there, to
show that it is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TREES = ("waltz_ray", "spark", "benchmarks", "deploy", "examples", "docs", "tests", ".ci")
KINDS = (".py", ".md", ".sh", ".toml", ".yaml", ".yml", ".txt", "")

PAGE = re.compile(r"(?<![\w./{}*-])((?:[\w.-]+/)*[\w-]+\.md)\b(`{0,2})((?:, \"[^\"\n]+\")*)(?P<bracket> \(\")?")
LINK = re.compile(r"\]\(([^)\s]+)\)")
OUTSIDE = re.compile(r"\b(DESIGN|FORMATS|WIRE|FACTS|LAYERS)\b")  # plans that are not in the repository


def files() -> list[Path]:
    found = [path for path in ROOT.iterdir() if path.is_file()]
    for tree in TREES:
        found += (ROOT / tree).rglob("*")
    found = [
        path for path in found if not {"__pycache__", "corpus"} & {*path.parts}
    ]  # the latter are bytes to be tried
    texts = {path for path in found if path.is_file() and path.suffix in KINDS}
    # mkdocs.yml names pages as they are called below docs/; that they are there the site's own build checks.
    return sorted(texts - {Path(__file__).resolve(), ROOT / "mkdocs.yml"})


@cache
def titles_of(page: Path) -> frozenset[str]:
    """What its sections may be called: whole titles, and these up to a colon or a parenthesis."""
    found: set[str] = set()
    fenced = False
    for line in page.read_text().splitlines():
        fenced ^= line.startswith("```")
        if not fenced and (heading := re.match(r"#+ (.+)", line)):
            title = heading[1].strip().replace("`", "")
            found |= {title, title.split(": ")[0], title.split(" (")[0]}
    return frozenset(found)


@cache
def anchors_of(page: Path) -> frozenset[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


def problems(text: str, where: Path) -> Iterator[str]:
    """What is wrong with the references in ``text``, which is that of the file ``where``."""
    for match in OUTSIDE.finditer(text):
        yield f"{match[0]} is no page of this repository"
    # A reference may be broken over two lines, of a docstring or of a comment.
    joined = re.sub(r"\s*\n\s*(?:#:? )?", " ", LINK.sub("]", text))
    for match in PAGE.finditer(joined):
        name = match[1]
        page = ROOT / name
        if joined[: match.start()].endswith('"') and joined[match.end(1) :].startswith('"'):
            continue
        if not page.is_file():
            yield f"there is no page {name}"
            continue
        if match["bracket"]:
            yield f'{name}: a section is named after a comma: {name}, "..."'
        for title in re.findall(r"\"([^\"]+)\"", match[3]):
            if title not in titles_of(page):
                yield f'{name} has no section "{title}"'
    if where.suffix == ".md":
        yield from broken_links(text, where)


def broken_links(text: str, where: Path) -> Iterator[str]:
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        page = (where.parent / name).resolve() if name else where
        if not page.exists():
            yield f"the link to {target} leads nowhere"
        elif anchor and anchor not in anchors_of(page):
            yield f"{name or where.name} has no section for the link #{anchor}"


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_named_is_there(path: Path) -> None:
    assert list(problems(path.read_text(), path)) == []


def test_all_of_the_repository_is_looked_at() -> None:
    looked_at = {str(path.relative_to(ROOT)) for path in files()}
    assert looked_at >= {"README.md", "Makefile", "docs/design.md", "waltz_ray/config.py", "deploy/bring_up.py"}


def test_the_readme_leads_to_every_page() -> None:
    readme = (ROOT / "README.md").read_text()
    missing = [page.name for page in (ROOT / "docs").glob("*.md") if f"docs/{page.name}" not in readme]
    assert missing == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("see docs/nowhere.md for more", "there is no page docs/nowhere.md"),
        ('``docs/formats.md``, "Segments"', 'docs/formats.md has no section "Segments"'),
        ('`docs/formats.md`, "Segment", "Inde"', 'docs/formats.md has no section "Inde"'),
        ('x (docs/formats.md,\n    "Segmen")', 'docs/formats.md has no section "Segmen"'),
        ('# docs/formats.md,\n# "Segmen"', 'docs/formats.md has no section "Segmen"'),
        ('docs/formats.md ("Segment")', 'docs/formats.md: a section is named after a comma: docs/formats.md, "..."'),
        ("as in FORMATS, 2", "FORMATS is no page of this repository"),
        ("DESIGN 5.4", "DESIGN is no page of this repository"),
        ("[x](wire.md) and [y](nowhere.py)", "the link to nowhere.py leads nowhere"),
        ("[x](formats.md#segmen)", "formats.md has no section for the link #segmen"),
    ],
)
def test_a_wrong_name_is_found(text: str, problem: str) -> None:
    assert list(problems(text, ROOT / "docs/design.md")) == [problem]


@pytest.mark.parametrize(
    "text",
    [
        '"""docs/wire.md says so."""; open("some.md")',
        '``docs/formats.md``, "Segment", "Index": the same',
        'docs/wire.md, "Version 5"',
        'docs/wire.md, "Client protocol, versions 0-4"',
        '# docs/formats.md,\n# "Segment"',
        "ARCHITECTURE.md and README.md",
        "[the files](formats.md#segment) [elsewhere](https://example.org/x.md)",
    ],
)
def test_a_right_name_is_none(text: str) -> None:
    assert list(problems(text, ROOT / "docs/design.md")) == []
