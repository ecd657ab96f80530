"""What is said of a disk that is full: by a replica, since when and which partitions take no appends; by ZooKeeper."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence

from waltz_ray.protocol.messages.replica import (
    APPEND_REQUEST,
    OPEN_REQUEST,
    Appended,
    LowWaterMarkSet,
    RefusalCode,
    Refused,
    ReplicaReply,
    StateReply,
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
        self._asked: dict[int, int] = {}  # the type of the request that was refused, of each of these

    def noted(self, replies: list[ReplicaReply]) -> list[ReplicaReply]:
        """Note which of these replies tell of a full disk, or of one that has room again; returns them as they are."""
        for reply in replies:
            if type(reply) is Refused:
                if reply.code is RefusalCode.DISK_FULL:
                    self._since.setdefault(reply.partition_id, (time.time(), reply.message))
                    self._asked[reply.partition_id] = reply.request_type
            elif self._since and self._has_found_room(reply):
                self._since.pop(reply.partition_id, None)
        return replies

    def _has_found_room(self, reply: ReplicaReply) -> bool:
        """An append has, or what was refused and may be all that is ever asked of a partition to which nobody appends.
        A mark is set of every replica that takes part, and is the last that is written before it does."""
        if type(reply) is Appended:
            return True
        asked = self._asked.get(reply.partition_id)
        if asked == OPEN_REQUEST:
            return type(reply) in (StateReply, LowWaterMarkSet)
        return type(reply) is LowWaterMarkSet and asked != APPEND_REQUEST

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
