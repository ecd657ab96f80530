"""Rows of a .csv file: RFC 4180 with a line of column names, in UTF-8. A cell is text unless ``--types`` says more.

A number keeps its digits: ``1.10`` stays ``1.10`` and 23 nines stay 23 nines, whoever reads them. A cell that is empty
is null where it is to be a number or a truth value.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from waltz_ray.cli.load_rows import (
    LONGEST_LINE_BYTES,
    Choices,
    FileRow,
    NanRule,
    check_columns,
    constant,
    encode_text,
    text_lines,
)
from waltz_ray.errors import InvalidInput

__all__ = ["CsvRows"]

_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?").fullmatch
_INT = re.compile(r"([+-]?)0*([0-9]+)").fullmatch
_FLOAT = re.compile(r"([+-]?)(?=\.?[0-9])([0-9]*)(?:\.([0-9]*))?((?:[eE][+-]?[0-9]+)?)").fullmatch
_CONSTANTS = {"nan": "NaN", "inf": "Infinity", "infinity": "Infinity"}

Encode = Callable[[str], str | None]
"""A cell as JSON; None: it is not of that type."""


class CsvRows:
    """See ``RowReader``. InvalidInput: no column names, a name twice, no column ``key``, types that make no sense."""

    def __init__(self, path: Path, choices: Choices) -> None:
        self._path = path
        self._choices = choices
        csv.field_size_limit(LONGEST_LINE_BYTES)
        _, self._names = next(self._records(), (0, []))
        if not self._names:
            raise InvalidInput(f"{path} is empty: a .csv file begins with the names of its columns")
        check_columns(path, self._names, choices.key)
        self._key = self._names.index(choices.key)
        kinds = _auto(self) if choices.types == "auto" else _kinds(path, self._names, choices.types)
        prefixes = [("," if position else "{") + encode_text(name) + ":" for position, name in enumerate(self._names)]
        self._columns = [
            (prefix, kind, _encoder(kind, choices.nan, f"column {name!r}"))
            for prefix, name, kind in zip(prefixes, self._names, kinds, strict=True)
        ]

    def rows(self) -> Iterator[FileRow]:
        key, columns = self._key, self._columns
        for number, cells in self.cells():
            parts: list[str] = []
            for (prefix, kind, encode), cell in zip(columns, cells, strict=True):
                try:
                    value = encode(cell)
                except InvalidInput as error:
                    raise InvalidInput(f"{self._path}, line {number}: {error}") from None
                if value is None:
                    raise InvalidInput(
                        f"{self._path}, line {number}: {prefix[1:-1]} is to be {kind} and is {cell[:40]!r}; "
                        f"make the column text with --types"
                    )
                parts += prefix, value
            data = ("".join(parts) + "}").encode()
            yield FileRow(f"{self._path}, line {number}", cells[key], data)

    def finish_inspection(self, count: int) -> None:
        """The columns have been checked at the beginning."""

    @property
    def width(self) -> int:
        """Number of columns."""
        return len(self._names)

    def cells(self) -> Iterator[tuple[int, list[str]]]:
        """(number of its first line, cells) of each row below the names, as many as there are names."""
        records = self._records()
        next(records)
        for number, cells in records:
            if not cells and self.width > 1:
                continue  # a line without anything
            if len(cells or [""]) != self.width:
                raise InvalidInput(
                    f"{self._path}, line {number} has {len(cells)} cells where there are {self.width} columns; "
                    f"nothing was appended"
                )
            yield number, cells or [""]

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        first = 1
        with self._path.open("rb") as file:
            reader = csv.reader((line for _, line in text_lines(file, self._path)), strict=True)
            try:
                for cells in reader:
                    yield first, cells
                    first = reader.line_num + 1
            except csv.Error as error:
                raise InvalidInput(f"{self._path}, line {first} is no CSV: {error}; nothing was appended") from error


def _kinds(path: Path, names: list[str], types: str) -> list[str]:
    """``column=type,...``; what is not named is text."""
    if types == "text":
        return ["text"] * len(names)
    given: dict[str, str] = {}
    for part in types.split(","):
        name, equals, kind = part.strip().rpartition("=")
        if not equals or kind not in _ENCODERS:
            raise InvalidInput(f"--types must be text, auto or column={'|'.join(_ENCODERS)},..., not {types!r}")
        if name not in names:
            raise InvalidInput(f"--types: {path} has no column {name!r}; it has {', '.join(names)}")
        given[name] = kind
    return [given.get(name, "text") for name in names]


def _auto(rows: CsvRows) -> list[str]:
    """A column is a number (or a truth value) if all its cells are, as JSON writes them, but for empty ones."""
    candidates = [{"number", "bool"} for _ in range(rows.width)]
    empty = [True] * rows.width
    for _, cells in rows.cells():
        for column, cell in enumerate(cells):
            if cell:
                empty[column] = False
                if candidates[column]:
                    candidates[column] &= {kind for kind in candidates[column] if _ENCODERS[kind](cell) is not None}
    return ["text" if empty[column] or not kinds else min(kinds) for column, kinds in enumerate(candidates)]


def _bool(cell: str) -> str | None:
    return cell if cell in ("true", "false") else None


def _number(cell: str) -> str | None:
    return cell if _JSON_NUMBER(cell) else None


def _int(cell: str) -> str | None:
    match = _INT(cell)
    return match and match[1].replace("+", "") + match[2]


def _float(cell: str) -> str | None:
    """JSON writes no plus sign, no leading zeros, and digits on both sides of a point."""
    match = _FLOAT(cell)
    if match is None:
        return None
    sign, whole, fraction, exponent = match.groups()
    return f"{sign.replace('+', '')}{whole.lstrip('0') or '0'}{'.' + fraction if fraction else ''}{exponent}"


_ENCODERS: dict[str, Encode] = {"text": encode_text, "number": _number, "int": _int, "float": _float, "bool": _bool}


def _encoder(kind: str, nan: NanRule, column: str) -> Encode:
    plain = _ENCODERS[kind]
    if kind == "text":
        return plain
    if kind != "float":
        return lambda cell: plain(cell) if cell else "null"

    def encode(cell: str) -> str | None:
        named = _CONSTANTS.get(cell.lower().lstrip("+-"))
        if named is None:
            return plain(cell) if cell else "null"
        sign = "-" if cell[0] == "-" and named != "NaN" else ""
        return constant(sign + named, nan, column)

    return encode
