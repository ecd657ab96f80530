"""What an actor writes into its log, and reads of it again: one event, one line.

    2026-11-24T11:00:00.123Z WARNING shop replica/0 waltz_ray.storage.scrub: partition 3: ...

The time (UTC), the level, the cluster, the actor, the logger, and what happened. A line's end within the text, as in a
traceback, is written as ``\\n``, a backslash as ``\\\\``.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from datetime import datetime, timezone

__all__ = ["EventFormatter", "LogEvent", "parsed_line"]

_LINE = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) ([A-Z]+) ([\w.-]+) ([a-z-]+(?:/\d+)?) ([\w.-]+): (.*)", re.DOTALL
)
_PARTITION = re.compile(r"\bpartition (\d+)\b")
_ESCAPED = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n", "r": "\r", "\\": "\\"}


@dataclass(frozen=True, order=True)
class LogEvent:
    """``at_ms`` since the epoch; ``text`` as it was logged, a traceback behind it."""

    at_ms: int
    cluster: str
    actor: str
    level: str
    logger: str
    text: str

    @property
    def partition(self) -> int | None:
        """Which partition it is about, by the first number its text has; a topic's actor counts those of its topic."""
        found = _PARTITION.search(self.text)
        return int(found[1]) if found else None

    @property
    def severity(self) -> int:
        """As a number, as ``logging`` counts; 0 for a level that it does not know."""
        level = logging.getLevelName(self.level)
        return level if isinstance(level, int) else 0


class EventFormatter(logging.Formatter):
    """Of all that one actor logs."""

    def __init__(self, cluster: str, actor: str) -> None:
        super().__init__()
        self._who = f"{cluster} {actor}"

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)  # the message and its traceback
        text = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        when = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        return f"{when.removesuffix('+00:00')}Z {record.levelname} {self._who} {record.name}: {text}"


def parsed_line(line: str) -> LogEvent | None:
    """None if an ``EventFormatter`` did not write it: Ray and libraries write into the same files."""
    found = _LINE.fullmatch(line.rstrip("\n"))
    if found is None:
        return None
    when, level, cluster, actor, logger, text = found.groups()
    try:
        at = datetime.strptime(when, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
    except ValueError:
        return None
    text = _ESCAPED.sub(lambda pair: _UNESCAPED.get(pair[1], pair[0]), text)
    return LogEvent(round(at.timestamp() * 1000), cluster, actor, level, logger, text)
