"""What ``waltz load`` reads: rows of .csv, .jsonl and .parquet files, one at a time, each value as it stands there.

A reader's rows are the same each time they are read. The file is read once before anything is appended, and a row that
cannot be loaded is found then, with its place; so a load either begins with a file that is good as a whole, or leaves
the log as it was. What the formats have in common is here, ``load_csv``, ``load_jsonl`` and ``load_parquet`` are they.
"""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, Protocol

from waltz_ray.errors import InvalidInput

__all__ = [
    "Choices",
    "NanRule",
    "FileRow",
    "RowReader",
    "check_columns",
    "check_rows",
    "constant",
    "encode_text",
    "text_lines",
    "unknown_key",
]

NanRule = Literal["error", "null", "text"]

LONGEST_LINE_BYTES = 64 * 1024 * 1024
"""No frame is longer; what is would not be found out before it has filled the memory."""

encode_text = json.encoder.encode_basestring
"""A string as JSON."""


class FileRow(NamedTuple):
    """One row: where it is ("line 7"), the text of its key, and the data of its transaction."""

    place: str
    key: str
    data: bytes


@dataclass(frozen=True)
class Choices:
    """What a load may be told about values."""

    key: str
    """The column whose value decides a row's partition and lock."""
    types: str = "text"
    """Of CSV cells: ``text``, ``auto``, or ``column=type,...``."""
    nan: NanRule = "error"
    """What becomes of not-a-number and infinity, which JSON does not have."""


class RowReader(Protocol):
    """A file of one format."""

    def rows(self) -> Iterator[FileRow]:
        """All rows, in the order of the file. InvalidInput names the place of one that cannot be loaded."""

    def finish_inspection(self, count: int) -> None:
        """``rows`` has been read to its end once: InvalidInput if what is there as a whole cannot be loaded."""


def check_rows(reader: RowReader, most_bytes: int, seen: Callable[[int], None]) -> int:
    """Read everything once; how many rows there are. ``seen`` is told how many have been read so far."""
    count = 0
    for count, row in enumerate(reader.rows(), 1):
        if len(row.data) > most_bytes:
            raise InvalidInput(
                f"{row.place}: the row is {len(row.data)} bytes long, a transaction has {most_bytes} at the most"
            )
        seen(count)
    reader.finish_inspection(count)
    return count


def check_columns(path: Path, names: Iterable[str], key: str) -> None:
    """InvalidInput if a name is there twice, or ``key`` is not."""
    counts = Counter(names)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise InvalidInput(f"{path} has more than one column {twice[0]!r}; rename all but one, nothing was appended")
    if key not in counts:
        raise unknown_key(path, key, counts)


def unknown_key(path: Path, key: str, names: Iterable[str]) -> InvalidInput:
    """There is no such column; the nearest are named first."""
    nearest = sorted(names, key=lambda name: -difflib.SequenceMatcher(None, name.lower(), key.lower()).ratio())
    return InvalidInput(f"{path} has no column {key!r}; it has {', '.join(nearest[:20])}")


def constant(text: str, rule: NanRule, where: str) -> str:
    """``text`` (NaN, Infinity, -Infinity) as JSON, as the rule has it. InvalidInput if there is none."""
    if rule == "error":
        raise InvalidInput(f"{where} is {text}, which JSON does not have; say what it is to be with --nan null|text")
    return "null" if rule == "null" else f'"{text}"'


def text_lines(file: BinaryIO, path: Path) -> Iterator[tuple[int, str]]:
    """(number, line with its end) of a file in UTF-8; a byte order mark is left out. Never a line that is too long."""
    number = 0
    while line := file.readline(LONGEST_LINE_BYTES):
        number += 1
        if len(line) == LONGEST_LINE_BYTES and not line.endswith(b"\n"):
            raise InvalidInput(f"{path}, line {number} is longer than {LONGEST_LINE_BYTES} bytes")
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise InvalidInput(
                f"{path}, line {number} is not in UTF-8 (byte {error.start + 1} of the line is "
                f"0x{line[error.start]:02x}); convert the file, nothing was appended"
            ) from error
        yield number, text.removeprefix("\ufeff") if number == 1 else text
