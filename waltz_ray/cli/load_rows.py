"""Rows of .csv, .jsonl and .parquet files for ``waltz load``, read in batches.

``inspect_file`` reads the file once before anything is appended: it counts the rows, and a damaged file or a missing
column is found while there is nothing to take back. Values stay what the file says:

- CSV: whole numbers, decimals and booleans become JSON's; dates and everything else stay text, and so does a column in
  which one value further down is no number. ``text=True`` keeps all values as text (codes with leading zeros).
- JSON lines: the object of each line. A line that is no object is an error.
- Parquet: dates become ISO text, binary values base64, decimals text.

Not-a-number and infinity, which JSON does not have, become null.
"""

from __future__ import annotations

import base64
import difflib
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from waltz_ray.errors import InvalidInput

__all__ = ["Row", "RowFile", "inspect_file", "read_rows", "row_data"]

Row = dict[str, Any]

_BATCH_ROWS = 4096
_CSV_BLOCK_BYTES = 1 << 20
_ENDINGS = (".csv", ".jsonl", ".parquet")
_PLAIN = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string)


@dataclass(frozen=True)
class RowFile:
    """A file that has been read once: its rows, and for CSV the columns that have to stay text."""

    path: Path
    rows: int
    columns: tuple[str, ...]
    text_columns: frozenset[str] = field(default_factory=frozenset)


def inspect_file(path: Path, key: str, text: bool = False) -> RowFile:
    """Read the whole file once. InvalidInput: it cannot be read, or has rows but no column ``key``."""
    if path.suffix.lower() not in _ENDINGS:
        raise InvalidInput(f"{path} cannot be loaded: its name must end in {', '.join(_ENDINGS)}")
    if not path.is_file():
        raise InvalidInput(f"{path} is {'no file' if path.exists() else 'not there'}")
    inspect = {".csv": _inspect_csv, ".jsonl": _inspect_jsonl, ".parquet": _inspect_parquet}[path.suffix.lower()]
    try:
        found = inspect(path, text)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InvalidInput(
            f"{path} is damaged or no {path.suffix.lower()} file: {_one_line(error)}; nothing was appended"
        ) from error
    if key not in found.columns and (found.rows or found.columns):
        nearest = sorted(
            found.columns, key=lambda name: -difflib.SequenceMatcher(None, name.lower(), key.lower()).ratio()
        )
        raise InvalidInput(f"{path} has no column {key!r}; it has {', '.join(nearest)}")
    return found


def read_rows(file: RowFile) -> Iterator[Row]:
    """The rows, in the order of the file."""
    try:
        match file.path.suffix.lower():
            case ".csv":
                yield from _rows(_open_csv(file.path, file.text_columns))
            case ".parquet":
                yield from _rows(pa.parquet.ParquetFile(file.path).iter_batches(_BATCH_ROWS))
            case _:
                yield from _jsonl(file.path)
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(f"{file.path} has changed while it was read: {_one_line(error)}") from error


def row_data(row: Row) -> bytes:
    """The row as compact JSON in UTF-8: the data of its transaction."""
    try:
        return _encode(row).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which UTF-8 cannot hold but JSON can write as \uXXXX
        return json.dumps(row, allow_nan=False, separators=(",", ":"), default=_as_json).encode()
    except ValueError:
        return row_data({name: _finite(value) for name, value in row.items()})


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_as_json).encode


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _rows(batches: Iterable[Any]) -> Iterator[Row]:
    for batch in batches:
        yield from batch.to_pylist()


def _open_csv(path: Path, text_columns: frozenset[str]) -> Any:
    return pa.csv.open_csv(
        path,
        read_options=pa.csv.ReadOptions(block_size=_CSV_BLOCK_BYTES),
        parse_options=pa.csv.ParseOptions(newlines_in_values=True),
        convert_options=pa.csv.ConvertOptions(column_types=dict.fromkeys(text_columns, pa.string())),
    )


def _inspect_csv(path: Path, text: bool) -> RowFile:
    if not path.stat().st_size:
        raise InvalidInput(f"{path} is empty: a .csv file begins with the names of its columns")
    text_columns: frozenset[str] = frozenset()
    while True:
        try:
            reader = _open_csv(path, text_columns)
            names = tuple(reader.schema.names)
            kept = frozenset(names) if text else frozenset(f.name for f in reader.schema if not _is_plain(f.type))
            if not kept <= text_columns:
                text_columns |= kept
                continue
            return RowFile(path, sum(batch.num_rows for batch in reader), names, text_columns)
        except pa.ArrowInvalid as error:
            # The type was guessed from the first block; a value further down does not have it.
            column = re.search(r"In CSV column #(\d+)", str(error))
            if column is None or names[int(column[1])] in text_columns:
                raise
            text_columns |= {names[int(column[1])]}


def _is_plain(kind: Any) -> bool:
    return any(is_kind(kind) for is_kind in _PLAIN)


def _inspect_parquet(path: Path, text: bool) -> RowFile:
    file = pa.parquet.ParquetFile(path)
    return RowFile(path, sum(b.num_rows for b in file.iter_batches(_BATCH_ROWS)), tuple(file.schema_arrow.names))


def _inspect_jsonl(path: Path, text: bool) -> RowFile:
    columns: dict[str, None] = {}
    count = 0
    for row in _jsonl(path):
        count += 1
        columns |= dict.fromkeys(row)
    return RowFile(path, count, tuple(columns))


def _jsonl(path: Path) -> Iterator[Row]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InvalidInput(f"{path}, line {number} is no JSON: {_one_line(error)}") from error
            if not isinstance(row, dict):
                raise InvalidInput(
                    f"{path}, line {number} is no JSON object but {line[:40].decode(errors='replace')!r}"
                )
            yield row
