"""Rows of a .jsonl file: each line is a JSON object, and its bytes are the data of its transaction, as they stand."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from waltz_ray.cli.load_rows import Choices, FileRow, constant, text_lines, unknown_key
from waltz_ray.errors import InvalidInput

__all__ = ["JsonLines"]

_STRING_OR_CONSTANT = re.compile(r'"(?:[^"\\]|\\.)*"|-?Infinity|NaN')
_SPACE = " \t\r\n"
_NAMES_TOLD = 1000


class _Twice(ValueError):
    """An object has a name twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(next(name for name in names if names.count(name) > 1))
    return found


class JsonLines:
    """See ``RowReader``. Empty lines are no rows; a row without the key, or with null, has the empty key."""

    def __init__(self, path: Path, choices: Choices) -> None:
        if choices.types != "text":
            raise InvalidInput(f"{path}: --types is for .csv; the values of a .jsonl file have their types")
        self._path = path
        self._choices = choices
        self._constants: list[str] = []  # of the line that is being read
        # Numbers stay text: the longest of them is none too long, and a key is what is written.
        self._decode = json.JSONDecoder(
            object_pairs_hook=_object, parse_int=str, parse_float=str, parse_constant=self._constant
        ).decode
        self._key_seen = False
        self._names: dict[str, None] = {}  # until the key has been seen

    def rows(self) -> Iterator[FileRow]:
        with self._path.open("rb") as file:
            for number, line in text_lines(file, self._path):
                text = line.strip(_SPACE)
                if text:
                    yield self._row(f"{self._path}, line {number}", text)

    def finish_inspection(self, count: int) -> None:
        if count and not self._key_seen:
            raise unknown_key(self._path, self._choices.key, self._names)

    def _row(self, place: str, text: str) -> FileRow:
        self._constants.clear()
        try:
            row = self._decode(text)
        except _Twice as error:
            raise InvalidInput(f"{place} has more than one {str(error)!r}; nothing was appended") from None
        except RecursionError:
            raise InvalidInput(f"{place} is nested too deeply; nothing was appended") from None
        except ValueError as error:
            raise InvalidInput(f"{place} is no JSON: {error}; nothing was appended") from error
        if not isinstance(row, dict):
            raise InvalidInput(f"{place} is no JSON object but {text[:40]!r}; nothing was appended")
        if self._choices.key in row:
            self._key_seen = True
        elif not self._key_seen and len(self._names) < _NAMES_TOLD:
            self._names |= dict.fromkeys(row)
        if self._constants:
            nan, where = self._choices.nan, f"{place}: a value"
            text = _STRING_OR_CONSTANT.sub(lambda m: m[0] if m[0][0] == '"' else constant(m[0], nan, where), text)
        return FileRow(place, self._key_of(row, place), text.encode())

    def _constant(self, name: str) -> str:
        self._constants.append(name)
        return name

    def _key_of(self, row: dict[str, Any], place: str) -> str:
        value = row.get(self._choices.key)
        if isinstance(value, str):
            return value
        if isinstance(value, dict | list):
            raise InvalidInput(f"{place}: the key {self._choices.key!r} is no text, number, truth value or null")
        return "" if value is None else json.dumps(value)
