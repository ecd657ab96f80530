"""Several Parquet files become one with the same records in the same order. Bytes in, bytes out; no files, no clock.

Only files that differ in nothing but their records are joined: columns, their Parquet types, and what writers have put
into the footer (Spark's and pandas' descriptions of columns) are the same. What is written is read again and compared
with the records of the files it was made of, value by value and in their order, which is more than that counts and sums
are equal. So a type that would be written differently (96-bit timestamps, lists in the old form ...) shows, and the
files are left as they are, like those that cannot be read. Row groups, statistics and encodings are made anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["ROW_GROUP_BYTES", "JoinedParquet", "join_parquet"]

ROW_GROUP_BYTES = 32 * 1024 * 1024
"""In memory, before they are encoded."""

_BATCH_ROWS = 16 * 1024
_ARROW_SCHEMA = b"ARROW:schema"
_UNREADABLE = (pa.ArrowException, OSError, ValueError)  # what pyarrow says of a file that is damaged, or not one


class JoinedParquet(NamedTuple):
    """``content`` has the records of the files of these numbers."""

    content: memoryview
    numbers: list[int]


def join_parquet(contents: Sequence[bytes]) -> list[JoinedParquet]:
    """Those of the files that can be joined, at least two to one; each in their order. The others are left out."""
    kinds: list[dict[int, Any]] = []
    for number, content in enumerate(contents):
        file = _opened(content)
        if file is None:
            continue
        for kind in kinds:
            if _is_same_kind(next(iter(kind.values())), file):
                kind[number] = file
                break
        else:
            kinds.append({number: file})
    joined = (_joined(kind) for kind in kinds)
    return [each for each in joined if each is not None]


def _opened(content: Any) -> Any:
    try:
        return pq.ParquetFile(pa.BufferReader(content))
    except _UNREADABLE:
        return None


def _is_same_kind(one: Any, other: Any) -> bool:
    same_columns = one.schema.equals(other.schema) and one.schema_arrow.equals(other.schema_arrow, check_metadata=True)
    return bool(same_columns) and _footer(one) == _footer(other)


def _footer(file: Any) -> dict[bytes, bytes]:
    """What writers have put there. Of Arrow's own schema that it is there: what it says is in ``schema_arrow``."""
    found = dict(file.metadata.metadata or {})
    return {key: b"" if key == _ARROW_SCHEMA else value for key, value in found.items()}


def _joined(files: dict[int, Any]) -> JoinedParquet | None:
    try:
        return _checked(files)
    except _UNREADABLE:
        whole = {number: file for number, file in files.items() if _is_readable(file)}
        return _checked(whole) if len(whole) < len(files) else None


def _checked(files: dict[int, Any]) -> JoinedParquet | None:
    """None if there are not two, or what they would become has not the same records."""
    if len(files) < 2:
        return None
    first = next(iter(files.values()))
    content = _written(first, _batches(files.values()))
    after = pq.ParquetFile(pa.BufferReader(content))
    rows = sum(file.metadata.num_rows for file in files.values())
    if after.metadata.num_rows != rows or not _is_same_kind(first, after):
        return None
    if not _are_same(_batches(files.values()), _batches([after])):
        return None
    return JoinedParquet(memoryview(content), list(files))


def _is_readable(file: Any) -> bool:
    try:
        return bool(sum(batch.num_rows for batch in _batches([file])) == file.metadata.num_rows)
    except _UNREADABLE:
        return False


def _batches(files: Iterable[Any]) -> Iterator[Any]:
    """None is empty."""
    for file in files:
        yield from (batch for batch in file.iter_batches(batch_size=_BATCH_ROWS) if batch.num_rows)


def _written(first: Any, batches: Iterable[Any]) -> Any:
    """A file as ``first`` is, with these records."""
    out = pa.BufferOutputStream()
    store_schema = _ARROW_SCHEMA in (first.metadata.metadata or {})
    schema = first.schema_arrow
    with pq.ParquetWriter(out, schema, compression=_compression(first), store_schema=store_schema) as writer:
        waiting: list[Any] = []
        waiting_bytes = 0
        for batch in batches:
            waiting.append(batch)
            waiting_bytes += batch.nbytes
            if waiting_bytes >= ROW_GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(waiting, schema))
                waiting, waiting_bytes = [], 0
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting, schema))
    return out.getvalue()


def _compression(file: Any) -> str:
    """That of the first column; of a file without one, and what is not written any more, zstd."""
    metadata = file.metadata
    name = metadata.row_group(0).column(0).compression if metadata.num_row_groups and metadata.num_columns else "ZSTD"
    return {"UNCOMPRESSED": "none", "SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli", "LZ4": "lz4"}.get(
        name, "zstd"
    )


def _are_same(before: Iterator[Any], after: Iterator[Any]) -> bool:
    """Whether both have the same rows in the same order, however they are cut into batches."""
    one = other = None
    while True:
        one = one if one is not None and one.num_rows else next(before, None)
        other = other if other is not None and other.num_rows else next(after, None)
        if one is None or other is None:
            return one is other
        rows = min(one.num_rows, other.num_rows)
        if not _equal(one.slice(0, rows), other.slice(0, rows)):
            return False
        one, other = one.slice(rows), other.slice(rows)


def _equal(one: Any, other: Any) -> bool:
    """To Arrow no NaN is like another, so what it finds unequal is compared as Python shows it."""
    return bool(one.equals(other)) or repr(one.to_pylist()) == repr(other.to_pylist())
