"""One TOML file that names the services of a place: what each is told, and that they fit together.

::

    zookeeper = "127.0.0.1:2181"          # "" = that of the first collector's cluster, found through Ray
    interval_s = 5.0

    [roots]
    tokyo = "/logs/tokyo"
    osaka = "/logs/osaka"

    [collectors.c1]                       # feed -> data/bank/c1/
    root = "tokyo"
    category = "bank"
    cluster = "bank"

    [services.tokyo-local]                # data/ -> streams_local/
    kind = "local"
    root = "tokyo"
    consumers = ["tokyo-merged"]

    [services.tokyo-merged]               # streams_local/ -> streams/
    kind = "merged"
    root = "tokyo"
    sources = ["tokyo-local"]
    consumers = ["osaka-mirror"]

    [services.osaka-mirror]               # streams/ -> streams/ of another root
    kind = "mirror"
    root = "osaka"
    sources = ["tokyo-merged"]

    [outside]                             # threads that another file runs, and their roots
    kyoto-local = "hdfs://kyoto/logs"

Every other field is one of ``CollectorSettings`` or ``StreamSettings``, with its default. A name that another section
should have and does not have, a link that only one of its two ends knows, a key nobody knows: each is a ConfigError.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from waltz_ray import compat
from waltz_ray.config import build
from waltz_ray.errors import ConfigError, InvalidInput
from waltz_spark.streams.claims import overlap
from waltz_spark.streams.collector import CollectorSettings
from waltz_spark.streams.files import normal_root
from waltz_spark.streams.layout import checked_name
from waltz_spark.streams.settings import Source, StreamSettings

__all__ = ["StreamsConfig", "parse_config", "read_config"]

Section = TypeVar("Section")

# For their defaults.
_COLLECTOR, _SERVICE = CollectorSettings("", "", ""), StreamSettings("local", "", "")

_TEXTS = tuple[str, ...]
_NUMBERS = tuple[int, ...]


@dataclass(frozen=True)
class CollectorSection:
    """The section ``[collectors.NAME]`` of the TOML file."""

    root: str = ""
    category: str = ""
    cluster: str = ""
    partitions: tuple[int, ...] = ()
    format: str = "parquet"
    bytes_per_task: int = _COLLECTOR.bytes_per_task
    interval_s: float = _COLLECTOR.interval_s
    settle_s: float = _COLLECTOR.settle_s


@dataclass(frozen=True)
class ServiceSection:
    """The section ``[services.NAME]`` of the TOML file."""

    kind: str = ""
    root: str = ""
    sources: tuple[str, ...] = ()
    consumers: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    retention_hours: int = _SERVICE.retention_hours
    trash_retention_hours: int = _SERVICE.trash_retention_hours
    interval_s: float = 0.0  # 0 = the file's
    holes_after_s: float = _SERVICE.holes_after_s
    plain_rest_s: float = _SERVICE.plain_rest_s
    spark_copy_bytes: int = _SERVICE.spark_copy_bytes
    copy_tasks: int = _SERVICE.copy_tasks
    copy_bytes_per_task: int = _SERVICE.copy_bytes_per_task


@dataclass(frozen=True)
class _Top:
    """The file."""

    zookeeper: str = ""
    zookeeper_root: str = _SERVICE.zookeeper_root
    interval_s: float = _SERVICE.interval_s
    roots: dict[str, Any] = field(default_factory=dict)
    collectors: dict[str, Any] = field(default_factory=dict)
    services: dict[str, Any] = field(default_factory=dict)
    outside: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StreamsConfig:
    """What the file says. ``services`` are ordered: each behind those of its sources that are in the file."""

    zookeeper: str = ""
    """``host:port,...`` of /databus and of the collectors' clusters; "" = asked from the first collector's cluster."""

    zookeeper_root: str = _SERVICE.zookeeper_root
    collectors: tuple[CollectorSettings, ...] = ()
    services: tuple[StreamSettings, ...] = ()

    cluster: str | None = None
    """Of the first collector of the file, also where ``only`` left it out; "" = the one that is meant; None = there is
    no collector."""

    @property
    def names(self) -> list[str]:
        """Of all threads, collectors first."""
        return [*(each.name for each in self.collectors), *(each.name for each in self.services)]

    @property
    def roots(self) -> list[str]:
        """Every root that is touched, once each."""
        sources = (source.root for each in self.services for source in each.sources)
        own = [*(each.root for each in self.collectors), *(each.root for each in self.services)]
        return list(dict.fromkeys([*own, *sources]))

    @property
    def uses_spark(self) -> bool:
        """Whether a collector is in it, which writes with tasks, or a service that copies with them."""
        return bool(self.collectors) or any(each.spark_copy_bytes for each in self.services)

    def only(self, names: Sequence[str]) -> StreamsConfig:
        """The configuration of these threads only, () = all. ConfigError for a name that is not in it."""
        for name in names:
            if name not in self.names:
                raise ConfigError(f"there is no service {name!r} in the file{_nearest(name, self.names)}")
        if not names:
            return self
        return replace(
            self,
            collectors=tuple(each for each in self.collectors if each.name in names),
            services=tuple(each for each in self.services if each.name in names),
        )

    def validate(self) -> StreamsConfig:
        """Itself, its roots as absolute paths; ConfigError says what of it cannot be."""
        collectors = tuple(each.validate() for each in self.collectors)
        services = tuple(_with_normal_roots(each.validate()) for each in self.services)
        checked = replace(self, collectors=collectors, services=services)
        for problem in _problems(checked):
            raise ConfigError(problem)
        return checked


def read_config(path: Path) -> StreamsConfig:
    """ConfigError, naming the file, for one that cannot be read or understood."""
    try:
        values = compat.tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}; give the services' file with --config") from error
    except (UnicodeDecodeError, compat.tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    try:
        return parse_config(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_config(values: Mapping[str, Any]) -> StreamsConfig:
    """From the TOML's values. ConfigError."""
    top = _section("", _Top, values)
    for name, root in (*top.roots.items(), *top.outside.items()):
        if not isinstance(root, str) or not root:
            raise ConfigError(f"the root of {name} must be a directory or a URI, not {root!r}")
    collectors = tuple(
        _collector(top, name, _section(f"[collectors.{name}] ", CollectorSection, _table("collectors", name, section)))
        for name, section in top.collectors.items()
    )
    sections = {
        name: _section(f"[services.{name}] ", ServiceSection, _table("services", name, section))
        for name, section in top.services.items()
    }
    services = tuple(_service(top, name, sections) for name in _ordered(sections))
    cluster = collectors[0].cluster if collectors else None
    return StreamsConfig(top.zookeeper, top.zookeeper_root, collectors, services, cluster).validate()


def _table(kind: str, name: str, section: Any) -> Mapping[str, Any]:
    if not isinstance(section, dict):
        raise ConfigError(f"{kind}.{name} must be a section [{kind}.{name}], not {section!r}")
    return section


def _section(where: str, kind: type[Section], values: Mapping[str, Any]) -> Section:
    """``build``, with the section's name in its errors, lists as tuples, and every value of its field's type."""
    try:
        section = build(kind, {key: tuple(each) if isinstance(each, list) else each for key, each in values.items()})
    except ConfigError as error:
        raise ConfigError(where + str(error).partition(": ")[2]) from error
    hints = get_type_hints(kind)
    for each in fields(kind):  # type: ignore[arg-type]
        value = getattr(section, each.name)
        if not _fits(value, hints[each.name]):
            raise ConfigError(f"{where}{each.name} must be {_WORDS[hints[each.name]]}, not {_shown(value)}")
    return section


_WORDS: dict[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    _TEXTS: "a list of texts",
    _NUMBERS: "a list of whole numbers",
    dict[str, Any]: "a section",
}


def _fits(value: Any, hint: Any) -> bool:
    if hint in (_TEXTS, _NUMBERS):
        inner = str if hint == _TEXTS else int
        return isinstance(value, tuple) and all(_fits(each, inner) for each in value)
    if hint == dict[str, Any]:
        return isinstance(value, dict)
    if isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if hint is float else hint)


def _shown(value: Any) -> str:
    return repr(list(value)) if isinstance(value, tuple) else repr(value)


def _root(top: _Top, where: str, name: str) -> str:
    if name not in top.roots:
        raise ConfigError(f"{where} root must be one of [roots], not {name!r}{_nearest(name, list(top.roots))}")
    return str(top.roots[name])


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known) or 'none'}"


def _collector(top: _Top, name: str, section: CollectorSection) -> CollectorSettings:
    root = _root(top, f"[collectors.{name}]", section.root)
    values = {each.name: getattr(section, each.name) for each in fields(section)}
    return CollectorSettings(**values | {"name": name, "root": root, "zookeeper_root": top.zookeeper_root})


def _service(top: _Top, name: str, sections: Mapping[str, ServiceSection]) -> StreamSettings:
    section = sections[name]
    where = f"[services.{name}]"
    values = {each.name: getattr(section, each.name) for each in fields(section)}
    sources = []
    for producer in section.sources:
        if producer in sections:
            sources.append(Source(producer, _root(top, f"[services.{producer}]", sections[producer].root)))
        elif producer in top.outside:
            sources.append(Source(producer, str(top.outside[producer])))
        else:
            known = [*sections, *top.outside]
            raise ConfigError(f"{where} there is no source {producer!r}{_nearest(producer, known)}")
    for consumer in section.consumers:
        if consumer not in sections and consumer not in top.outside:
            known = [*sections, *top.outside]
            raise ConfigError(
                f"{where} there is no consumer {consumer!r}{_nearest(consumer, known)} "
                "(one that another file runs is named under [outside])"
            )
    more = {
        "name": name,
        "root": _root(top, where, section.root),
        "sources": tuple(sources),
        "interval_s": section.interval_s or top.interval_s,
        "zookeeper_root": top.zookeeper_root,
    }
    return StreamSettings(**values | more)


def _ordered(sections: Mapping[str, ServiceSection]) -> list[str]:
    """Sources first; ConfigError for services that wait for each other."""
    ordered: list[str] = []
    while len(ordered) < len(sections):
        ready = [
            name
            for name, section in sections.items()
            if name not in ordered and all(each in ordered or each not in sections for each in section.sources)
        ]
        if not ready:
            circle = [name for name in sections if name not in ordered]
            raise ConfigError(f"services {', '.join(circle)} take from each other in a circle")
        ordered += ready
    return ordered


def _with_normal_roots(service: StreamSettings) -> StreamSettings:
    sources = tuple(replace(each, root=normal_root(each.root)) for each in service.sources)
    return replace(service, root=normal_root(service.root), sources=sources)


def _problems(config: StreamsConfig) -> Iterator[str]:
    """What does not fit together, each in one line."""
    if not config.names:
        yield "there is no [collectors.NAME] and no [services.NAME] in it"
    for name in config.names:
        if config.names.count(name) > 1:
            yield f"{name} is a collector and a service; both would write /databus/{name}: give one another name"
        try:
            checked_name("name", name)
        except InvalidInput as error:
            yield str(error)
    services = {each.name: each for each in config.services}
    for service in config.services:
        yield from _link_problems(service, services)
    locals_ = [each for each in config.services if each.kind == "local"]
    for number, one in enumerate(locals_):
        for other in locals_[number + 1 :]:
            if one.root == other.root and overlap(one.categories, other.categories):
                yield (
                    f"{one.name} and {other.name} would both take the same categories from {one.root}, and publish "
                    "them twice; let one of them go, or give each its own categories"
                )
    places = [(each.root, each.kind) for each in config.services if each.kind == "local"]
    for collector in config.collectors:
        if config.services and (collector.root, "local") not in places:
            yield f"collector {collector.name} writes to {collector.root}, where the file has no local service"


def _link_problems(service: StreamSettings, services: Mapping[str, StreamSettings]) -> Iterator[str]:
    for source in service.sources:
        producer = services.get(source.producer)
        if producer is None:
            continue  # an outside one
        if service.name not in producer.consumers:
            yield (
                f"{service.name} takes from {producer.name}, which does not announce to it; add it to the consumers of "
                f"[services.{producer.name}]"
            )
        wanted = "local" if service.kind == "merged" else "merged or mirror"
        if producer.kind not in wanted.split(" or "):
            yield f"{service.name}, a {service.kind}, takes from a {wanted}; {producer.name} is a {producer.kind}"
    for name in service.consumers:
        consumer = services.get(name)
        if consumer is not None and service.name not in [source.producer for source in consumer.sources]:
            yield (
                f"{service.name} announces to {name}, which does not take from it; add it to the sources of "
                f"[services.{name}]"
            )
