"""What a replica says about a disk that is full: since when, and which partitions take no appends."""

from __future__ import annotations

import time
from collections.abc import Sequence

from waltz_ray.protocol.messages.replica import (
    Appended,
    RefusalCode,
    Refused,
    ReplicaReply,
)

__all__ = ["FullDisk", "few"]


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

    def problem(self) -> str:
        """One line for people, "" while there is nothing to say."""
        refused = dict(self._since)
        if not refused:
            return ""
        since, message = min(refused.values())
        which = f"partition{'s' if len(refused) > 1 else ''} {few(sorted(refused))}"
        at = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(since))
        return f"no space left for {which} since {at}, appends are refused: {message}"
