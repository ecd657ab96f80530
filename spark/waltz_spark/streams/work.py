"""What there is to commit: complete minutes for a local, announced paths for a merged or a mirror."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from waltz_ray.errors import InvalidInput
from waltz_spark.streams.commit import Work
from waltz_spark.streams.consumer import Pending, pending
from waltz_spark.streams.entries import CollectorDirectory, data_entries
from waltz_spark.streams.files import Files, FilesOf
from waltz_spark.streams.holes import MinutesSeen, hole_key
from waltz_spark.streams.layout import (
    LOCAL,
    MARKER_SUFFIX,
    PublishedPath,
    commit_of,
    consumers_path,
    data_path,
    decode_marker,
    join,
    minute_name,
    parse_minute,
)
from waltz_spark.streams.odd import read_small
from waltz_spark.streams.placing import PlacedPart, find_part
from waltz_spark.streams.plain import Rests, plain_minute, plain_minutes
from waltz_spark.streams.settings import Source, StreamSettings
from waltz_spark.streams.texts import shown

__all__ = ["Found", "find_holes", "find_work", "is_marker"]

_AHEAD = timedelta(hours=1)
"""What the clocks of two machines may differ by."""


class Found(NamedTuple):
    """``work`` for the commit called ``name``, or the ``problem`` why there is none.

    ``input``: (root, directory, names) of what could be dropped where there is no work; None = nothing.
    """

    name: str
    work: Work | None
    problem: str = ""
    input: tuple[str, str, tuple[str, ...]] | None = None

    @property
    def droppable(self) -> tuple[str, str, tuple[str, ...]] | None:
        """What goes to trash when a person wants it."""
        return (self.work.src_root, self.work.src, self.work.names) if self.work else self.input


def find_work(settings: StreamSettings, files_of: FilesOf, rests: Rests, now: datetime) -> list[Found]:
    """All there is at the moment, the oldest minute first."""
    if settings.kind == "local":
        found = list(_complete_minutes(settings, files_of(settings.root), rests, now))
    else:
        found = [one for source in settings.sources for one in _all_announced(settings, source, files_of(source.root))]
    return sorted(found, key=lambda one: one.name)


def _complete_minutes(settings: StreamSettings, files: Files, rests: Rests, now: datetime) -> Iterator[Found]:
    entries = data_entries(files, settings.root, settings.categories)
    for name, problem in entries.odd.items():
        yield Found(name, None, problem)
    for directory in entries.collectors:
        for name in directory.names:
            if is_marker(name):
                yield _minute(settings, files, directory, name, now)
        if settings.plain_rest_s:
            yield from _plain(settings, files, directory, rests, now)


def _plain(
    settings: StreamSettings, files: Files, at: CollectorDirectory, rests: Rests, now: datetime
) -> Iterator[Found]:
    _, others = plain_minutes(at)
    if others:
        some = ", ".join(map(shown, others[:3]))
        problem = f"{at.path}: {len(others)} files are named for another collector or category: {some}"
        yield Found(f"odd.data.{at.category}.{at.collector}.plain", None, problem)
    for minute, seen in rests.resting(files, at, now, settings.plain_rest_s):
        target = PublishedPath(LOCAL, at.category, minute, settings.name, at.collector)
        names = tuple(seen)
        work = Work(target, settings.root, at.path, names, at.path, names, seen=tuple(seen.values()))
        yield Found(commit_of(target), work)


def find_holes(
    settings: StreamSettings, files_of: FilesOf, seen: Mapping[str, MinutesSeen], now: datetime
) -> list[Found]:
    """The minutes that are missing for certain, as empty ones: they are over for long, and nothing of them is there."""
    if settings.kind != "local" or not settings.holes_after_s or not any(each.missing for each in seen.values()):
        return []
    end = now - timedelta(seconds=settings.holes_after_s) - timedelta(minutes=1)
    there = {
        hole_key(at.category, at.collector): {_minute_in(name) for name in at.names}
        for at in data_entries(files_of(settings.root), settings.root, settings.categories).collectors
    }
    found = []
    for key, each in seen.items():
        category, _, collector = key.partition("/")
        if settings.categories and category not in settings.categories:
            continue
        for minute in each.missing_until(end):
            if minute_name(minute) not in there.get(key, ()):
                target = PublishedPath(LOCAL, category, minute, settings.name, collector)
                directory = data_path(settings.root, category, collector)
                found.append(Found(commit_of(target), Work(target, settings.root, directory, (), directory, ())))
    return sorted(found, key=lambda one: one.name)


def _minute_in(name: str) -> str:
    plain = plain_minute(name)
    return minute_name(plain) if plain else name[: len("yyyyMMddHHmm")]


def is_marker(name: str) -> bool:
    return name.endswith(MARKER_SUFFIX) and name[0].isdigit()


def _minute(settings: StreamSettings, files: Files, at: CollectorDirectory, marker: str, now: datetime) -> Found:
    directory = at.path
    unnamed = f"{marker.removesuffix(MARKER_SUFFIX)}.{at.category}.{settings.name}.{at.collector}"
    try:
        target = PublishedPath(LOCAL, at.category, parse_minute(marker), settings.name, at.collector)
        inputs = tuple(decode_marker(marker, read_small(files, join(directory, marker))))
    except InvalidInput as error:
        return Found(unnamed, None, f"{directory}: {error}", (settings.root, directory, (marker,)))
    except FileNotFoundError:
        return Found(unnamed, None, f"{directory}/{shown(marker)} disappeared")
    if target.minute > now + _AHEAD:
        # Published, it would be the newest of all: what is missing of others would be too old to be looked for.
        problem = (
            f"{directory}/{marker}: that minute is still to come; is its collector's clock wrong, or the one here?"
        )
        return Found(commit_of(target), None, problem, (settings.root, directory, (*inputs, marker)))
    # The marker goes to trash last: until then the minute is still seen as what it is.
    work = Work(target, settings.root, directory, inputs, directory, (*inputs, marker))
    return Found(commit_of(target), work)


def _all_announced(settings: StreamSettings, source: Source, files: Files) -> Iterator[Found]:
    try:
        for announced in pending(files, source.root, settings.name, source.producer):
            yield from _announced(settings, files, source, announced)
    except OSError as error:
        inbox = consumers_path(source.root, settings.name, source.producer)
        yield Found(f"odd.{source.producer}", None, f"what is announced in {inbox} cannot be looked at: {error}")


def _announced(settings: StreamSettings, files: Files, source: Source, announced: Pending) -> Iterator[Found]:
    announcement = announced.announcement
    if announcement is None:
        place = (source.root, announced.directory, (announced.name,))
        yield Found(announced.name, None, announced.problem, place)
        return
    path = announcement.path
    if settings.categories and path.category not in settings.categories:
        return
    part = PlacedPart(path.on(source.root), ())
    try:
        part = (None if announced.problem else find_part(files, source.root, path)) or part
    except (OSError, InvalidInput) as error:
        announced = announced._replace(problem=f"{path.on(source.root)} cannot be looked into: {error}")
    work = Work(
        path.to_stream(settings.stream),
        source.root,
        part.directory,
        part.names,
        announced.directory,
        (announced.name,),
        source.producer,
    )
    yield Found(announced.name, work, announced.problem)
