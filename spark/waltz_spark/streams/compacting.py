"""A part's Parquet files become fewer, with the same records, before they are published.

All of it is done to the copies in the run's own directory, after they were compared and before TRANS_COMMIT_START: a
crash loses it with the temporary, and whatever is recovered from a later state was compacted already. The commit, its
announcement and its trash do not know of it. A new file has the name of the first of those that it is made of, so that
nothing new has to be free, short enough, or listed; the originals go to trash as ever.

Within one part, not across those of a minute: a part is what is committed and announced, they come at different times,
and what was published is never changed. ``joining_parquet`` says which files are joined, and how they are compared.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence

from waltz_ray.protocol.checksum import crc32
from waltz_spark.streams.files import CHUNK_BYTES, Files, directory_of, other_bytes
from waltz_spark.streams.layout import join

__all__ = ["PARQUET_SUFFIX", "compact", "compact_files", "groups_of"]

PARQUET_SUFFIX = ".parquet"

Run = Callable[[Sequence[Sequence[str]], str, Files], dict[str, str]]
"""``Copier.compact``."""


def compact(
    run: Run, files: Files, new_directory: Callable[[str], str], directories: Sequence[str], most_bytes: int
) -> None:
    """In each of the temporaries; a new file is made of files that have at most ``most_bytes`` together. OSError."""
    groups = [group for directory in directories for group in groups_of(_sizes(files, directory), most_bytes)]
    if groups:
        attempts = new_directory("compacted")
        _put_in_place(files, run(groups, attempts, files))
        files.delete(attempts)


def groups_of(sizes: Mapping[str, int], most_bytes: int) -> list[list[str]]:
    """The files, in the order of their names, two or more together that have at most so many bytes."""
    groups: list[list[str]] = []
    filled = 0
    for path, size_bytes in sorted(sizes.items()):
        if not groups or filled + size_bytes > most_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(path)
        filled += size_bytes
    return [group for group in groups if len(group) > 1]


def compact_files(files: Files, paths: Sequence[str], attempts: str) -> dict[str, str]:
    """Which of the files have become part of which new one in ``attempts``. OSError."""
    from waltz_spark.streams.joining_parquet import join_parquet  # the services themselves need no pyarrow

    placed = {}
    for joined in join_parquet([files.read(path) for path in paths]):
        target = join(attempts, uuid.uuid4().hex)
        files.write(target, _pieces(joined.content))
        if files.checksum(target) != crc32(joined.content):
            raise other_bytes(target)
        placed.update({paths[number]: target for number in joined.numbers})
    return placed


def _pieces(content: memoryview) -> Iterator[bytes]:
    for first in range(0, len(content), CHUNK_BYTES):
        yield bytes(content[first : first + CHUNK_BYTES])


def _sizes(files: Files, directory: str) -> dict[str, int]:
    paths = [join(directory, name) for name in files.list(directory) if name.endswith(PARQUET_SUFFIX)]
    seen = {path: files.look(path) for path in paths}
    return {path: each.size_bytes for path, each in seen.items() if each is not None}


def _put_in_place(files: Files, placed: Mapping[str, str]) -> None:
    firsts: dict[str, str] = {}
    for path, target in sorted(placed.items()):
        if firsts.setdefault(target, path) != path:
            files.delete(path)
    for target, path in firsts.items():
        files.replace(target, path)
    for directory in {directory_of(path) for path in firsts.values()}:
        files.sync_directory(directory)
