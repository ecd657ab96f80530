"""What a service leaves alone on purpose, counted for people."""

from __future__ import annotations

from waltz_ray.errors import InvalidInput
from waltz_spark.streams.entries import CollectorDirectory, data_entries
from waltz_spark.streams.files import Files
from waltz_spark.streams.layout import decode_marker, join, odd_path, trash_hour
from waltz_spark.streams.odd import read_small
from waltz_spark.streams.plain import is_plain
from waltz_spark.streams.work import is_marker

__all__ = ["ignored"]


def ignored(files: Files, root: str, kind: str) -> dict[str, int]:
    """Reason -> entries: in ``data/`` for a local service, in trash, and what was moved aside."""
    found: dict[str, int] = {}
    if kind == "local":
        entries = data_entries(files, root)
        found |= entries.ignored
        found["no marker names them"] = sum(_unmarked(files, each) for each in entries.collectors)
        plain = [name for each in entries.collectors for name in each.names if is_plain(name)]
        found["without markers, until they rest"] = len(plain)
    found["no hour of the trash"] = sum(not _is_hour(files, root, name) for name in _list(files, root, "trash"))
    found["moved aside to system/odd"] = len(_list(files, root, "odd"))
    return {reason: count for reason, count in found.items() if count}


def _unmarked(files: Files, at: CollectorDirectory) -> int:
    named: set[str] = set()
    markers = [name for name in at.names if is_marker(name)]
    for marker in markers:
        try:
            named |= set(decode_marker(marker, read_small(files, join(at.path, marker))))
        except (FileNotFoundError, InvalidInput):
            continue  # published since, or in quarantine
    return sum(not is_plain(name) for name in set(at.names) - named - set(markers))


def _is_hour(files: Files, root: str, name: str) -> bool:
    seen = files.look(join(root, "system", "trash", name))
    is_named = trash_hour(name) is not None or trash_hour(f"{name}/00") is not None  # an hour, or a day with hours
    return seen is None or (seen.kind == "directory" and is_named)


def _list(files: Files, root: str, name: str) -> list[str]:
    directory = odd_path(root) if name == "odd" else join(root, "system", name)
    try:
        return files.list(directory)
    except OSError:
        return []  # not there, or no directory
