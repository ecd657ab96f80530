"""Large files are copied in pieces, by several tasks, and joined.

Why pieces and not one file that every task writes into at its offset: Spark may run a task twice, or lose sight of one
that goes on, and the operating system lets whoever has opened a file write to it under whatever name it has by then.
A task that wakes up late would write into a published file. So no file is ever open in two attempts: each attempt at a
piece writes a file of its own, each attempt at a join makes a new one out of pieces that are answered for, and what is
published is a file that only the attempt that answered has ever had open, and has closed.

Joining is changing names where the file system can do that (HDFS: ``concat``; no bytes are moved). It uses the pieces
up, so the driver does it, once. In directories one task copies the pieces, inside the kernel: that shares their blocks
on XFS and Btrfs, is done by the server itself with NFS 4.2, and writes everything a second time on other file systems.

Either way the file is then read again, each span by a task, and compared with what was read from the source.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from waltz_spark.streams.compacting import compact_files
from waltz_spark.streams.copying import FileCopy, copy_input
from waltz_spark.streams.files import ByteSpan, Files
from waltz_spark.streams.layout import join

__all__ = [
    "MOST_PIECES",
    "Copied",
    "Gates",
    "Join",
    "FilePiece",
    "answers_of_files",
    "attempt_compact",
    "attempt_copy",
    "attempt_join",
    "attempt_sum",
    "pieces_of",
]

MOST_PIECES = 10_000
"""Of one file: the driver keeps their names."""

Gates = Callable[[str], Files]
"""The gate for a root, in a task's process."""


class FilePiece(NamedTuple):
    """``span`` of the file of this number; None = all of it."""

    file: int
    span: ByteSpan | None


class Join(NamedTuple):
    """The pieces at ``paths`` are all of the file of this number."""

    file: int
    paths: tuple[str, ...]


class Copied(NamedTuple):
    """The answer of an attempt: the new file at ``path``, the ``problem`` with the input, or the ``error``.

    ``checksum``: the CRC-32 of what was read. An error is an answer, not a failure of the task: doing it again at once
    would not help, and the driver says it better.
    """

    number: int
    path: str = ""
    checksum: int = 0
    problem: str = ""
    error: str = ""


def pieces_of(sizes: Sequence[int], piece_bytes: int) -> list[FilePiece]:
    """Of files of these sizes, in order: whole up to ``piece_bytes``, beyond it in pieces of so many; 0: all whole."""
    pieces = []
    for number, size_bytes in enumerate(sizes):
        each = max(piece_bytes, -(-size_bytes // MOST_PIECES))
        if not piece_bytes or size_bytes <= each:
            pieces.append(FilePiece(number, None))
            continue
        for first in range(0, size_bytes, each):
            pieces.append(FilePiece(number, ByteSpan(first, min(each, size_bytes - first))))
    return pieces


def answers_of_files(
    pieces: Sequence[FilePiece], answers: Mapping[int, Copied]
) -> tuple[dict[int, Copied], list[Join]]:
    """Of the pieces' answers: those of files, where that is all, and what is to be joined. No answer is an error."""
    numbers_of: dict[int, list[int]] = {}
    for number, each in enumerate(pieces):
        numbers_of.setdefault(each.file, []).append(number)
    found, joins = {}, []
    for file, numbers in numbers_of.items():
        problem = next((answers[number].problem for number in numbers if answers[number].problem), "")
        if problem or pieces[numbers[0]].span is None:
            found[file] = Copied(file, answers[numbers[0]].path, problem=problem)
        else:
            joins.append(Join(file, tuple(answers[number].path for number in numbers)))
    return found, joins


def attempt_copy(
    gates: Gates, attempts: str, units: Sequence[tuple[int, FileCopy, ByteSpan | None]]
) -> Iterator[Copied]:
    """Files and pieces, in a task. ``attempts``: the job's directory on the thread's root."""
    target = gates(attempts)
    for number, each, span in units:
        path = join(attempts, f"{number}.{uuid.uuid4().hex}")
        try:
            checksum, problem = copy_input(gates(each.root), each.path, target, path, span)
            yield Copied(number, path, checksum, problem)
        except OSError as error:
            yield _failed(number, error)


def attempt_join(gates: Gates, attempts: str, units: Sequence[Join]) -> Iterator[Copied]:
    """Joins, in a task. The numbers are those of the files."""
    target = gates(attempts)
    for each in units:
        path = join(attempts, f"joined.{each.file}.{uuid.uuid4().hex}")
        try:
            target.join(each.paths, path)
            yield Copied(each.file, path)
        except OSError as error:
            yield _failed(each.file, error)


def attempt_sum(gates: Gates, units: Sequence[tuple[int, str, ByteSpan]]) -> Iterator[Copied]:
    """Checksums of spans, in a task."""
    for number, path, span in units:
        try:
            yield Copied(number, path, gates(path).checksum(path, span))
        except OSError as error:
            yield _failed(number, error)


def attempt_compact(gates: Gates, attempts: str, groups: Sequence[Mapping[str, int]]) -> Iterator[Copied]:
    """Compaction, in a task. ``groups``: the paths of each with their numbers; no answer: it is left as it is."""
    files = gates(attempts)
    for group in groups:
        try:
            for path, target in compact_files(files, list(group), attempts).items():
                yield Copied(group[path], target)
        except OSError as error:
            yield _failed(next(iter(group.values())), error)


def _failed(number: int, error: OSError) -> Copied:
    return Copied(number, error=f"{error or repr(error)} (every executor must see the roots)")
