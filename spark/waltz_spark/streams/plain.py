"""Files of writers that know of no markers: ``<collector>-<category>-yyyy-MM-dd-HH-mm_NNNNN[.gz]`` in ``data/``.

A minute of them is taken when it is over and all its files rest: neither size nor time of modification has changed for
``plain_rest_s``, as this process has seen, or the file has not been modified for an hour. So the one that is being
written is never taken, also on a file system that tells the time of modification late. A file that comes when its
minute was published goes to quarantine. What has another name, a ``.tmp`` for instance, is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone

from waltz_spark.streams.entries import CollectorDirectory
from waltz_spark.streams.files import Files, SeenPath
from waltz_spark.streams.layout import join

__all__ = ["LONG_S", "Rests", "is_plain", "plain_minute", "plain_minutes"]

LONG_S = 3600.0
"""Who has not been modified for so long rests at the first look."""

_PLAIN = re.compile(
    r"(?P<whose>.+)-(?P<minute>[0-9]{4}-[0-9]{2}-[0-9]{2}-[0-9]{2}-[0-9]{2})_[0-9]{5,}(\.gz)?", re.ASCII
)


def is_plain(name: str) -> bool:
    """Whether a file is called so, whosever it is."""
    return plain_minute(name) is not None


def plain_minute(name: str) -> datetime | None:
    """The minute in the name; None for other names."""
    found = _PLAIN.fullmatch(name)
    try:
        return datetime.strptime(found["minute"], "%Y-%m-%d-%H-%M").replace(tzinfo=timezone.utc) if found else None
    except ValueError:
        return None  # there is no such minute


def plain_minutes(at: CollectorDirectory) -> tuple[dict[datetime, list[str]], list[str]]:
    """The files of each minute, and those that are named for another collector or category than the directory's."""
    minutes: dict[datetime, list[str]] = {}
    others: list[str] = []
    for name in at.names:
        minute = plain_minute(name)
        if minute is None:
            continue
        if name.startswith(f"{at.collector}-{at.category}-{minute:%Y-%m-%d-%H-%M}_"):
            minutes.setdefault(minute, []).append(name)
        else:
            others.append(name)
    return minutes, others


class Rests:
    """Which files have not changed for how long, as far as the passes of one process have seen."""

    def __init__(self) -> None:
        self.dates_count = True
        """Who has not been modified for ``LONG_S``, as the clock says, rests."""
        self._since: dict[str, tuple[SeenPath, datetime]] = {}

    def resting(
        self, files: Files, at: CollectorDirectory, now: datetime, rest_s: float
    ) -> Iterator[tuple[datetime, Mapping[str, SeenPath]]]:
        """The minutes of which all files rest, oldest first, with the files as they were seen."""
        minutes, _ = plain_minutes(at)
        paths = {join(at.path, name) for names in minutes.values() for name in names}
        for gone in [path for path in self._since if path.rpartition("/")[0] == at.path and path not in paths]:
            del self._since[gone]
        for minute, names in sorted(minutes.items()):
            seen = {name: files.look(join(at.path, name)) for name in names}
            there = {name: each for name, each in seen.items() if each is not None}
            rest = [self._rests(join(at.path, name), each, now, rest_s) for name, each in there.items()]
            if there == seen and all(rest) and minute <= now - timedelta(minutes=1):
                yield minute, there

    def _rests(self, path: str, seen: SeenPath, now: datetime, rest_s: float) -> bool:
        before, since = self._since.get(path, (None, now))
        if before != seen:
            self._since[path] = seen, (since := now)
        old = self.dates_count and now.timestamp() - seen.modified >= max(LONG_S, rest_s)
        return old or (now - since).total_seconds() >= rest_s
