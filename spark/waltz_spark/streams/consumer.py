"""The consumer's side: what was announced, and what of it can be taken over.

A consumer removes an announcement only after its own data is committed, and it remembers what it has taken over
(``ThreadNode.applied``, written together with SUCCESS_COMMIT), so that the one announcement a producer may repeat, that
of the path in flight when it was killed, is dropped. Any other consumer than the stream services has to do the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from waltz_ray.errors import InvalidInput
from waltz_spark.streams.announce import Announcement, decode_announcement
from waltz_spark.streams.files import Files
from waltz_spark.streams.layout import PublishedPath, consumers_path, mirrors_path
from waltz_spark.streams.odd import read_small
from waltz_spark.streams.placing import list_of_part

__all__ = ["Pending", "pending", "pending_names"]


class Pending(NamedTuple):
    """One announcement file: ``name`` in ``directory``; ``problem``: why it cannot be taken over now, "" = it can."""

    directory: str
    name: str
    announcement: Announcement | None
    problem: str = ""


def pending_names(files: Files, root: str, consumer: str, producer: str) -> list[str]:
    """The commits announced and not consumed, oldest minute first."""
    return sorted({name for _, name in _pending_paths(files, root, consumer, producer)})


def _pending_paths(files: Files, root: str, consumer: str, producer: str) -> Iterator[tuple[str, str]]:
    """(directory, name); a producer whose layout was changed may have left some in both."""
    for directory in (consumers_path(root, consumer, producer), mirrors_path(root, consumer, producer)):
        try:
            names = files.list(directory)
        except (FileNotFoundError, NotADirectoryError):
            continue  # nothing was ever announced
        yield from ((directory, name) for name in names)


def pending(files: Files, root: str, consumer: str, producer: str) -> Iterator[Pending]:
    """Everything announced and not removed, oldest minute first.

    What is damaged, or announces a path that is not there, comes with its problem: it stays where it is and is found
    again at the next look, when the path may have appeared.
    """
    for directory, name in _pending_paths(files, root, consumer, producer):
        try:
            announcement = decode_announcement(name, read_small(files, f"{directory}/{name}"))
        except FileNotFoundError:
            continue  # removed since the listing, by a person or by the run that was replaced
        except InvalidInput as error:
            yield Pending(directory, name, None, str(error))
            continue
        yield Pending(directory, name, announcement, _part_problem(files, root, announcement.path))


def _part_problem(files: Files, root: str, path: PublishedPath) -> str:
    part = path.on(root)
    seen = files.look(part)
    if (seen is not None and seen.kind == "directory") or files.exists(list_of_part(path, root)):
        return ""
    return f"{part} was announced and is not there" if seen is None else f"{part} was announced and is no directory"
