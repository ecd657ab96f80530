"""One compare-and-set of a roster whose answer may be lost: what to do next, and what came of it."""

from __future__ import annotations

from waltz_ray.protocol.roster import Roster
from waltz_ray.protocol.session_types import RosterWritten

__all__ = ["RosterWrite"]


class RosterWrite:
    """Writes ``roster`` over ``version`` for a session.

    Without an answer nobody knows whether the write happened: then the stored roster has to be looked at before the
    write is tried again, and tells (``Roster.has_replaced``).
    """

    def __init__(self, session_id: int, roster: Roster, version: int) -> None:
        self._session_id = session_id
        self.roster = roster
        self.version = version
        self.must_look = False
        """Whether ``found`` comes next, else the write."""

    def unanswered(self) -> None:
        """The write may have happened or not."""
        self.must_look = True

    def found(self, stored: Roster, stored_version: int) -> RosterWritten | None:
        """What is stored now; None: the write has not happened (yet), do it."""
        self.must_look = False
        if self.roster.has_replaced(self.version, stored, stored_version):
            return self.written(stored_version)
        return None

    def written(self, version: int) -> RosterWritten:
        """The fact that the write has happened, as ``version``."""
        return RosterWritten(self._session_id, version)
