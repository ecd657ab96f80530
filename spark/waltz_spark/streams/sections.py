"""What may stand in each section of the services' TOML file, and of which type it must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, get_type_hints

from waltz_ray.config import build
from waltz_ray.errors import ConfigError
from waltz_spark.streams.collector import CollectorSettings
from waltz_spark.streams.settings import StreamSettings

__all__ = ["CollectorSection", "ServiceSection", "TopSection", "read_section", "table_of"]

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
    layout: str = _SERVICE.layout
    retention_hours: int = _SERVICE.retention_hours
    trash_retention_hours: int = _SERVICE.trash_retention_hours
    interval_s: float = 0.0  # 0 = the file's
    holes_after_s: float = _SERVICE.holes_after_s
    plain_rest_s: float = _SERVICE.plain_rest_s
    spark_copy_bytes: int = _SERVICE.spark_copy_bytes
    copy_tasks: int = _SERVICE.copy_tasks
    copy_bytes_per_task: int = _SERVICE.copy_bytes_per_task
    split_bytes: int = _SERVICE.split_bytes
    compact_bytes: int = _SERVICE.compact_bytes


@dataclass(frozen=True)
class TopSection:
    """The file."""

    zookeeper: str = ""
    zookeeper_root: str = _SERVICE.zookeeper_root
    interval_s: float = _SERVICE.interval_s
    roots: dict[str, Any] = field(default_factory=dict)
    collectors: dict[str, Any] = field(default_factory=dict)
    services: dict[str, Any] = field(default_factory=dict)
    outside: dict[str, Any] = field(default_factory=dict)


def table_of(kind: str, name: str, section: Any) -> Mapping[str, Any]:
    if not isinstance(section, dict):
        raise ConfigError(f"{kind}.{name} must be a section [{kind}.{name}], not {section!r}")
    return section


def read_section(where: str, kind: type[Section], values: Mapping[str, Any]) -> Section:
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
