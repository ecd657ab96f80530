"""Rows of a .parquet file as JSON objects, without loss.

Whole and floating-point numbers become JSON's, with every digit; decimals text with theirs ("1.10"); timestamps, dates
and times ISO 8601 down to the nanosecond, UTC where the column has a time zone; durations ISO 8601 in seconds; binary
base64; lists, structs and maps (as lists of pairs) what their values are.
"""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from waltz_ray.cli.load_rows import Choices, FileRow, NanRule, check_columns, constant
from waltz_ray.errors import InvalidInput

__all__ = ["ParquetRows"]

_BATCH_ROWS = 4096
_UNITS_PER_S = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
_EPOCH = datetime(1970, 1, 1)
_PLAIN_EXTENSIONS = ("arrow.uuid", "arrow.json", "arrow.bool8")
"""Types of Arrow's whose Python values say more than what they are stored as."""

Render = Callable[[Any], Any]
"""A value that is not None as one that JSON has."""


class ParquetRows:
    """See ``RowReader``."""

    def __init__(self, path: Path, choices: Choices) -> None:
        if choices.types != "text":
            raise InvalidInput(f"{path}: --types is for .csv; the columns of a .parquet file have their types")
        self._path = path
        self._choices = choices
        try:
            with self._opened() as source:
                self._schema = pa.parquet.ParquetFile(source).schema_arrow
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(error) from error
        check_columns(path, self._schema.names, choices.key)
        self._key = self._schema.names.index(choices.key)
        self._storage = pa.schema([pa.field(each.name, _storage(each.type)) for each in self._schema])
        self._renders = [_renderer(each.type) for each in self._schema]

    def rows(self) -> Iterator[FileRow]:
        number = 0
        try:
            with self._opened() as source, pa.parquet.ParquetFile(source) as file:
                for batch in file.iter_batches(_BATCH_ROWS):
                    columns = [self._column(batch, index, number) for index in range(len(self._renders))]
                    for values in zip(*columns, strict=True):
                        number += 1
                        yield self._row(f"{self._path}, row {number}", values)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._damaged(error) from error

    def _opened(self) -> Any:
        """By the bytes of its name, which may be no UTF-8, as pyarrow wants a text to be."""
        return pa.OSFile(os.fsencode(self._path))

    def finish_inspection(self, count: int) -> None:
        """The columns have been checked at the beginning."""

    def _damaged(self, error: Exception) -> InvalidInput:
        reason = " ".join(str(error).split())
        return InvalidInput(f"{self._path} is damaged or no .parquet file: {reason}; nothing was appended")

    def _column(self, batch: Any, index: int, before: int) -> list[Any]:
        render = self._renders[index]
        try:
            values = batch.column(index).cast(self._storage.field(index).type).to_pylist()
            return values if render is None else [None if value is None else render(value) for value in values]
        except OverflowError as error:  # of a date of Python's
            rows = f"rows {before + 1} to {before + batch.num_rows}"
            raise InvalidInput(
                f"{self._path}, {rows}: column {self._schema.names[index]!r} has a date outside of the years "
                "1 to 9999; nothing was appended"
            ) from error

    def _row(self, place: str, values: tuple[Any, ...]) -> FileRow:
        row = dict(zip(self._schema.names, values, strict=True))
        try:
            data = _encode(row).encode()
        except ValueError:  # not a number, or infinite
            named = {name: _finite(value, self._choices.nan, f"{place}: {name!r}") for name, value in row.items()}
            data = _encode(named).encode()
        key = values[self._key]
        if isinstance(key, dict | list):
            raise InvalidInput(f"{place}: the key {self._choices.key!r} is no text, number, truth value or null")
        return FileRow(place, "" if key is None else key if isinstance(key, str) else json.dumps(key), data)


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str).encode


def _finite(value: Any, rule: NanRule, where: str) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return json.loads(constant(json.dumps(value), rule, where))
    if isinstance(value, dict):
        return {name: _finite(each, rule, where) for name, each in value.items()}
    return [_finite(each, rule, where) for each in value] if isinstance(value, list | tuple) else value


def _storage(kind: Any) -> Any:
    """The type to read a column as: times as their whole numbers, which have no limits but their own."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind if kind.extension_name in _PLAIN_EXTENSIONS else _storage(kind.storage_type)
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind) or pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_time32(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _storage(each.type)) for each in kind])
    if pa.types.is_map(kind):
        return pa.map_(_storage(kind.key_type), _storage(kind.item_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_storage(kind.value_type), kind.list_size)
    if pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(_storage(kind.value_type))
    if pa.types.is_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(_storage(kind.value_type))
    return kind


def _renderer(kind: Any) -> Render | None:
    """None: the values are JSON's."""
    if isinstance(kind, pa.BaseExtensionType):
        if kind.extension_name in _PLAIN_EXTENSIONS:
            return str if kind.extension_name == "arrow.uuid" else None
        return _renderer(kind.storage_type)
    for is_kind, render in _RENDERERS:
        if is_kind(kind):
            return render(kind)
    return None


def _optional(render: Render | None) -> Render:
    return (lambda value: value) if render is None else lambda value: None if value is None else render(value)


def _timestamp(kind: Any) -> Render:
    per_s, zone = _UNITS_PER_S[kind.unit], "Z" if kind.tz else ""

    def render(value: int) -> str:
        seconds, fraction = divmod(value, per_s)
        return (_EPOCH + timedelta(seconds=seconds)).isoformat() + _fraction(fraction, per_s) + zone

    return render


def _time(kind: Any) -> Render:
    per_s = _UNITS_PER_S[kind.unit]

    def render(value: int) -> str:
        seconds, fraction = divmod(value, per_s)
        return (_EPOCH + timedelta(seconds=seconds)).time().isoformat() + _fraction(fraction, per_s)

    return render


def _duration(kind: Any) -> Render:
    per_s = _UNITS_PER_S[kind.unit]

    def render(value: int) -> str:
        seconds, fraction = divmod(abs(value), per_s)
        return f"{'-' if value < 0 else ''}PT{seconds}{_fraction(fraction, per_s)}S"

    return render


def _fraction(value: int, per_s: int) -> str:
    return "." + f"{value + per_s}"[1:].rstrip("0") if value else ""


def _struct(kind: Any) -> Render:
    fields = [(each.name, _optional(_renderer(each.type))) for each in kind]
    return lambda value: {name: render(value[name]) for name, render in fields}


def _list(kind: Any) -> Render:
    render = _optional(_renderer(kind.value_type))
    return lambda value: [render(each) for each in value]


def _map(kind: Any) -> Render:
    key, item = _optional(_renderer(kind.key_type)), _optional(_renderer(kind.item_type))
    return lambda value: [[key(each), item(other)] for each, other in value]


def _dictionary(kind: Any) -> Render:
    return _optional(_renderer(kind.value_type))


_LISTS: tuple[Callable[[Any], bool], ...] = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)
_RENDERERS: tuple[tuple[Callable[[Any], bool], Callable[[Any], Render]], ...] = (
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_time, _time),
    (pa.types.is_duration, _duration),
    (pa.types.is_date, lambda kind: date.isoformat),
    (pa.types.is_decimal, lambda kind: lambda value: format(value, "f") if isinstance(value, Decimal) else str(value)),
    (pa.types.is_binary, lambda kind: _base64),
    (pa.types.is_large_binary, lambda kind: _base64),
    (pa.types.is_binary_view, lambda kind: _base64),
    (pa.types.is_fixed_size_binary, lambda kind: _base64),
    (pa.types.is_float16, lambda kind: float),
    (pa.types.is_struct, _struct),
    (pa.types.is_map, _map),
    (lambda kind: any(is_list(kind) for is_list in _LISTS), _list),
    (pa.types.is_dictionary, _dictionary),
)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()
