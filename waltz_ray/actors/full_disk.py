"""What is said of a disk that is full: by a replica, since when and which partitions take no appends; by ZooKeeper."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence

from waltz_ray.protocol.messages.replica import (
    Appended,
    RefusalCode,
    Refused,
    ReplicaReply,
)

__all__ = ["FullDisk", "few", "little_room"]

_LITTLE = 64 * 1024 * 1024  # ZooKeeper takes this much at once for its next file


def little_room(directory: str) -> str:
    """One line for people if the disk of ``directory`` is full or nearly so, "" else."""
    room = os.statvfs(directory)
    free = room.f_bavail * room.f_frsize
    return "" if free >= _LITTLE else f"the disk of {directory} is full, or nearly: {free >> 20} MB are left; make room"


def few(partitions: Sequence[int]) -> str:
    """The first of many, for a line of text."""
    return ", ".join(map(str, partitions[:5])) + (" ..." if len(partitions) > 5 else "")


class FullDisk:
    """Which partitions take no appends because the disk is full; known from the answers that leave."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[float, str]] = {}

    def noted(self, replies: list[ReplicaReply]) -> list[ReplicaReply]:
        """Note which of these replies tell of a full disk, or of one that has room again; returns them as they are."""
        for reply in replies:
            if type(reply) is Appended:
                if self._since:
                    self._since.pop(reply.partition_id, None)
            elif type(reply) is Refused and reply.code is RefusalCode.DISK_FULL:
                self._since.setdefault(reply.partition_id, (time.time(), reply.message))
        return replies

    def problem(self, gone: Iterable[int] = ()) -> str:
        """One line for people, "" while there is nothing to say. ``gone``: partitions that others have by now, or
        nobody: none of these is appended to again, which would show that there is room."""
        for partition_id in gone:
            self._since.pop(partition_id, None)
        refused = dict(self._since)
        if not refused:
            return ""
        since, message = min(refused.values())
        which = f"partition{'s' if len(refused) > 1 else ''} {few(sorted(refused))}"
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(since))
        return f"no space left for {which} since {at}, appends are refused: {message}"
