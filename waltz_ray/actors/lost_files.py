"""What is said of partitions whose files are not what the replica once promised: known from the refusals that leave."""

from __future__ import annotations

from collections.abc import Sequence

from waltz_ray.actors.full_disk import few
from waltz_ray.protocol.messages.replica import OPEN_REQUEST, RefusalCode, Refused, ReplicaReply, StateReply

__all__ = ["LostFiles"]


class LostFiles:
    """Of one replica, until a session is opened on them again."""

    def __init__(self) -> None:
        self._lost: dict[int, str] = {}

    def noted(self, replies: list[ReplicaReply]) -> list[ReplicaReply]:
        """Note what these replies say; returns them as they are."""
        for reply in replies:
            if type(reply) is StateReply:
                if self._lost:
                    self._lost.pop(reply.partition_id, None)
            elif type(reply) is Refused and reply.request_type == OPEN_REQUEST:
                if reply.code is RefusalCode.LOST_FILES:
                    self._lost[reply.partition_id] = reply.message
                elif self._lost and reply.code is not RefusalCode.FENCED:
                    self._lost.pop(reply.partition_id, None)  # something else is wrong by now, and told elsewhere
        return replies

    def problem(self, gone: Sequence[int] = ()) -> str:
        """One line for people, "" while there is nothing to say. ``gone``: partitions that others have by now, or
        nobody."""
        lost = {p: message for p, message in self._lost.copy().items() if p not in gone}
        if not lost:
            return ""
        which = f"partition{'s' if len(lost) > 1 else ''} {few(sorted(lost))}"
        return f"takes no part in {which}: {lost[min(lost)]}"
