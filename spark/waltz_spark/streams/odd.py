"""What stands where something of ours should: it is told from ours, read with care, or moved out of the way.

Nothing that people or other programs leave under a root may end a service. Of input that is odd a service says what is
wrong (``quarantine``) and goes on with the rest. Where a file stands in the way of a directory of ours in ``system/``,
or a directory in the way of a file, it is moved aside, whole, to ``system/odd/``: nobody's data is deleted.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from waltz_ray.errors import InvalidInput
from waltz_spark.streams.files import Files, directory_of
from waltz_spark.streams.layout import join, odd_path
from waltz_spark.streams.texts import shown

__all__ = ["SMALL_BYTES", "input_sizes", "make_way", "put_file", "read_small", "unreadable_input", "way_problem"]

SMALL_BYTES = 16 * 1024 * 1024
"""Markers, announcements and records are no larger: a marker of a hundred thousand files has about 5 MB."""


def read_small(files: Files, path: str) -> bytes:
    """A file of ours. FileNotFoundError; InvalidInput for what is no file, cannot be read, or is far too large."""
    seen = files.look(path)
    if seen is None:
        raise FileNotFoundError(path)
    if seen.kind != "file":
        raise InvalidInput(f"{shown(path)} is {_what(seen.kind)}, not a file")
    if seen.size_bytes > SMALL_BYTES:
        raise InvalidInput(f"{shown(path)} has {seen.size_bytes} bytes; it should be a small file")
    try:
        return files.read(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InvalidInput(f"{shown(path)} cannot be read: {error}") from error


def input_sizes(files: Files, directory: str, names: Sequence[str]) -> tuple[list[int], str]:
    """The entries' bytes, and why they cannot be copied, "" = they can. One that is missing is left to the copy."""
    sizes = []
    for name in names:
        seen = files.look(join(directory, name))
        if seen is not None and seen.kind != "file":
            return [], f"{shown(join(directory, name))} is {_what(seen.kind)}, not a file; put the file there"
        sizes.append(seen.size_bytes if seen is not None else 0)
    return sizes, ""


def unreadable_input(files: Files, path: str) -> str:
    """After a copy failed: why the file cannot be read to its end; "" = it can, so the fault was on the other side."""
    try:
        for _ in files.chunks(path):
            pass
    except OSError as error:
        return f"{shown(path)} cannot be read: {error}"
    return ""


def way_problem(files: Files, root: str, directory: str) -> str:
    """What stands in the way of a directory of a stream; "" = nothing. Streams belong to their readers: it stays."""
    while directory != root and directory:
        seen = files.look(directory)
        if seen is not None:
            return "" if seen.kind == "directory" else f"{shown(directory)} is {_what(seen.kind)}, not a directory"
        directory = directory_of(directory)
    return ""


def make_way(files: Files, root: str, directory: str) -> None:
    """``make_directories`` below ``<root>/system`` or ``<root>/data``; what stands in the way is moved aside."""
    try:
        files.make_directories(directory)
        return
    except (FileExistsError, NotADirectoryError):
        pass  # by something that is no directory: looked for below
    place = root
    for name in directory.removeprefix(root.rstrip("/") + "/").split("/"):
        place = join(place, name)
        seen = files.look(place)
        if seen is not None and seen.kind != "directory":
            _aside(files, root, place)
    files.make_directories(directory)


def put_file(files: Files, root: str, source: str, target: str) -> None:
    """``replace``; a directory in the target's place is moved aside."""
    try:
        files.replace(source, target)
    except OSError:
        seen = files.look(target)
        if seen is None or seen.kind != "directory":
            raise
        _aside(files, root, target)
        files.replace(source, target)


def _aside(files: Files, root: str, path: str) -> None:
    directory = odd_path(root)
    seen = files.look(directory)
    if seen is not None and seen.kind != "directory":
        files.rename(directory, f"{directory}.{uuid.uuid4().hex}")
    files.make_directories(directory)
    files.rename(path, join(directory, f"{uuid.uuid4().hex}.{path.rpartition('/')[2]}"[:255]))
    files.sync_directory(directory)
    files.sync_directory(directory_of(path))


def _what(kind: str) -> str:
    return {"directory": "a directory", "file": "a file"}.get(kind, "a pipe, a device or a link to nothing")
