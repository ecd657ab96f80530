"""A replica as a session sees it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from waltz_ray.protocol.ids import NO_TRANSACTION

__all__ = ["Phase", "SessionReplica"]


class Phase(Enum):
    """Where a replica is in a session (drawn at the top of ``session.py``)."""

    LOST = "lost"
    OPENING = "opening"
    OPENED = "opened"
    TRUNCATING = "truncating"
    COPYING = "copying"
    HOLDING = "holding"
    LIVE = "live"
    MEMBER = "member"


@dataclass(slots=True)
class SessionReplica:
    """What one session knows of one replica. The session alone changes it."""

    replica_id: int
    phase: Phase = Phase.OPENING
    last_id: int = NO_TRANSACTION  # on its disk, as far as it has told this session
    voted: bool = False
    local_low_water_mark: int = NO_TRANSACTION  # its own, as it came or as this session has raised it
    unmarked_bytes: int = 0  # sent to bring it up since its mark was raised last
    pruned: bool = False  # whatever it holds up to X is of the log's true line
    damaged: bool = False  # has bad records beyond last_id
    unreadable: bool = False  # as a source of copies, for a while
    reading: bool = False  # a peer is being read for it
    sent_to: int = NO_TRANSACTION  # the last ID of the piece that is being copied to it
    mark_due: bool = False  # it has become a member, and has not been told its mark
    marking: bool = False  # it has been told, and has not said that it is done
    lost_because: str = ""  # the last time it was

    @property
    def busy(self) -> bool:
        """On its way to holding X."""
        return not self.damaged and self.phase in (Phase.OPENING, Phase.TRUNCATING, Phase.COPYING, Phase.OPENED)
