"""Where everything lies under a root, and what its name says. Pure: no files, no clock.

::

    <root>/data/<category>/<collector>/<yyyyMMddHHmm>.<anything>      the collector's files of one UTC minute
                                       <yyyyMMddHHmm>.done            the marker: that minute is complete
    <root>/streams_local/<category>/yyyy/MM/dd/HH/mm/<part>/<files>   published by the root's local service
    <root>/streams/<category>/yyyy/MM/dd/HH/mm/<part>/<files>         published by its merged or mirror service
    <root>/system/tmp/<thread>/<run>/<commit>/                        what a run of a service is about to publish
    <root>/system/trash/<yyyyMMddHH>/<thread>/<commit>/<files>        inputs that were committed in that hour
    <root>/system/consumers/<consumer>/<producer>/<commit>            announcements that are not consumed yet
    <root>/system/mirrors/<consumer>/<producer>/<commit>              the same, of a merged or mirror whose layout is
                                                                      ``document`` (``placing``; its trash has days)
    <root>/system/quarantine/<thread>/<commit>                        work that cannot be done at the moment, and why
    <root>/system/drops/<thread>/<commit>                             a person says: put that one away unpublished
    <root>/system/identity/<32 hexadecimal digits>                    what the root is called, wherever it is seen
    <root>/system/odd/<anything>                                      what stood where one of these should

A root is a directory or any ``scheme://`` URI of a Hadoop file system. A *part* is what one collector of one local
service brought for one minute, ``<local service>.<collector>`` (a collector may be called like a host, with dots in it;
nothing else that is named here has a dot): it keeps its name in every stream, and it is what is
committed (one directory, one atomic rename), so locals that bring the same minute at different times never touch each
other's files and no published path is ever committed twice. Readers of a minute read all directories in it (Spark:
``recursiveFileLookup``).

What a collector leaves in ``data/<category>/<collector>/``, in this order, for every minute, empty ones too:

1. The files of the minute, ``<yyyyMMddHHmm>.<anything>``, whole and synced. Any number, also none.
2. The marker ``<yyyyMMddHHmm>.done``, which lists them (``encode_marker``), synced under another name that does not
   begin with a digit and then renamed: a marker is never seen half written.

A file that no marker names is never touched. A minute is marked once: after its marker the collector writes nothing
for that minute any more, and no later file takes a name that was used before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from waltz_ray.errors import InvalidInput
from waltz_spark.streams.texts import parsed_json, shown

__all__ = [
    "COMMIT_BYTES",
    "DIRECTORY_LEVELS",
    "LOCAL",
    "MARKER_SUFFIX",
    "STREAMS",
    "PublishedPath",
    "checked_collector",
    "checked_name",
    "commit_of",
    "consumers_path",
    "data_path",
    "drops_path",
    "decode_marker",
    "encode_marker",
    "hour_name",
    "hours_before",
    "join",
    "marker_name",
    "minute_name",
    "mirrors_path",
    "minute_of",
    "odd_path",
    "parse_minute",
    "parse_published",
    "quarantine_path",
    "tmp_path",
    "trash_hour",
    "trash_path",
]

LOCAL, STREAMS = "streams_local", "streams"
MARKER_SUFFIX = ".done"

DIRECTORY_LEVELS = 6
"""From a stream's directory down to its minutes: category, year, month, day, hour, minute."""

COMMIT_BYTES = 240
"""Of a commit's name: with what is put behind it, it is a file's name of up to 255 bytes."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9][A-Za-z0-9_-]*)*")
_MINUTE = re.compile(r"[0-9]{12}")
_FILE = re.compile(r"[0-9]{12}\.[^/]+")
_PUBLISHED = re.compile(
    r"(?P<stream>streams_local|streams)/(?P<category>[^/]+)/"
    r"(?P<minute>[0-9]{4}/[0-9]{2}/[0-9]{2}/[0-9]{2}/[0-9]{2})/(?P<local>[^/.]+)\.(?P<collector>[^/]+)"
)
_VERSION = 1
_NAME_BYTES = 255


def checked_name(what: str, name: str) -> str:
    """The name of a category, collector, service or consumer: letters, digits, ``_``, ``-``. InvalidInput.

    No dot, since dots separate names, and no leading ``_`` or ``.``, since Hadoop and Spark do not see such files.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidInput(f"{what} {name!r} must be letters, digits, '_' or '-', and begin with a letter or digit")
    return name


def checked_collector(name: str) -> str:
    """The name of a collector's directory: as ``checked_name``, or several of those with dots between, as a host's."""
    if not isinstance(name, str) or not _HOST.fullmatch(name):
        raise InvalidInput(f"collector {name!r} must be a host's name, or letters, digits, '_' or '-'")
    return name


def join(root: str, *names: str) -> str:
    """A path under a root."""
    return "/".join([root.rstrip("/") or ("/" if not names else ""), *names])


def minute_of(time: datetime) -> datetime:
    """The beginning of the UTC minute ``time`` lies in. InvalidInput for a time without a zone."""
    if time.tzinfo is None:
        raise InvalidInput(f"{time} has no time zone; give an aware datetime")
    return time.astimezone(timezone.utc).replace(second=0, microsecond=0)


def minute_name(minute: datetime) -> str:
    """The minute as ``yyyyMMddHHmm``."""
    return minute_of(minute).strftime("%Y%m%d%H%M")


def hour_name(time: datetime) -> str:
    """The hour as ``yyyyMMddHH``."""
    return minute_name(time)[:10]


def parse_minute(name: str) -> datetime:
    """The minute a name in ``data/`` or an hour or minute name begins with. InvalidInput.

    None is before 1970: nobody has collected anything then, and of years below 1000 a path could not be told again.
    """
    digits = name.partition(".")[0]
    try:
        found = None
        if len(digits) == 10 and digits.isascii() and digits.isdigit():
            found = datetime.strptime(digits, "%Y%m%d%H")
        elif _MINUTE.fullmatch(digits):
            found = datetime.strptime(digits, "%Y%m%d%H%M")
        if found is not None and found.year >= 1970:
            return found.replace(tzinfo=timezone.utc)
    except ValueError:
        pass  # digits, but no such day or hour: answered below like every other name
    raise InvalidInput(f"{name!r} does not begin with a UTC minute yyyyMMddHHmm since 1970")


def data_path(root: str, category: str, collector: str) -> str:
    """The directory a collector writes to."""
    return join(root, "data", checked_name("category", category), checked_collector(collector))


def marker_name(minute: datetime) -> str:
    return minute_name(minute) + MARKER_SUFFIX


def encode_marker(minute: datetime, files: Sequence[str], more: Mapping[str, Any] | None = None) -> bytes:
    """The marker's content: the names of the minute's files, and what else the collector wants to keep there.

    InvalidInput for a name that is not ``<that minute>.<anything>``.
    """
    for name in files:
        _check_file(name, minute_name(minute))
    if len(set(files)) != len(files):
        raise InvalidInput(f"the marker of {minute_name(minute)} names a file twice")
    return json.dumps({**(more or {}), "version": _VERSION, "files": sorted(files)}).encode()


def decode_marker(name: str, content: bytes) -> list[str]:
    """The file names in the marker called ``name``, sorted. InvalidInput says what is wrong with it."""
    minute = minute_name(parse_minute(name))
    try:
        fields = parsed_json(content)
        if fields["version"] != _VERSION:
            raise ValueError(f"version {fields['version']!r}")
        files = sorted(fields["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"marker {name} is damaged: {type(error).__name__} {error}") from error
    for file in files:
        _check_file(file, minute)
    if len(set(files)) != len(files):
        raise InvalidInput(f"marker {name} names a file twice")
    return files


def _check_file(name: object, minute: str) -> None:
    # What no file can be called would be an error of the file system, not of the marker.
    is_name = isinstance(name, str) and name.isprintable() and len(name.encode()) <= _NAME_BYTES
    if not is_name or not isinstance(name, str) or not _FILE.fullmatch(name) or not name.startswith(minute + "."):
        what = shown(name) if isinstance(name, str) else f"a {type(name).__name__}"
        raise InvalidInput(f"{what} is no file of minute {minute}: it must be called {minute}.<anything>")
    if name == minute + MARKER_SUFFIX:
        raise InvalidInput(f"the marker of minute {minute} names itself")


class PublishedPath(NamedTuple):
    """One committed part: what one collector of one local service brought for one minute."""

    stream: str
    category: str
    minute: datetime
    local: str
    collector: str

    @property
    def part(self) -> str:
        return f"{self.local}.{self.collector}"

    @property
    def relative(self) -> str:
        """The path under a root."""
        return f"{self.stream}/{self.category}/{self.minute.strftime('%Y/%m/%d/%H/%M')}/{self.part}"

    def on(self, root: str) -> str:
        return join(root, self.relative)

    def to_stream(self, stream: str) -> PublishedPath:
        """The path of this part in another stream."""
        return self._replace(stream=stream)


def parse_published(relative: str) -> PublishedPath:
    """The path that ``PublishedPath.relative`` has written. InvalidInput for any other text."""
    found = _PUBLISHED.fullmatch(relative)
    if found is None:
        raise InvalidInput(f"{relative!r} is not <stream>/<category>/yyyy/MM/dd/HH/mm/<local>.<collector>")
    names = {what: checked_name(what, found[what]) for what in ("category", "local")}
    minute, collector = parse_minute(found["minute"].replace("/", "")), checked_collector(found["collector"])
    return PublishedPath(found["stream"], minute=minute, collector=collector, **names)


def commit_of(path: PublishedPath) -> str:
    """The name of the commit that publishes ``path``: the minute first, so that names sort by time."""
    return f"{minute_name(path.minute)}.{path.category}.{path.part}"


def tmp_path(root: str, thread: str, *names: str) -> str:
    return join(root, "system", "tmp", thread, *names)


def trash_path(root: str, time: datetime, thread: str, commit: str, in_document: bool = False) -> str:
    """``in_document``: as the document's product has it, with a directory for each day."""
    hour = minute_of(time).strftime("%Y-%m-%d/%H") if in_document else hour_name(time)
    return join(root, "system", "trash", hour, thread, commit)


def trash_hour(name: str) -> datetime | None:
    """The hour that a directory of the trash is called by, ``yyyyMMddHH`` or ``yyyy-MM-dd/HH``; None for others."""
    try:
        pattern = "%Y%m%d%H" if len(name) == 10 else "%Y-%m-%d/%H" if len(name) == 13 else ""
        return datetime.strptime(name, pattern).replace(tzinfo=timezone.utc) if pattern and name.isascii() else None
    except ValueError:
        return None


def consumers_path(root: str, consumer: str, producer: str) -> str:
    """The directory of what ``producer`` announced to ``consumer``."""
    return join(root, "system", "consumers", consumer, producer)


def mirrors_path(root: str, consumer: str, producer: str) -> str:
    """The same of a merged or mirror in the document's layout."""
    return join(root, "system", "mirrors", consumer, producer)


def quarantine_path(root: str, thread: str, *names: str) -> str:
    return join(root, "system", "quarantine", thread, *names)


def drops_path(root: str, thread: str, *names: str) -> str:
    return join(root, "system", "drops", thread, *names)


def odd_path(root: str, *names: str) -> str:
    return join(root, "system", "odd", *names)


def hours_before(now: datetime, hours: int) -> datetime:
    """The beginning of the UTC hour that lies ``hours`` full hours before the current one."""
    return minute_of(now).replace(minute=0) - timedelta(hours=hours)
