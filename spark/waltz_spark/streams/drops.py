"""What people decide about quarantine: look at it as new, or put the input away unpublished.

A drop is asked for with a file, ``<root>/system/drops/<thread>/<record>``, and done by the service in its next pass:
only who has the thread's lock moves inputs. The input goes to trash, where it lies as long as everything there.
"""

from __future__ import annotations

from collections.abc import Sequence

from waltz_ray.errors import InvalidInput
from waltz_spark.streams.files import Files, directory_of
from waltz_spark.streams.layout import drops_path, quarantine_path
from waltz_spark.streams.odd import make_way
from waltz_spark.streams.quarantine import quarantined
from waltz_spark.streams.texts import shown

__all__ = ["ask_to_drop", "asked_drops", "forget_drops", "look_again"]


def ask_to_drop(files: Files, root: str, thread: str, records: Sequence[str]) -> None:
    """InvalidInput for what is not in the thread's quarantine, and nothing is asked for."""
    _check(files, root, thread, records)
    for record in records:
        path = drops_path(root, thread, record)
        make_way(files, root, directory_of(path))
        files.write(path, [])
        files.sync_directory(directory_of(path))


def asked_drops(files: Files, root: str, thread: str) -> list[str]:
    try:
        return files.list(drops_path(root, thread))
    except (FileNotFoundError, NotADirectoryError):
        return []


def forget_drops(files: Files, root: str, thread: str, records: Sequence[str]) -> None:
    for record in records:
        files.delete(drops_path(root, thread, record))


def look_again(files: Files, root: str, thread: str, records: Sequence[str]) -> None:
    """Forget since when and how often: what is still wrong is recorded anew by the next pass. InvalidInput as above."""
    _check(files, root, thread, records)
    for record in records:
        files.delete(quarantine_path(root, thread, record))


def _check(files: Files, root: str, thread: str, records: Sequence[str]) -> None:
    known = {record.commit for record in quarantined(files, root, thread)}
    for record in records:
        if record not in known:
            raise InvalidInput(f"{shown(record)} is not in the quarantine of {thread}; waltz streams quarantine list")
