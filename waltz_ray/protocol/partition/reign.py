"""Which session a partition has on this server, and how the next one is taken.

The running session goes on committing until its successor's number is ours; the *log* (retained records, next ID,
lock table, high-water mark) outlives both as long as no other server has published a session in between. When one has,
the log is lost: what was in flight gets its fate where the partition is now.
"""

from __future__ import annotations

from dataclasses import replace

from waltz_ray.config import ServerConfig
from waltz_ray.protocol.locks import LockTable
from waltz_ray.protocol.partition.events import (
    NO_SUCH_SESSION,
    Effect,
    PartitionDropped,
    PartitionReady,
    ReadRoster,
)
from waltz_ray.protocol.partition.state import Log, PartitionState, Stage
from waltz_ray.protocol.retained import RetainedMemory
from waltz_ray.protocol.roster import Roster
from waltz_ray.protocol.session import Session
from waltz_ray.protocol.session_types import (
    ReopenWanted,
    SessionEffect,
    SessionFailed,
    SessionFenced,
    SessionOpen,
    StartTimer,
    Warn,
    WriteRoster,
)
from waltz_ray.protocol.value import value

__all__ = [
    "BACKOFF_TIMER",
    "LOOK_TIMER",
    "LogLost",
    "LogOpened",
    "Reign",
    "Ruling",
    "SessionNews",
    "locks_of_a_new_log",
]

BACKOFF_TIMER = "backoff"
LOOK_TIMER = "look"
_LOOK_MS = 5_000
_FIRST_BACKOFF_MS, _LAST_BACKOFF_MS = 50, 2_000


@value()
class LogOpened:
    """A further session runs. It begins at ``start``: everything up to there is committed."""

    start: int


@value()
class LogLost:
    """Another server's session is (or may be) ahead: whoever waits for something of this log is to be told."""

    reason: str


Ruling = Effect | LogOpened | LogLost
"""What the reign orders of the shell, and what it tells the other parts of the machine."""

SessionNews = SessionOpen | ReopenWanted | SessionFailed | SessionFenced
"""What a session tells its reign."""


def locks_of_a_new_log(config: ServerConfig, start: int) -> LockTable:
    """Nobody here knows which locks the log up to ``start`` has taken: each counts as taken by ``start``."""
    return LockTable(config.lock_table_size, config.lock_table_probes, start)


class Reign:
    """Decides which session a partition has on this server. Methods return what follows, in its order."""

    def __init__(self, state: PartitionState, owner: str, memory: RetainedMemory) -> None:
        """``owner`` names the process: no other one, before or after it, has the same. ``memory``: of its server."""
        self._state = state
        self._memory = memory
        self._owner = owner
        self._attempts = 0  # to take a session
        self._taking: tuple[Roster, int] | None = None
        self._opening: Session | None = None
        self._backoff_ms = _FIRST_BACKOFF_MS
        self._reopen_again = False
        self._looking = False  # the timer runs
        self.trouble = ""
        """What the last attempt to open a session has come to, "" if that is open."""
        self._piece_bytes = state.config.catch_up_bytes(1)

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The running one and the one that opens."""
        return tuple(session for session in (self._state.session, self._opening) if session is not None)

    def share_memory(self, partitions_here: int) -> None:
        """So many partitions of this server share its memory for records and catch-ups."""
        config, log = self._state.config, self._state.log
        self._piece_bytes = config.catch_up_bytes(partitions_here)
        for session in self.sessions:
            session.piece_bytes = self._piece_bytes
        if log is not None:
            log.retained.trim(log.high_water_mark)

    # ---- beginning and end --------------------------------------------------------------------------------

    def begin(self, generation: int) -> list[Ruling]:
        """The partition is this server's from now on."""
        self._state.generation = generation
        self._backoff_ms = _FIRST_BACKOFF_MS
        return self._read_roster()

    def drop(self, reason: str) -> list[Ruling]:
        """Give the partition up: it is not this server's any more."""
        if self._state.stage is Stage.IDLE:
            return []
        lost = self._lose_log(reason)
        self._state.enter(Stage.IDLE)
        self._taking = None
        self._reopen_again = False
        return [lost, PartitionDropped(reason)]

    def _lose_log(self, reason: str) -> LogLost:
        if self._state.log is not None:
            self._memory.leave(self._state.log.retained)
        self._state.log = None
        self._state.session = self._opening = None
        return LogLost(reason)

    # ---- taking a session -----------------------------------------------------------------------------------

    def _read_roster(self) -> list[Ruling]:
        self._state.enter(Stage.READING)
        return [ReadRoster()]

    def roster_read(self, roster: Roster, version: int) -> list[Ruling]:
        """Take the next number, if it is for that; or an operator has changed the roster under a session."""
        state = self._state
        if state.stage is Stage.OPEN and state.session is not None and not state.session.writing:
            # A replica was declared replaced, or the set has changed (or we are fenced: it will show).
            return self.reopen() if version != state.session.version else []
        if state.stage is Stage.OPENING and self._opening is not None and not self._opening.writing:
            if version <= self._opening.version:
                return []
            warning = self._warn(
                f"session {self._opening.session_id}: the partition's roster has changed; trying again"
            )
            return [warning, *self._retry_later()]  # the replica may be needed for this very session to open
        if state.stage is not Stage.READING:
            return []
        if roster.generation > state.generation:
            return self.drop(f"generation {roster.generation} is recorded, this server was given {state.generation}")
        rulings: list[Ruling] = []
        if state.log is not None and not state.log.is_up_to(roster):
            rulings.append(self._lose_log("another server has opened a session in between"))
        return [*rulings, self._take(roster, version)]

    def _take(self, roster: Roster, version: int) -> WriteRoster:
        if self._state.session is not None:
            self._state.session.stop_registering()
        self._attempts += 1
        owner = f"{self._owner}/{self._attempts}"
        taken = replace(roster, session_id=roster.session_id + 1, generation=self._state.generation, owner=owner)
        self._taking = (taken, version)
        self._state.enter(Stage.TAKING)
        return WriteRoster(taken.session_id, taken, version)

    def is_taking(self, session_id: int) -> bool:
        """Whether a write of the roster is under way that takes this number."""
        return self._taking is not None and self._taking[0].session_id == session_id

    def not_taken(self) -> list[Ruling]:
        """Somebody else has written the roster."""
        self._taking = None
        return self._read_roster()

    def taken(self, version: int) -> list[SessionEffect]:
        """The number is ours. From here on nothing is sent in the session that was running."""
        assert self._taking is not None
        roster, self._taking = self._taking[0], None
        self._state.enter(Stage.OPENING)
        self._state.session = None
        self._reopen_again = False
        self._opening = Session(
            self._state.partition_id,
            roster,
            version,
            None if self._state.log is None else self._state.log.retained,
            join_grace_ms=self._state.config.join_grace_ms,
            piece_bytes=self._piece_bytes,
            trim_mark=self._state.trim_mark,
            progress_bytes=self._state.config.progress_bytes,
        )
        return [*self._opening.start(), *self._look_later()]

    def _look_later(self) -> list[SessionEffect]:
        """A session that waits for a replica may wait for ever, if an operator has taken that replica out."""
        if self._looking:
            return []
        self._looking = True
        return [StartTimer(NO_SUCH_SESSION, LOOK_TIMER, _LOOK_MS)]

    def look(self) -> list[Ruling]:
        """The timer has fired: has the roster been changed under a session that still opens?"""
        self._looking = False
        if self._state.stage is not Stage.OPENING:
            return []
        return [ReadRoster(), *self._look_later()]

    # ---- what sessions tell ---------------------------------------------------------------------------------

    def hear(self, news: SessionNews) -> list[Ruling]:
        """What a session, or the attempt to open one, has come to."""
        match news:
            case SessionOpen():
                return self._opened()
            case ReopenWanted(session_id, reason):
                return [self._warn(f"session {session_id}: {reason}; opening a new session"), *self.reopen()]
            case SessionFailed(session_id, reason):
                self.trouble = f"its last session failed: {reason}"
                return [self._warn(f"session {session_id} failed: {reason}"), *self._retry_later()]
            case SessionFenced(session_id, current):
                self.trouble = "its last session was fenced off by a higher one"
                warning = self._warn(f"session {session_id} is fenced off by session {current}")
                return [warning, *self._retry_later()]

    def _opened(self) -> list[Ruling]:
        session, self._opening = self._opening, None
        assert session is not None
        assert session.retained is not None
        assert session.low_water_mark is not None
        state, start = self._state, session.low_water_mark
        state.session, self._backoff_ms, self.trouble = session, _FIRST_BACKOFF_MS, ""
        state.enter(Stage.OPEN)
        if state.log is None:
            self._memory.join(session.retained)
            state.log = Log(session.retained, locks_of_a_new_log(state.config, start), start, session.session_id)
        elif not state.log.high_water_mark <= start < state.log.next_id:
            return self.drop(
                f"session {session.session_id} begins at {start}, but this server has committed up to "
                f"{state.log.high_water_mark} and assigned up to {state.log.next_id - 1}: the log is not one line; "
                "stop the cluster and run `waltz verify` on its directories"
            )
        state.log.published_session = session.session_id
        return [PartitionReady(state.generation, session.session_id, start), LogOpened(start)]

    def reopen_if_asked(self) -> list[Ruling]:
        """A reason for a further session came while the last one opened."""
        again, self._reopen_again = self._reopen_again, False
        return self.reopen() if again else []

    def reopen(self) -> list[Ruling]:
        """Open a further session; the running one goes on until its successor's number is taken."""
        if self._state.stage is Stage.OPEN:
            return self._read_roster()
        self._reopen_again = True
        return []

    def checkpoint_is_due(self, high_water_mark: int) -> bool:
        """So much is committed in the running session that another one should raise the replicas' low-water marks."""
        session = self._state.session
        start = None if session is None else session.low_water_mark
        return start is not None and high_water_mark - start >= self._state.config.checkpoint_interval

    def look_at_the_roster(self) -> list[Ruling]:
        """The set has changed; or a replica has lost its files: has an operator declared it replaced meanwhile?"""
        return [ReadRoster()] if self._state.stage in (Stage.OPEN, Stage.OPENING) else []

    def look_at_the_memory(self, first_id: int | None = None, limits: tuple[int, int] | None = None) -> list[Ruling]:
        """Somebody may have been sent records that are not what their CRCs say: are they so in this server's memory?

        By default it looks at all; else at those from ``first_id`` on, at about so many bytes in so many batches.

        If they are not, they were changed on their way, and are sent again. What is bad here would be sent again and
        again, to every replica: the log is read anew from those that have it, and who waits for what was in flight is
        told that it is lost, as at the end of the server.
        """
        log = self._state.log
        bad_id = None if log is None else log.retained.first_bad_id(first_id, *(limits or ()))
        if bad_id is None:
            return []
        reason = f"transaction {bad_id} has changed in this server's memory (bad RAM?); the log is read anew"
        lost = self._lose_log(reason)
        self.trouble = reason
        return [self._warn(reason), lost, *self._retry_later()]

    def _retry_later(self) -> list[Ruling]:
        self._state.session = self._opening = None
        if self._state.stage not in (Stage.OPEN, Stage.OPENING):
            return []
        self._state.enter(Stage.BACKOFF)
        pause_ms, self._backoff_ms = self._backoff_ms, min(2 * self._backoff_ms, _LAST_BACKOFF_MS)
        return [StartTimer(NO_SUCH_SESSION, BACKOFF_TIMER, pause_ms)]

    def pause_is_over(self) -> list[Ruling]:
        """The backoff's timer has fired."""
        return self._read_roster() if self._state.stage is Stage.BACKOFF else []

    def _warn(self, message: str) -> Warn:
        return Warn(NO_SUCH_SESSION, f"partition {self._state.partition_id}: {message}")
