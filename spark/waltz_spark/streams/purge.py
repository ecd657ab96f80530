"""Retention: old published parts and old trash. Runs inside a thread's run, with nothing of the thread in flight.

Never touched: the current hour, what is announced to anybody, what is in flight in any thread. The order makes that
safe without stopping anyone: first the parts that exist are listed, then the paths in flight are read, then the
announcements. A part that existed at the first look was in flight at the second, or all its announcements were there
before the third, or its consumers have removed them, which they do only after they have committed. While the node of a
thread that ran under the root cannot be read, no part of the stream goes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime

from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.errors import InvalidInput
from waltz_spark.streams.commit import CommitThread
from waltz_spark.streams.files import Files, FilesOf, directory_of
from waltz_spark.streams.layout import (
    DIRECTORY_LEVELS,
    PublishedPath,
    commit_of,
    hours_before,
    join,
    parse_minute,
    parse_published,
    tmp_path,
    trash_hour,
)
from waltz_spark.streams.nodes import read_nodes
from waltz_spark.streams.placing import find_part, list_of_part, listed_part, read_list

__all__ = ["purge"]

log = logging.getLogger(__name__)


def purge(thread: CommitThread, zookeeper: ZooKeeper, files_of: FilesOf, now: datetime) -> list[str]:
    """Delete what is older than the thread's settings say; the paths that were deleted. The thread must be open."""
    settings = thread.settings
    files = files_of(settings.root)
    removed = _purge_stream(thread, zookeeper, files, now)
    for root in {settings.root, *(source.root for source in settings.sources)}:
        removed += _purge_trash(thread, files_of(root), root, now)
    return removed


def _purge_stream(thread: CommitThread, zookeeper: ZooKeeper, files: Files, now: datetime) -> list[str]:
    settings = thread.settings
    minutes = [
        (directory, minute)
        for directory, minute in _minutes(files, settings.root, settings.stream)
        if minute < hours_before(now, settings.retention_of(_category_of(directory)))
    ]
    old = [(directory, part) for directory, _ in minutes for part in _parts(files, settings.root, directory)]
    nodes = read_nodes(zookeeper, settings.zookeeper_root)
    for name in nodes.unreadable:
        # Who ran here has a directory here. What that one has in flight cannot be read, and would be lost.
        if files.exists(tmp_path(settings.root, name)):
            log.warning("%s keeps what is old in %s: %s", settings.name, settings.stream, nodes.unreadable[name])
            return []
    in_flight = {node.path.commit for node in nodes.services.values() if node.path is not None}
    kept = in_flight | _announced(files, settings.root)
    removed = []
    for _, part in old:
        if commit_of(part) not in kept:
            # Renamed first: a reader sees the whole part or nothing of it.
            thread.check_held()
            _remove_part(files, settings.root, part, thread.staged("purged"))
            removed.append(part.on(settings.root))
    for directory, _ in minutes:
        _remove_empty(files, join(settings.root, settings.stream), join(settings.root, directory))
    return removed


def _remove_part(files: Files, root: str, part: PublishedPath, temporary: str) -> None:
    """``temporary`` lies in the run's own directory, which a run that was replaced does not have any more."""
    if _is_directory(files, part.on(root)):
        files.rename(part.on(root), temporary)
    else:
        files.make_directory(temporary)
        place = find_part(files, root, part)
        minute = directory_of(part.on(root))
        for name in place.names if place else ():
            if files.exists(join(minute, name)):  # else a purge before this one was killed here
                files.rename(join(minute, name), join(temporary, name))
        # Last: as long as it is there the rest is found again.
        files.sync_directory(minute)
        files.rename(list_of_part(part, root), join(temporary, "list"))
    files.delete(temporary)


def _list(files: Files, directory: str) -> list[str]:
    try:
        return files.list(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _minutes(files: Files, root: str, stream: str) -> Iterator[tuple[str, datetime]]:
    """(directory under the root, minute); anything with another name is not ours and stays."""
    directories = [stream]
    for _ in range(DIRECTORY_LEVELS):
        directories = [f"{above}/{name}" for above in directories for name in _list(files, join(root, above))]
    for directory in directories:
        try:
            yield directory, parse_minute("".join(directory.split("/")[2:]))
        except InvalidInput:
            continue


def _category_of(directory: str) -> str:
    return directory.split("/")[1]


def _parts(files: Files, root: str, directory: str) -> Iterator[PublishedPath]:
    for name in _list(files, join(root, directory)):
        try:
            part = parse_published(f"{directory}/{listed_part(name) or name}")
            if listed_part(name) is not None:
                read_list(files, join(root, directory, name))
            elif not _is_directory(files, join(root, directory, name)):
                continue  # a file of a part, which may be called like one
            yield part
        except InvalidInput:
            continue


def _is_directory(files: Files, path: str) -> bool:
    seen = files.look(path)
    return seen is not None and seen.kind == "directory"


def _announced(files: Files, root: str) -> set[str]:
    return {
        commit
        for consumers in (join(root, "system", "consumers"), join(root, "system", "mirrors"))
        for consumer in _list(files, consumers)
        for producer in _list(files, join(consumers, consumer))
        for commit in _list(files, join(consumers, consumer, producer))
    }


def _remove_empty(files: Files, top: str, directory: str) -> None:
    """The directory and those above it, as far as they are empty, below ``top``."""
    while directory != top and files.remove_empty(directory):
        directory = directory.rpartition("/")[0]


def _trash_hours(files: Files, trash: str) -> Iterator[str]:
    for name in _list(files, trash):
        if trash_hour(f"{name}/00") is None:
            yield name
        else:  # a day, of the document's layout
            yield from (f"{name}/{hour}" for hour in _list(files, join(trash, name)))


def _purge_trash(thread: CommitThread, files: Files, root: str, now: datetime) -> list[str]:
    before = hours_before(now, thread.settings.trash_retention_hours)
    trash = join(root, "system", "trash")
    removed = []
    for hour in _trash_hours(files, trash):
        time = trash_hour(hour)
        old = time is not None and time < before
        directory = join(trash, hour, thread.settings.name)
        if old and files.exists(directory):
            thread.check_held()
            files.delete(directory)
            removed.append(directory)
        if old and _is_directory(files, join(trash, hour)):  # else it is nobody's trash, and stays
            _remove_empty(files, trash, join(trash, hour))
    return removed
