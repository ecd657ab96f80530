"""What there is to commit: complete minutes for a local, announced paths for a merged or a mirror."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from waltz_ray.errors import InvalidInput
from waltz_spark.streams.commit import Work
from waltz_spark.streams.consumer import Pending, pending
from waltz_spark.streams.files import Files, FilesOf
from waltz_spark.streams.layout import (
    LOCAL,
    MARKER_SUFFIX,
    PublishedPath,
    checked_name,
    commit_of,
    data_path,
    decode_marker,
    join,
    parse_minute,
)
from waltz_spark.streams.settings import Source, StreamSettings

__all__ = ["Found", "find_work"]


class Found(NamedTuple):
    """``work`` for the commit called ``name``, or the ``problem`` why there is none."""

    name: str
    work: Work | None
    problem: str = ""


def find_work(settings: StreamSettings, files_of: FilesOf) -> list[Found]:
    """All there is at the moment, the oldest minute first."""
    if settings.kind == "local":
        found = list(_complete_minutes(settings, files_of(settings.root)))
    else:
        found = [
            one
            for source in settings.sources
            for announced in pending(files_of(source.root), source.root, settings.name, source.producer)
            for one in _announced(settings, files_of(source.root), source, announced)
        ]
    return sorted(found, key=lambda one: one.name)


def _names(files: Files, directory: str) -> list[str]:
    """Valid names only: what begins with a dot or an underscore is a file system's or a program's own."""
    try:
        return [name for name in files.list(directory) if _is_valid(name)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_valid(name: str) -> bool:
    try:
        return bool(checked_name("name", name))
    except InvalidInput:
        return False


def _complete_minutes(settings: StreamSettings, files: Files) -> Iterator[Found]:
    for category in _names(files, join(settings.root, "data")):
        if settings.categories and category not in settings.categories:
            continue
        for collector in _names(files, join(settings.root, "data", category)):
            directory = data_path(settings.root, category, collector)
            try:
                names = files.list(directory)
            except NotADirectoryError:
                continue
            for marker in names:
                if marker.endswith(MARKER_SUFFIX) and marker[0].isdigit():
                    yield _minute(settings, files, category, collector, marker)


def _minute(settings: StreamSettings, files: Files, category: str, collector: str, marker: str) -> Found:
    directory = data_path(settings.root, category, collector)
    unnamed = f"{marker.removesuffix(MARKER_SUFFIX)}.{category}.{settings.name}.{collector}"
    try:
        target = PublishedPath(LOCAL, category, parse_minute(marker), settings.name, collector)
        inputs = tuple(decode_marker(marker, files.read(join(directory, marker))))
    except InvalidInput as error:
        return Found(unnamed, None, f"{directory}: {error}")
    except FileNotFoundError:
        return Found(unnamed, None, f"{directory}/{marker} disappeared")
    # The marker goes to trash last: until then the minute is still seen as what it is.
    work = Work(target, settings.root, directory, inputs, directory, (*inputs, marker))
    return Found(commit_of(target), work)


def _announced(settings: StreamSettings, files: Files, source: Source, announced: Pending) -> Iterator[Found]:
    announcement = announced.announcement
    if announcement is None:
        yield Found(announced.name, None, announced.problem)
        return
    path = announcement.path
    if settings.categories and path.category not in settings.categories:
        return
    try:
        inputs = tuple(files.list(path.on(source.root))) if not announced.problem else ()
    except FileNotFoundError:
        inputs, announced = (), announced._replace(problem=f"{path.on(source.root)} was announced and is not there")
    work = Work(
        path.to_stream(settings.stream),
        source.root,
        path.on(source.root),
        inputs,
        announced.directory,
        (announced.name,),
        source.producer,
    )
    yield Found(announced.name, work, announced.problem)
