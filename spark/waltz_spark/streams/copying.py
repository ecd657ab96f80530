"""The inputs of works become files of the run: what is to be copied, by whom, and that the copy has the same bytes.

Two copiers with one contract: ``InProcess``, and ``OnSpark`` (``spark_copying``), whose tasks copy side by side. Either
only fills temporaries of the run; what is published, and when, is decided by the commit (``commit``) alone.

A copy is read again and compared by its CRC-32 with what was read from the source.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from waltz_spark.streams.compacting import compact_files
from waltz_spark.streams.files import ByteSpan, Files, FilesOf, copy_file, directory_of, other_bytes
from waltz_spark.streams.odd import unreadable_input
from waltz_spark.streams.texts import shown

__all__ = ["Copier", "CopyRoom", "FileCopy", "InProcess", "copy_input", "in_tasks"]

_FILE_BYTES = 64 * 1024  # opening, syncing and renaming a file take about as long as copying so much


class FileCopy(NamedTuple):
    """One input, ``path`` on ``root``, that is to be at ``target`` on the thread's own root.

    ``size_bytes``: as it was looked at; the copy has what is read.
    """

    root: str
    path: str
    target: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CopyRoom:
    """Where a copier works: the gate to the thread's root, and new directories of the run there.

    ``copied`` is to be called for every file that has come to its target.
    """

    files: Files
    new_directory: Callable[[str], str]
    copied: Callable[[], None]


class Copier(Protocol):
    """Copies the inputs of several works. Their target directories are there; the caller makes the names durable."""

    def copy(self, works: Sequence[Sequence[FileCopy]], room: CopyRoom) -> list[str]:
        """For each work what is wrong with its input, "" = it is copied. OSError for what is wrong with the copies."""
        ...

    def compact(self, groups: Sequence[Sequence[str]], attempts: str, files: Files) -> dict[str, str]:
        """Which files of the temporaries have become part of which new one in ``attempts`` (``compacting``); those of a
        group may become one. OSError."""
        ...


class InProcess:
    """One file after the other, by this process."""

    def __init__(self, files_of: FilesOf) -> None:
        self._files_of = files_of

    def copy(self, works: Sequence[Sequence[FileCopy]], room: CopyRoom) -> list[str]:
        return [self._work(copies, room) for copies in works]

    def _work(self, copies: Sequence[FileCopy], room: CopyRoom) -> str:
        for each in copies:
            _, problem = copy_input(self._files_of(each.root), each.path, room.files, each.target)
            if problem:
                return problem
            room.copied()
        return ""

    def compact(self, groups: Sequence[Sequence[str]], attempts: str, files: Files) -> dict[str, str]:
        placed: dict[str, str] = {}
        for group in groups:
            placed |= compact_files(files, group, attempts)
        return placed


def copy_input(
    source: Files, path: str, target: Files, target_path: str, span: ByteSpan | None = None
) -> tuple[int, str]:
    """Copy one input durably: the CRC-32 of what was read, and "" or what is wrong with the input.

    OSError for what else fails. The copy is compared, but for that of a ``span``: what it becomes a part of is.
    """
    try:
        checksum = copy_file(source, path, target, target_path, span)
    except OSError:
        if not source.exists(path):
            return 0, f"{directory_of(path)} has not all of its files"
        problem = unreadable_input(source, path)
        if not problem:
            raise  # it is our own directory that is missing, or full
        return 0, problem
    if span is not None:
        seen = target.look(target_path)
        is_short = seen is not None and seen.size_bytes < span.size_bytes
        return checksum, f"{shown(path)} became shorter while it was copied" if is_short else ""
    if target.checksum(target_path) != checksum:
        raise other_bytes(target_path)
    return checksum, ""


def in_tasks(sizes: Sequence[int], tasks: int) -> list[list[int]]:
    """The numbers of the files, in at most ``tasks`` groups of about equal size; none is empty.

    The largest first, each to the group that has the least (R. L. Graham, "Bounds on multiprocessing timing anomalies",
    1969: at most 4/3 of the best). A file counts a little by itself, so that empty ones are spread, too.
    """
    groups: list[list[int]] = [[] for _ in range(min(tasks, len(sizes)))]
    heap = [(0, number) for number in range(len(groups))]
    for number in sorted(range(len(sizes)), key=lambda each: (-sizes[each], each)):
        filled, group = heapq.heappop(heap)
        groups[group].append(number)
        heapq.heappush(heap, (filled + sizes[number] + _FILE_BYTES, group))
    return groups
