"""What stands in a root's ``data/``: whose directories, what is odd, and what is left alone on purpose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from waltz_ray.errors import InvalidInput
from waltz_spark.streams.files import Files
from waltz_spark.streams.layout import checked_collector, checked_name, join
from waltz_spark.streams.texts import shown

__all__ = ["CollectorDirectory", "DataEntries", "data_entries"]

HIDDEN = "hidden"
_EXAMPLES = 5


class CollectorDirectory(NamedTuple):
    """``names``: of the entries in it, sorted, hidden ones left out."""

    category: str
    collector: str
    path: str
    names: list[str]


@dataclass(frozen=True, slots=True)
class DataEntries:
    """``odd``: a name of what cannot be taken -> what it is; ``ignored``: reason -> how many entries."""

    collectors: list[CollectorDirectory] = field(default_factory=list)
    odd: dict[str, str] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)


def data_entries(files: Files, root: str, categories: Sequence[str] = ()) -> DataEntries:
    """All there is, or what is in ``categories``. What cannot be looked into is odd, and the rest is looked at."""
    entries = DataEntries()
    for category in _directories(files, root, "data", "category", entries):
        if categories and category not in categories:
            entries.ignored["other categories"] += 1
            continue
        for collector in _directories(files, root, f"data/{category}", "collector", entries):
            relative = f"data/{category}/{collector}"
            names = _names(files, root, relative, entries)
            entries.collectors.append(CollectorDirectory(category, collector, join(root, relative), names))
    return entries


def _names(files: Files, root: str, relative: str, entries: DataEntries) -> list[str]:
    """Begins with a dot or an underscore: a file system's or a program's own, which Hadoop does not see either."""
    try:
        names = files.list(join(root, relative))
    except FileNotFoundError:
        return []
    except OSError as error:
        entries.odd[_record(relative)] = f"{join(root, relative)} cannot be looked into: {error}"
        return []
    seen = [name for name in names if not name.startswith((".", "_"))]
    if len(names) > len(seen):
        entries.ignored[HIDDEN] += len(names) - len(seen)
    return seen


def _directories(files: Files, root: str, relative: str, what: str, entries: DataEntries) -> list[str]:
    """Those in ``relative`` that can be a category or a collector; the others are one record."""
    good: list[str] = []
    odd: list[str] = []
    for name in _names(files, root, relative, entries):
        seen = files.look(join(root, relative, name))
        if seen is not None:
            (good if seen.kind == "directory" and _is_valid(what, name) else odd).append(name)
    if odd:
        some = ", ".join(map(shown, odd[:_EXAMPLES])) + (", ..." if len(odd) > _EXAMPLES else "")
        entries.odd[_record(relative)] = (
            f"{join(root, relative)}: {len(odd)} of what is there can be no directory of a {what}: {some}"
        )
    return good


def _is_valid(what: str, name: str) -> bool:
    try:
        return bool(checked_collector(name) if what == "collector" else checked_name(what, name))
    except InvalidInput:
        return False


def _record(relative: str) -> str:
    return "odd." + relative.replace("/", ".")
