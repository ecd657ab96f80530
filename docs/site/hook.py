"""What the site has beside docs/: README.md and the other pages of the top, and the reference of the public names.

None of it is written a second time. A path in backticks that is a page (``docs/wire.md``) becomes a link to it.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
TOP = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
PUBLIC = ("waltz_ray", "waltz_ray.errors", "waltz_ray.kv", "waltz_ray.topics", "waltz_ray.testing", "waltz_spark")

_FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_PAGE = re.compile(r"`(?:docs/)?((?:[A-Z]+|[a-z0-9]+)\.md)`")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The pages that are made."""
    for source, page in TOP.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    files.append(File.generated(config, "api.md", content=reference()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links where a page is named."""
    there = {each.src_uri for each in files.documentation_pages()}
    parts = _FENCED.split(markdown)
    return "".join(part if part.startswith("```") else _linked(part, there) for part in parts)


def _linked(text: str, there: set[str]) -> str:
    def link(found: re.Match[str]) -> str:
        name = TOP.get(found[1], found[1])
        return f"[{found[0]}]({name})" if name in there else found[0]

    return _PAGE.sub(link, text)


def reference() -> str:
    """A heading for each public module, below it what it exports."""
    lines = ["# Public names", "", "From the docstrings. Everything else is inside, and may change.", ""]
    for module in PUBLIC:
        lines += [f"## {module}", "", f"::: {module}", "    options:", "      show_root_heading: false", ""]
    return "\n".join(lines)
