"""What a stream service is told: the three services are three settings of one code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from waltz_ray.errors import ConfigError, InvalidInput
from waltz_spark.streams.layout import LOCAL, STREAMS, checked_name, consumers_path, mirrors_path

__all__ = ["MOST_HOURS", "MOST_SECONDS", "CategoryRetention", "Kind", "Layout", "Source", "StreamSettings"]

Kind = Literal["local", "merged", "mirror"]
Layout = Literal["parts", "document"]

_LEAST = {"spark_copy_bytes": 0, "copy_tasks": 1, "copy_bytes_per_task": 1, "split_bytes": 0, "compact_bytes": 0}

MOST_HOURS = 1_000_000
"""Of retention, more than a century: what is beyond is a slip, and no date to calculate with."""
MOST_SECONDS = MOST_HOURS * 3600
"""Of all other times. NaN is in no range."""


@dataclass(frozen=True, slots=True)
class CategoryRetention:
    """Another service of the same root keeps ``categories``, () = all, for ``hours``."""

    categories: tuple[str, ...]
    hours: int


@dataclass(frozen=True, slots=True)
class Source:
    """A producer whose announcements are taken: its thread's name and its root."""

    producer: str
    root: str


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """One thread: a service with its root.

    ============= ============================ ==========================
    kind          takes                        publishes in its root
    ============= ============================ ==========================
    local         complete minutes in data/    streams_local/
    merged        what several locals announce streams/
    mirror        what one merged announces    streams/, the same paths
    ============= ============================ ==========================
    """

    kind: Kind
    name: str
    """The thread: the node ``/databus/<name>``, and for a local the first half of its parts' names. Unique."""

    root: str
    """A directory, or a ``scheme://`` URI."""

    sources: tuple[Source, ...] = ()
    """merged: one or more locals; mirror: exactly one merged (or mirror); local: none."""

    consumers: tuple[str, ...] = ()
    """Threads every published path is announced to."""

    categories: tuple[str, ...] = ()
    """Only these; () = all there are. Announcements of other categories stay where they are."""

    layout: Layout = "parts"
    """How it publishes (``placing``): a directory for each part, or, ``document``, files in the minute's directory. Its
    sources and consumers may have the other."""

    retention_hours: int = 72
    """Published parts are purged when their hour lies this many full hours before the current one."""

    also_kept: tuple[CategoryRetention, ...] = ()
    """What other services of the root keep for how long: a category is purged when the longest of them is over."""

    trash_retention_hours: int = 24
    """The same for inputs in the trash: a day to look at what went wrong."""

    interval_s: float = 5.0
    """Pause between two passes of the loop; minutes arrive one a minute."""

    holes_after_s: float = 600.0
    """local: where a minute of a collector is missing between two, an empty one is published so long after its end; 0:
    never. What comes still later for that minute goes to quarantine, so it is longer than any delay on the way here."""

    plain_rest_s: float = 60.0
    """local: files of other writers, which bring no markers (``plain``), are taken when they have not changed for so
    long; 0: never."""

    spark_copy_bytes: int = 0
    """What waits is copied by Spark tasks when it is at least so much, and there is a Spark; 0: always by the service
    itself. Starting tasks takes some tenths of a second: below some hundred megabytes they bring nothing."""

    copy_tasks: int = 4
    """How many Spark tasks copy at the same time, at the most."""

    copy_bytes_per_task: int = 1024**3
    """What waits is copied and then committed in batches of about so much for each task: what a crash lets be copied
    twice, and the temporaries that there are at the same time."""

    split_bytes: int = 1024**3
    """A file with more is copied in pieces of so many, by several tasks, where the root's file system can join them:
    directories, and Hadoop file systems with ``concat``. On a single disk that can share no blocks between files this
    writes it twice; 0: never."""

    compact_bytes: int = 0
    """local, merged: Parquet files of a part that have together at most so many bytes become one with the same records
    (``compacting``); 0: never. Whoever compacts them has three times as much in memory; 128 MiB are a good value."""

    zookeeper_root: str = "/databus"

    @property
    def stream(self) -> str:
        """The stream that it publishes to: ``streams_local`` or ``streams``."""
        return LOCAL if self.kind == "local" else STREAMS

    @property
    def node(self) -> str:
        return f"{self.zookeeper_root}/{self.name}"

    def inbox(self, consumer: str) -> str:
        """The directory of what it announces to a consumer."""
        in_mirrors = self.layout == "document" and self.kind != "local"
        return (mirrors_path if in_mirrors else consumers_path)(self.root, consumer, self.name)

    def retention_of(self, category: str) -> int:
        """Hours for which the root keeps a category: the largest of what its services say."""
        others = (each.hours for each in self.also_kept if not each.categories or category in each.categories)
        return max(self.retention_hours, *others, 0)

    def validate(self) -> StreamSettings:
        """Itself; ConfigError names the field that is out of range."""
        try:
            checked_name("name", self.name)
            for consumer in self.consumers:
                checked_name("consumer", consumer)
            for category in self.categories:
                checked_name("category", category)
            for source in self.sources:
                checked_name("source", source.producer)
        except InvalidInput as error:
            raise ConfigError(f"stream service: {error}") from error
        self._check_sources()
        if self.layout not in get_args(Layout):
            raise ConfigError(f"stream service {self.name}: layout must be parts or document, not {self.layout!r}")
        if not self.root or any(not source.root for source in self.sources):
            raise ConfigError(f"stream service {self.name}: a root is missing")
        for field in ("retention_hours", "trash_retention_hours"):
            if not 1 <= (hours := getattr(self, field)) <= MOST_HOURS:
                raise ConfigError(f"stream service {self.name}: {field} must be 1 to {MOST_HOURS}, not {hours}")
        for field, least in _LEAST.items():
            if getattr(self, field) < least:
                raise ConfigError(f"stream service {self.name}: {field} must be at least {least}")
        if self.kind == "mirror" and self.compact_bytes:
            raise ConfigError(
                f"stream service {self.name}: a mirror has the bytes of its source; take compact_bytes away"
            )
        if not 0 < self.interval_s <= MOST_SECONDS:
            raise ConfigError(
                f"stream service {self.name}: interval_s must be more than 0, and at most {MOST_SECONDS}, not "
                f"{self.interval_s}"
            )
        for field in ("holes_after_s", "plain_rest_s"):
            if not 0 <= (seconds := getattr(self, field)) <= MOST_SECONDS:
                raise ConfigError(f"stream service {self.name}: {field} must be 0 to {MOST_SECONDS}, not {seconds}")
        if not self.zookeeper_root.startswith("/") or self.zookeeper_root.endswith("/"):
            raise ConfigError(f"stream service {self.name}: zookeeper_root must be a path, not {self.zookeeper_root!r}")
        return self

    def _check_sources(self) -> None:
        producers = [source.producer for source in self.sources]
        wrong = {
            "local": len(producers) != 0 and "a local has no sources: it takes what is in data/",
            "merged": len(producers) < 1 and "a merged needs at least one source",
            "mirror": len(producers) != 1 and "a mirror needs exactly one source",
        }
        if self.kind not in wrong:
            raise ConfigError(f"stream service {self.name}: kind must be local, merged or mirror, not {self.kind!r}")
        problem = wrong[self.kind]
        if problem:
            raise ConfigError(f"stream service {self.name}: {problem}; it has {len(producers)}")
        if len(set(producers)) != len(producers):
            raise ConfigError(f"stream service {self.name}: a source is named twice")
        if self.name in (*producers, *self.consumers) or len(set(self.consumers)) != len(self.consumers):
            raise ConfigError(
                f"stream service {self.name}: it cannot consume itself, nor announce twice to one consumer"
            )
