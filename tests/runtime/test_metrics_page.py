"""docs/metrics.md lists each figure, and nothing else; names are as it says."""

from __future__ import annotations

import re
from pathlib import Path

from waltz_ray.runtime.figures import FIGURES, Metric

PAGE = Path(__file__).parents[2] / "docs/metrics.md"


def table(labels: tuple[str, ...], figures: tuple[Metric[object], ...]) -> list[str]:
    rows = [f"| `{each.name}` | {f'`{each.by}`' if each.by else ''} | {each.text} |" for each in figures]
    return [f"Labels: {', '.join(f'`{label}`' for label in labels)}.", "", "| name | and | |", "|---|---|---|", *rows]


def test_the_page_is_what_the_code_tells() -> None:
    """If not, this prints what belongs there."""
    expected: list[str] = []
    for title, (labels, figures) in FIGURES.items():
        expected += [f"### {title}", "", *table(labels, figures), ""]
    _, begin, rest = PAGE.read_text().partition("## All of them\n\n")
    listed, _, _ = rest.partition("\n## ")
    assert begin
    assert listed.strip().splitlines() == "\n".join(expected).strip().splitlines(), "\n".join(expected)


def test_names_are_unique_and_of_one_form() -> None:
    names = [figure.name for _, figures in FIGURES.values() for figure in figures]
    assert len(set(names)) == len(names)
    assert [name for name in names if not re.fullmatch(r"waltz_[a-z]+(_[a-z]+)+", name)] == []


def test_a_label_is_told_once() -> None:
    for labels, figures in FIGURES.values():
        assert all(figure.by not in labels for figure in figures)
