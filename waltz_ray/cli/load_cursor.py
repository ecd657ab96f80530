"""How far an interrupted ``waltz load`` came: exactly, whenever and however it ended.

The log itself is the cursor. Every record carries the ID of the client that appended it, in the same bytes and the same
commit as its data, and a client ID is given out once. So a load writes down, in a file beside what it loads, where the
log ended when it began, and, before its first append, its client ID. ``--resume`` then

1. *settles* the client ID of the run before (``WaltzClient.supersede``): what the dead process had under way is in the
   log or never will be;
2. reads the log from where the load began and strikes off the rows that are there: the records of this load's clients
   are rows of the file, each once;
3. writes down its own client ID, and appends the rows that are left.

::

    {"waltz_load": 1, "starts": [12, 40], "key": "id", ...}     what is loaded, where to, from which IDs on
    {"client_id": 7}                                            a line for each run, synced before its first append
    {"client_id": 9}

| a kill | leaves | the next run |
|---|---|---|
| before a run's line is whole | a torn last line; the run has appended nothing | takes no notice of it |
| after it | any of its rows in the log, or on the way there | settles that client ID first, then reads the log |
| while it settles or reads | nothing new | does the same |
| after the last row | the file, all rows in the log | finds nothing to append, removes the file |

A load that has ended removes the file; its lock (flock) keeps two loads of one file apart. What is remembered of the
log is only what is out of the order of the file: as much as was under way at one time.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from waltz_ray.errors import InvalidInput
from waltz_ray.small_files import sync_directory

__all__ = ["LoadCursor", "LoadedRows", "open_cursor"]

_VERSION = 1
_BEGINNING = b'{"waltz_load": '
_MOST_BYTES = 1 << 20
"""Of the file: tens of thousands of runs."""


class LoadCursor:
    """The file of one load, at ``path``, locked while this object is used."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """InvalidInput if it is another file, which stays as it is."""
        self.path = path
        self._descriptor = descriptor
        content = _content(path, descriptor)
        whole = content[: content.rfind(b"\n") + 1]
        self._whole_bytes = len(whole)
        try:
            if not content.startswith(_BEGINNING[: len(content)]):
                raise ValueError("it begins otherwise")
            lines = [json.loads(line) for line in whole.splitlines()]
            self.settings: Mapping[str, Any] = {k: v for k, v in lines[0].items() if k != "starts"} if lines else {}
            self.starts: list[int] = lines[0]["starts"] if lines else []
            self.clients: list[int] = [int(line["client_id"]) for line in lines[1:]]
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise InvalidInput(
                f"{path} is no file of an interrupted load ({error}); it stays as it is, give --cursor"
            ) from error

    def check(self, settings: Mapping[str, Any]) -> None:
        """InvalidInput if the interrupted load was another one."""
        if not self.settings:
            return  # it was interrupted before it had said what it is, and has appended nothing
        for name, wanted in {"waltz_load": _VERSION, **settings}.items():
            if self.settings.get(name) != wanted:
                raise InvalidInput(
                    f"{self.path}: the load that was interrupted had {name} {self.settings.get(name)!r}, "
                    f"this one has {wanted!r}; resume with what it had, or delete that file to begin anew"
                )

    def check_cluster(self, key: str, partitions: int) -> None:
        """InvalidInput if the interrupted load was into another cluster: its records are not in this log. Nor are they
        where the space has other ``partitions`` than it had: it is a new one of that name."""
        if self.settings.get("cluster_key") != key:
            raise InvalidInput(
                f"{self.path}: the load that was interrupted was into another cluster than this one (their keys "
                "differ); say which one is meant (--dir, --cluster), or delete that file to load all into this one"
            )
        if len(self.starts) != partitions:
            raise InvalidInput(
                f"{self.path}: the load that was interrupted was into {len(self.starts)} partitions, and there are "
                f"{partitions} now: the space is another one; delete that file to load all into this one"
            )

    def begin(self, settings: Mapping[str, Any], starts: Sequence[int], client_id: int) -> None:
        """Before the first append of a run. InvalidInput if not all of it can be written: then nothing is appended."""
        lines: list[Mapping[str, Any]] = [{"client_id": client_id}]
        if not self.settings:
            lines = [{"waltz_load": _VERSION, **settings, "starts": list(starts)}, *lines]
        try:
            self._write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
        except OSError as error:
            raise InvalidInput(
                f"{self.path} cannot be written ({error.strerror}); this run has appended nothing"
            ) from error

    def _write(self, text: bytes) -> None:
        """In place of a torn line, which is of a run that has done nothing. A disk that is almost full takes a part."""
        os.ftruncate(self._descriptor, self._whole_bytes)
        while text:
            text = text[os.write(self._descriptor, text) :]
        os.fsync(self._descriptor)
        sync_directory(self.path.parent)

    def remove(self) -> None:
        """The load has ended, or has not begun."""
        self.path.unlink(missing_ok=True)


@contextmanager
def open_cursor(path: Path, resume: bool) -> Iterator[LoadCursor]:
    """The file of the load, made if it is not there. It stays if it says something when the block ends.

    InvalidInput: a load of this file is running, or was interrupted and this is not its resumption (or the other way
    round); the file cannot be written.
    """
    if resume and not path.exists():
        raise InvalidInput(f"there is nothing to resume: {path} is not there; load without --resume")
    descriptor = _locked(path)
    try:
        cursor = LoadCursor(path, descriptor)
        if cursor.settings and not resume:
            raise InvalidInput(
                f"an earlier load did not end ({path}): go on with it with --resume, or delete that file to load "
                f"everything, whatever of it is in the log"
            )
        yield cursor
    finally:
        about = os.fstat(descriptor)
        if stat.S_ISREG(about.st_mode) and about.st_size == 0:
            path.unlink(missing_ok=True)
        os.close(descriptor)


def _locked(path: Path) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise InvalidInput(
                f"{path} cannot be written ({error.strerror}); put it elsewhere with --cursor"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise InvalidInput(f"another load of the same rows is running: it holds {path}") from None
        os.close(descriptor)  # whoever held it has removed it meanwhile


def _content(path: Path, descriptor: int) -> bytes:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise InvalidInput(f"{path} is no file; give another --cursor")
    content = b""
    while piece := os.read(descriptor, _MOST_BYTES):
        content += piece
        if len(content) > _MOST_BYTES:
            raise InvalidInput(f"{path} is no file of an interrupted load: it is too long; give another --cursor")
    return content


class LoadedRows:
    """Which rows of a load are in the log. Rows are numbered from 0 on, in the order of the file."""

    def __init__(self, logs: Mapping[int, Iterator[bytes]]) -> None:
        """``logs``: of each partition the data of this load's records, in the order of the log."""
        self._logs = dict(logs)
        self._ahead: dict[int, Counter[bytes]] = {p: Counter() for p in logs}  # read in the log, not yet in the file
        self._missing: set[int] = set()
        self._end = dict.fromkeys(logs, 0)  # behind the last row that is in the log
        self.count = 0
        """How many are."""

    def look(self, number: int, partition_id: int, data: bytes) -> None:
        """The next row of the file; its record is looked for."""
        if self._found(partition_id, data):
            self._end[partition_id] = number + 1
            self.count += 1
        elif partition_id in self._logs or self._ahead[partition_id]:
            self._missing.add(number)  # a later one may be there

    def _found(self, partition_id: int, data: bytes) -> bool:
        ahead = self._ahead[partition_id]
        if data in ahead:
            ahead[data] -= 1
            if not ahead[data]:
                del ahead[data]
            return True
        for found in self._logs.get(partition_id, ()):
            if found == data:
                return True
            ahead[found] += 1
        self._logs.pop(partition_id, None)  # read to its end
        return False

    def finish(self) -> None:
        """All rows have been looked at. InvalidInput if the log has records of this load that are no rows."""
        for partition_id, ahead in self._ahead.items():
            if ahead or next(self._logs.get(partition_id, iter(())), None) is not None:
                raise InvalidInput(
                    f"partition {partition_id} has a record of this load that is no row of the file: it has changed "
                    f"since, or this is another cluster; nothing was appended"
                )
        last = max(self._end.values(), default=0)
        self._missing = {number for number in self._missing if number < last}

    def __contains__(self, row: tuple[int, int]) -> bool:
        """(row, partition): it is in the log."""
        number, partition_id = row
        return number < self._end[partition_id] and number not in self._missing
