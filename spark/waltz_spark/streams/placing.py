"""Where the files of a part stand in a stream: ``layout`` says how they are published, readers understand both.

- ``parts``, ours: the part is a directory in its minute, and one rename.
- ``document``, that of the Databus page: a minute's directory has the files themselves. Each is called
  ``<part>-<name>``, so that no two parts have one name, and the *list* ``_<part>.part`` names them; Hadoop and Spark do
  not see a name with ``_`` in front. The list is renamed last: a part is published when its list is there. So several
  collectors and locals may still bring the same minute at different times.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

from waltz_ray.errors import InvalidInput
from waltz_spark.streams.files import Files, directory_of
from waltz_spark.streams.layout import PublishedPath, join
from waltz_spark.streams.odd import read_small
from waltz_spark.streams.texts import parsed_json, shown

__all__ = [
    "LIST_SUFFIX",
    "PlacedPart",
    "encode_list",
    "find_part",
    "is_taken",
    "list_of_part",
    "listed_part",
    "move_directory",
    "move_listed",
    "names_problem",
    "placed_name",
    "read_list",
    "take_back_files",
    "was_moved",
]

LIST_SUFFIX = ".part"

_VERSION = 1
_NAME_BYTES = 255


class PlacedPart(NamedTuple):
    """``names`` in ``directory`` are a part's files."""

    directory: str
    names: tuple[str, ...]


def placed_name(part: str, name: str) -> str:
    """What a file of a part is called in the document's layout; a mirror's copy is called as its source's."""
    return name if name.startswith(f"{part}-") else f"{part}-{name}"


def list_of_part(path: PublishedPath, root: str) -> str:
    """The path of the part's list."""
    return join(directory_of(path.on(root)), f"_{path.part}{LIST_SUFFIX}")


def listed_part(name: str) -> str | None:
    """The part whose list is called so; None for other names."""
    return name[1 : -len(LIST_SUFFIX)] if name.startswith("_") and name.endswith(LIST_SUFFIX) else None


def names_problem(part: str, names: Sequence[str]) -> str:
    """Why the files of a part cannot be placed in the document's layout; "" = they can."""
    placed = [placed_name(part, name) for name in names]
    if len(set(placed)) != len(placed):
        return f"two files of {part} would have one name in the layout of the document"
    for name in placed:
        if len(name.encode()) > _NAME_BYTES:
            return f"{shown(name)} is too long for a file's name; give the file a shorter one"
    return ""


def encode_list(names: Sequence[str]) -> bytes:
    return json.dumps({"version": _VERSION, "files": sorted(names)}).encode()


def read_list(files: Files, path: str) -> tuple[str, ...]:
    """The names in a part's list. FileNotFoundError; InvalidInput if it is damaged."""
    try:
        fields = parsed_json(read_small(files, path))
        names = fields["files"]
        if fields["version"] != _VERSION or not all(isinstance(each, str) and _is_file_name(each) for each in names):
            raise ValueError("another version, or no names of files")
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{shown(path)} is no list of a part: {type(error).__name__} {error}") from error
    return tuple(names)


def _is_file_name(name: str) -> bool:
    return bool(name) and "/" not in name and name not in (".", "..") and name.isprintable()


def find_part(files: Files, root: str, path: PublishedPath) -> PlacedPart | None:
    """The published part, in whichever layout; None = it is not there. InvalidInput, OSError for an odd one."""
    directory = path.on(root)
    seen = files.look(directory)
    if seen is not None and seen.kind == "directory":
        return PlacedPart(directory, tuple(files.list(directory)))
    if files.exists(list_of_part(path, root)):
        return PlacedPart(directory_of(directory), read_list(files, list_of_part(path, root)))
    return None


def is_taken(files: Files, root: str, path: PublishedPath, names: Sequence[str]) -> bool:
    """Whether the part, in either layout, or one of ``names`` that it would have in the document's is there."""
    minute = directory_of(path.on(root))
    places = [path.on(root), list_of_part(path, root), *(join(minute, placed_name(path.part, name)) for name in names)]
    return any(files.exists(place) for place in places)


def move_directory(files: Files, temporary: str, path: PublishedPath, root: str, moved: Callable[[], None]) -> None:
    """Publish a part in our layout, durably; ``moved`` is called when it is there. Its minute's directory is there."""
    files.rename(temporary, path.on(root))
    moved()
    files.sync_directory(directory_of(path.on(root)))


def move_listed(files: Files, temporary: str, path: PublishedPath, root: str, moved: Callable[[], None]) -> None:
    """The same in the document's; ``moved`` is called when the files are there, before their list."""
    minute = directory_of(path.on(root))
    for name in files.list(temporary):
        files.rename(join(temporary, name), join(minute, name))
    # Durable before the list is: who sees that sees them all.
    files.sync_directory(minute)
    moved()
    files.rename(temporary + LIST_SUFFIX, list_of_part(path, root))
    files.sync_directory(minute)
    files.remove_empty(temporary)


def was_moved(files: Files, temporary: str, path: PublishedPath, root: str) -> bool:
    """After a crash in the move: whether the part is published. If not, nothing of it is left in its minute.

    What the crash left says which layout the run had, not what is set now.
    """
    if files.exists(temporary + LIST_SUFFIX):
        take_back_files(files, temporary, path, root)
        return False
    is_kept = files.exists(temporary)
    is_listed = files.exists(list_of_part(path, root))
    if (is_listed and not (is_kept and files.list(temporary))) or (files.exists(path.on(root)) and not is_kept):
        files.sync_directory(directory_of(path.on(root)))
        return True
    return False


def take_back_files(files: Files, temporary: str, path: PublishedPath, root: str) -> None:
    """What of the part is in its minute goes back to the temporary, durably."""
    minute = directory_of(path.on(root))
    if not files.exists(minute) or not files.exists(temporary):
        return
    for name in read_list(files, temporary + LIST_SUFFIX):
        if files.exists(join(minute, name)) and not files.exists(join(temporary, name)):
            files.rename(join(minute, name), join(temporary, name))
    files.sync_directory(minute)
