"""Announcements: one small file per consumer and published path, called like the commit that published it.

They lie at ``<producer's root>/system/consumers/<consumer>/<producer>/<commit>``. A repeated announcement has the same
name and the same bytes, so it overwrites; a half-written one is never seen, since it gets its name by a rename.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from waltz_ray.errors import InvalidInput
from waltz_spark.streams.files import Files
from waltz_spark.streams.layout import PublishedPath, commit_of, join, parse_published
from waltz_spark.streams.odd import make_way, put_file
from waltz_spark.streams.texts import parsed_json, shown

__all__ = ["Announcement", "announce", "decode_announcement", "encode_announcement"]

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Announcement:
    """``path`` was published by ``producer`` under its root."""

    producer: str
    path: PublishedPath

    @property
    def commit(self) -> str:
        return commit_of(self.path)


def encode_announcement(announcement: Announcement) -> bytes:
    fields = {"version": _VERSION, "producer": announcement.producer, "path": announcement.path.relative}
    return json.dumps(fields).encode()


def decode_announcement(name: str, content: bytes) -> Announcement:
    """``name``: the file's. InvalidInput if the content is damaged or does not fit the name."""
    try:
        fields = parsed_json(content)
        if fields["version"] != _VERSION:
            raise ValueError(f"version {fields['version']!r}")
        announcement = Announcement(str(fields["producer"]), parse_published(str(fields["path"])))
    except (InvalidInput, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"announcement {shown(name)} is damaged: {type(error).__name__} {error}") from error
    if announcement.commit != name:
        raise InvalidInput(f"announcement {shown(name)} is about {announcement.path.relative}, which is another commit")
    return announcement


def announce(files: Files, root: str, directory: str, announcement: Announcement, staged: str) -> None:
    """Durable when it returns. ``directory``: the consumer's inbox (``StreamSettings.inbox``); ``staged``: where the
    file is written first, in the directory of the present run.

    FileNotFoundError if that directory was taken away from a run that has been replaced; nothing is announced then.
    """
    target = join(directory, announcement.commit)
    make_way(files, root, directory)
    files.write(staged, [encode_announcement(announcement)])
    put_file(files, root, staged, target)
    files.sync_directory(directory)
