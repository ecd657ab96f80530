"""Where ``waltz load`` reads from: a file, or stdin, which is first written to a temporary file as it comes.

A load reads its rows at least twice (once to see that all of them can be loaded), and stdin can be read once.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from waltz_ray.cli.load_rows import Choices, RowReader
from waltz_ray.cli.stdin_copy import room_for_stdin
from waltz_ray.errors import InvalidInput
from waltz_ray.interruption import interruptible

__all__ = ["Format", "LoadSource", "open_source"]

Format = Literal["csv", "jsonl", "parquet"]
_FORMATS: tuple[Format, ...] = ("csv", "jsonl", "parquet")


class LoadSource:
    """A readable file: ``name`` is what the user calls it, ``path`` is where it is."""

    def __init__(self, name: str, path: Path, form: Format) -> None:
        self.name = name
        self.path = path
        self.form = form
        self._about = _about(path)

    @property
    def size_bytes(self) -> int:
        """Of the file, as it was found."""
        return self._about[0]

    def check_unchanged(self) -> None:
        """InvalidInput if the file is not the one that was found: its rows are read more than once."""
        if not self.path.is_file() or _about(self.path) != self._about:
            raise InvalidInput(f"{self.path} has changed while it was read; load a copy that nobody writes to")

    def reader(self, choices: Choices) -> RowReader:
        """Of its format. InvalidInput if the first look shows that it cannot be loaded."""
        # Here: only a load of that format waits for pyarrow.
        if self.form == "csv":
            from waltz_ray.cli.load_csv import CsvRows

            return CsvRows(self.path, choices)
        if self.form == "jsonl":
            from waltz_ray.cli.load_jsonl import JsonLines

            return JsonLines(self.path, choices)
        from waltz_ray.cli.load_parquet import ParquetRows

        return ParquetRows(self.path, choices)


def _about(path: Path) -> tuple[int, int, int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns, about.st_ino, about.st_dev


@contextmanager
def open_source(file: str, form: Format | None) -> Iterator[LoadSource]:
    """``file``, "-" for stdin; the format is that of its ending unless ``form`` says. InvalidInput."""
    if file == "-":
        if form is None:
            raise InvalidInput(f"stdin has no ending that tells its format; say --format {'|'.join(_FORMATS)}")
        # SIGTERM, too: it would else leave the copy, which may have whatever size, for ever.
        with interruptible(), tempfile.TemporaryDirectory(prefix="waltz-load-") as folder:
            path = Path(folder) / f"stdin.{form}"
            with room_for_stdin(), path.open("wb") as copy:
                shutil.copyfileobj(sys.stdin.buffer, copy, 1 << 20)
            yield LoadSource("-", path, form)
        return
    path = Path(file)
    ending = path.suffix.lower().removeprefix(".")
    found = form or next((each for each in _FORMATS if each == ending), None)
    if found is None:
        endings = ", ".join("." + each for each in _FORMATS)
        raise InvalidInput(f"{path} cannot be loaded: its name must end in {endings}, or --format must say what it is")
    if not path.is_file():
        raise InvalidInput(f"{path} is {'no file' if path.exists() else 'not there'}")
    yield LoadSource(file, path, found)
