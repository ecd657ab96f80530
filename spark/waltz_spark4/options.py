"""The options of ``format("waltz")``: strings with names in any case, as Spark gives them. Pure: no Spark."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from waltz_ray.client.readers.ranges import Bound, parsed_time
from waltz_ray.client.readers.reading import BYTES_PER_TASK, DEFAULT_SPACE, Reading
from waltz_ray.errors import InvalidInput

__all__ = ["Options"]


@dataclass(frozen=True)
class Options:
    """What a read is of. ``docs/spark4.md`` says what each option means.

    ``stop`` is None where none was given (the end of the log), ``max_records_per_trigger`` where there is no limit.
    """

    reading: Reading
    partitions: list[int] | None
    start: Bound
    stop: Bound | None
    bytes_per_task: int
    max_records_per_trigger: int | None
    push_filters: bool

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """InvalidInput names the option that is unknown, missing, or makes no sense."""
        values = {name.lower(): value for name, value in given.items()}
        _refuse_unknown(values)

        def value(name: str, parse: Callable[[str, str], Any], default: Any) -> Any:
            text = values.get(name.lower())
            return default if text is None else parse(name, text.strip())

        if ("zookeeper" in values) == ("endpoints" in values):
            raise InvalidInput("format 'waltz' needs the option zookeeper or the option endpoints, and not both")
        cluster = value("cluster", _text, os.environ.get("WALTZ_CLUSTER", ""))
        options = cls(
            reading=Reading.of(
                where=value("zookeeper", _text, None) or value("endpoints", _endpoints, None),
                cluster=cluster or "waltz",
                source=value("source", _text, "server"),
                columns=value("columns", _names, None),
                space=value("space", _text, DEFAULT_SPACE),
            ),
            partitions=value("partitions", _ids, None),
            start=value("start", _bound, "earliest"),
            stop=value("stop", _bound, None),
            bytes_per_task=value("bytesPerTask", _positive, BYTES_PER_TASK),
            max_records_per_trigger=value("maxRecordsPerTrigger", _positive, None),
            push_filters=value("pushFilters", _flag, True),
        )
        if "zookeeper" in values and not cluster:
            raise InvalidInput("format 'waltz' needs the option cluster beside zookeeper, which may have several")
        return options


_NAMES = (
    *("zookeeper", "endpoints", "cluster", "source", "columns", "partitions", "start", "stop"),
    *("bytesPerTask", "maxRecordsPerTrigger", "pushFilters", "space"),
)


def _refuse_unknown(values: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in _NAMES}
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {known[near[0]]!r}?" if near else f"known options: {', '.join(_NAMES)}"
            raise InvalidInput(f"format 'waltz' has no option {name!r}; {hint}")


def _bad(name: str, expected: str, text: str) -> InvalidInput:
    return InvalidInput(f"option {name} must be {expected}, not {text!r}")


def _text(name: str, text: str) -> str:
    if not text:
        raise _bad(name, "given", text)
    return text


def _positive(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise _bad(name, "a whole number of at least 1", text)
    return int(text)


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise _bad(name, "true or false", text)
    return text.lower() == "true"


def _names(name: str, text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _ids(name: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise _bad(name, "partition IDs like '0,2'", text)
    return sorted({int(part) for part in parts})


def _table(text: str) -> dict[int, str] | None:
    """Of "0=a,1=b"; None if it is something else, or names a partition twice."""
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(key.strip().isdecimal() and value.strip() for key, _, value in pairs):
        return None
    table = {int(key): value.strip() for key, _, value in pairs}
    return table if len(table) == len(pairs) else None


def _endpoints(name: str, text: str) -> dict[int, str]:
    table = _table(text)
    if table is None or not all(":" in each and each.rpartition(":")[2].isdecimal() for each in table.values()):
        raise _bad(name, "a server for each partition like '0=127.0.0.1:7001,1=127.0.0.1:7002'", text)
    return table


def _bound(name: str, text: str) -> Bound:
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isdecimal():
        return int(text)
    table = _table(text)
    if table is None or not all(each.isdecimal() for each in table.values()):
        return _time(name, text)
    return {partition: int(each) for partition, each in table.items()}


def _time(name: str, text: str) -> datetime:
    try:
        when = parsed_time(text)
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        raise _bad(
            name,
            "'earliest', 'latest', a transaction ID >= 0, one for each partition like '0=5,1=7', or a time with its "
            "zone like '2026-11-21T12:00Z'",
            text,
        )
    return when
