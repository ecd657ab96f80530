"""What the parts of a partition's machine share, and the stages it goes through."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from waltz_ray.config import ServerConfig
from waltz_ray.protocol.ids import NO_TRANSACTION
from waltz_ray.protocol.locks import LockTable
from waltz_ray.protocol.retained import RetainedRecords
from waltz_ray.protocol.roster import Roster
from waltz_ray.protocol.session import Session

__all__ = ["STAGES", "Log", "Stage", "PartitionState"]


class Stage(Enum):
    """How far the next session is; one may be running meanwhile."""

    IDLE = "idle"  # not this server's partition
    READING = "reading"  # the roster, from ZooKeeper
    TAKING = "taking"  # the next session number, by compare-and-set
    OPENING = "opening"  # that session: fence, vote, copy, publish
    OPEN = "open"
    BACKOFF = "backoff"  # an attempt has failed


STAGES: dict[Stage, dict[Stage, str]] = {
    Stage.IDLE: {Stage.READING: "assigned"},
    Stage.READING: {Stage.TAKING: "the roster is read", Stage.IDLE: "dropped"},
    Stage.TAKING: {
        Stage.OPENING: "the number is ours",
        Stage.READING: "somebody else was faster",
        Stage.IDLE: "dropped",
    },
    Stage.OPENING: {
        Stage.OPEN: "published",
        Stage.BACKOFF: "the attempt has failed",
        Stage.IDLE: "dropped",
    },
    Stage.OPEN: {
        Stage.READING: "a member has failed, a checkpoint is due, or the roster has changed",
        Stage.BACKOFF: "fenced off",
        Stage.IDLE: "dropped",
    },
    Stage.BACKOFF: {Stage.READING: "after a pause", Stage.IDLE: "dropped"},
}
"""From each stage where it may go, and why (drawn in docs/design.md)."""


@dataclass(slots=True)
class Log:
    """What this server knows of the partition's log while it owns it. It outlives sessions."""

    retained: RetainedRecords
    locks: LockTable
    high_water_mark: int
    published_session: int

    @property
    def next_id(self) -> int:
        """The ID the next admitted transaction gets."""
        return self.retained.end_id

    def is_up_to(self, roster: Roster) -> bool:
        """Whether no other server has published a session since: only then is this still the partition's log."""
        return roster.last_published_session == self.published_session


@dataclass(slots=True)
class PartitionState:
    """Read by all parts. ``Reign`` sets all of it but the log's mark, which is the machine's, and its end, which is
    the intake's."""

    partition_id: int
    config: ServerConfig
    generation: int = -1
    stage: Stage = Stage.IDLE
    trim_mark: int = 0  # records below it may be gone
    session: Session | None = None  # the running one
    log: Log | None = None

    @property
    def high_water_mark(self) -> int:
        """ID of the last committed transaction, -1 while unknown or none."""
        return NO_TRANSACTION if self.log is None else self.log.high_water_mark

    def enter(self, stage: Stage) -> None:
        """Go on to ``stage``; AssertionError if the table does not lead there."""
        if stage not in STAGES[self.stage]:
            raise AssertionError(f"partition {self.partition_id}: {self.stage.value} must not become {stage.value}")
        self.stage = stage
