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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from waltz_ray import compat
from waltz_ray.errors import ConfigError, InvalidInput
from waltz_ray.small_files import read_small_file
from waltz_spark.streams.collector import CollectorSettings
from waltz_spark.streams.files import normal_root
from waltz_spark.streams.fitting import fit_problems, with_category_retention
from waltz_spark.streams.sections import CollectorSection, ServiceSection, TopSection, read_section, table_of
from waltz_spark.streams.settings import Source, StreamSettings

__all__ = ["StreamsConfig", "parse_config", "read_config"]

_SERVICE = StreamSettings("local", "", "")  # for its defaults


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
        for problem in fit_problems(collectors, services):
            raise ConfigError(problem)
        return replace(self, collectors=collectors, services=with_category_retention(services))


def read_config(path: Path) -> StreamsConfig:
    """ConfigError, naming the file, for one that cannot be read or understood."""
    try:
        values = compat.tomllib.loads(read_small_file(path).decode())
    except InvalidInput as error:
        raise ConfigError(f"{error}; give the services' file with --config") from error
    except (UnicodeDecodeError, compat.tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    try:
        return parse_config(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_config(values: Mapping[str, Any]) -> StreamsConfig:
    """From the TOML's values. ConfigError."""
    top = read_section("", TopSection, values)
    for name, root in (*top.roots.items(), *top.outside.items()):
        if not isinstance(root, str) or not root:
            raise ConfigError(f"the root of {name} must be a directory or a URI, not {root!r}")
    collectors = tuple(
        _collector(
            top, name, read_section(f"[collectors.{name}] ", CollectorSection, table_of("collectors", name, section))
        )
        for name, section in top.collectors.items()
    )
    sections = {
        name: read_section(f"[services.{name}] ", ServiceSection, table_of("services", name, section))
        for name, section in top.services.items()
    }
    services = tuple(_service(top, name, sections) for name in _ordered(sections))
    cluster = collectors[0].cluster if collectors else None
    return StreamsConfig(top.zookeeper, top.zookeeper_root, collectors, services, cluster).validate()


def _root(top: TopSection, where: str, name: str) -> str:
    if name not in top.roots:
        raise ConfigError(f"{where} root must be one of [roots], not {name!r}{_nearest(name, list(top.roots))}")
    return str(top.roots[name])


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known) or 'none'}"


def _collector(top: TopSection, name: str, section: CollectorSection) -> CollectorSettings:
    root = _root(top, f"[collectors.{name}]", section.root)
    values = {each.name: getattr(section, each.name) for each in fields(section)}
    return CollectorSettings(**values | {"name": name, "root": root, "zookeeper_root": top.zookeeper_root})


def _service(top: TopSection, name: str, sections: Mapping[str, ServiceSection]) -> StreamSettings:
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
