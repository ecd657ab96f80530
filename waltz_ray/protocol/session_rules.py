"""The rules of a session, each by its name: who votes, what is cut, when it is published, what is committed.

Each looks at the session and answers one question. Nothing is changed here, and nothing is ordered: when each question
is asked, and what follows from the answer, is ``session.py``'s. Why the rules are as they are: docs/design.md,
"Sessions and recovery". *M* are the members of the last published session, *X* is the last ID of the log that the
session begins with, its low-water mark.

``tests/simulation/mutations_sessions.py`` breaks them, and something must notice it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from waltz_ray.protocol.ids import NO_TRANSACTION
from waltz_ray.protocol.roster import ReplicaEntry, Roster
from waltz_ray.protocol.session_replica import Phase, SessionReplica

__all__ = [
    "COUNTED",
    "SessionView",
    "committed_mark",
    "has_all_that_was_sent",
    "has_been_left_behind",
    "holds_the_beginning",
    "joined_session",
    "low_water_mark",
    "may_be_repaired",
    "may_be_published",
    "may_become_member",
    "may_vote",
    "next_roster",
    "next_to_be_marked",
    "progress_mark",
    "reaches_the_trim_mark",
    "reopens_when_lost",
    "right_up_to",
    "source_for",
    "vouched_for",
    "votes_needed",
]


class SessionView(Protocol):
    """What the rules look at of a session."""

    @property
    def session_id(self) -> int: ...
    @property
    def roster(self) -> Roster:
        """Of the partition, as it was written last, as far as this session knows."""

    @property
    def replicas(self) -> Mapping[int, SessionReplica]:
        """Every assigned replica by its ID."""

    @property
    def quorum(self) -> int:
        """Of the assigned replicas."""

    @property
    def voters(self) -> frozenset[int]:
        """M."""

    @property
    def published_quorum(self) -> int:
        """Of the last published session: replicas may have come and gone since."""

    @property
    def low_water_mark(self) -> int | None:
        """X, once it is known."""

    @property
    def trim_mark(self) -> int:
        """Records below it may be gone, on any replica."""

    @property
    def high_water_mark(self) -> int:
        """The last committed ID; -1 before publication."""

    @property
    def published(self) -> bool: ...
    @property
    def joining(self) -> frozenset[int]:
        """The replicas that join by the write of the roster under way: ZooKeeper may call them members already."""


# ---- before X is known ------------------------------------------------------------------------------------------


def joined_session(session: SessionView, replica_id: int) -> int:
    """The session that a replica must remember; without its files it must not be taken for one that never joined."""
    return session.session_id if replica_id in session.joining else session.roster.replicas[replica_id].session_id


def may_vote(session: SessionView, replica: SessionReplica) -> bool:
    """The members of the last published session vote, each with its last ID; a damaged one has lost its vote."""
    return replica.replica_id in session.voters and not replica.damaged


def votes_needed(session: SessionView) -> int:
    """More than |M| - quorum, at least one: any so many of M meet every quorum of M that may have committed.

    The quorum meant is that of the last published session, which may have had other replicas than this one.
    """
    return max(1, len(session.voters) - session.published_quorum + 1)


def low_water_mark(session: SessionView) -> int | None:
    """X: the largest vote; None while there are too few."""
    votes = [replica.last_id for replica in session.replicas.values() if replica.voted]
    return max(votes) if len(votes) >= votes_needed(session) else None


# ---- from X to publication --------------------------------------------------------------------------------------


def right_up_to(session: SessionView, replica: SessionReplica, x: int) -> int:
    """The last ID up to which what a replica came with is of the log's true line. What is behind it is cut.

    Its own low-water mark always vouches for what it has: a mark is only ever set by a published session, at or below
    what that session had committed, on a log that it had pruned before (``progress_mark``). What was committed is of
    every later session's line, and of no other; and whoever cuts a log below its mark lowers the mark first. So a late
    joiner that was copied to beyond its closing mark keeps what it had when the session ended: its progress."""
    entry = session.roster.replicas[replica.replica_id]
    if entry.session_id == session.session_id or replica.replica_id in session.joining:
        return replica.last_id  # all it has is this session's, and it must go on holding it
    if entry.closing_mark is not None:
        return max(min(entry.closing_mark, x), replica.local_low_water_mark)
    if replica.replica_id in session.voters:
        return x  # one that answers late may have more
    # It never joined: what is behind its own mark may be of a session that was never published.
    return replica.local_low_water_mark


def has_been_left_behind(session: SessionView, right_id: int) -> bool:
    """Of a replica whose log is right up to ``right_id``: whether what it needs next may be gone everywhere.

    Then it begins anew at the trim mark. What it gives up is below the mark, too.
    """
    return right_id + 1 < session.trim_mark


def reaches_the_trim_mark(session: SessionView, x: int) -> bool:
    """A log cannot end below what was trimmed of it, for only what is committed is trimmed."""
    return x + 1 >= session.trim_mark


def may_be_repaired(session: SessionView, replica: SessionReplica) -> bool:
    """A damaged replica is cut before the damage, but only once a session is published without it.

    Earlier, its entry would still make it a voter of the next opening, now with a short log and no damage
    to show for it: records that it had acknowledged could be lost.
    """
    return replica.replica_id not in session.roster.members and replica.replica_id not in session.joining


def holds_the_beginning(replica: SessionReplica, x: int) -> bool:
    """Of a replica that holds nothing wrong: whether it has on its disk what the session begins with."""
    return replica.last_id == x


def source_for(session: SessionView, target: SessionReplica) -> SessionReplica | None:
    """A replica of the log's true line that has the next record ``target`` needs."""
    trusted = Phase.MEMBER if session.published else Phase.HOLDING
    able = [
        replica
        for replica in session.replicas.values()
        if replica.phase is trusted and not replica.unreadable and replica.last_id > target.last_id
    ]
    return max(able, key=lambda replica: replica.last_id) if able else None


def has_all_that_was_sent(replica: SessionReplica) -> bool:
    """Only then may it be sent the next piece of what it lacks."""
    return not replica.reading and replica.last_id >= replica.sent_to


def may_be_published(session: SessionView) -> bool:
    """A quorum *of the assigned replicas* holds X on disk: copy, then publish is what prevents forks."""
    holding = [replica for replica in session.replicas.values() if replica.phase is Phase.HOLDING]
    return len(holding) >= session.quorum


def next_roster(session: SessionView, joined: frozenset[int]) -> Roster:
    """The roster with ``joined`` in this session and, at publication, the closing mark X for the others.

    One that never joined gets none before this session has cut it (``vouched_for``).
    """
    entries: dict[int, ReplicaEntry] = {}
    for replica_id, entry in session.roster.replicas.items():
        if replica_id in joined:
            entries[replica_id] = ReplicaEntry(session.session_id, None)
        elif (
            entry.closing_mark is None
            and entry.session_id != session.session_id
            and vouched_for(session, session.replicas[replica_id])
        ):
            entries[replica_id] = replace(entry, closing_mark=session.low_water_mark)
        else:
            entries[replica_id] = entry
    return replace(session.roster, replicas=entries, published_quorum=session.quorum)


def vouched_for(session: SessionView, replica: SessionReplica) -> bool:
    """Whether what a replica has up to X is right: not what an older session left on one that never joined."""
    return replica.replica_id in session.voters or replica.pruned


# ---- after publication ------------------------------------------------------------------------------------------

COUNTED: tuple[Phase, ...] = (Phase.MEMBER,)
"""Whose acknowledgements count: members', for the next opening asks nobody else. (On the way of every append.)"""


def committed_mark(session: SessionView) -> int:
    """The high-water mark: the quorum-th highest last ID among those that count; -1 if they are too few."""
    acknowledged = [replica.last_id for replica in session.replicas.values() if replica.phase in COUNTED]
    if len(acknowledged) < session.quorum:
        return NO_TRANSACTION
    acknowledged.sort(reverse=True)
    return acknowledged[session.quorum - 1]


def progress_mark(session: SessionView, replica: SessionReplica) -> int:
    """What the low-water mark of a late joiner may be raised to while it is being copied: what is on its disk, of the
    log's true line, and committed.

    Not all that it was sent: a member that it is copied from may have records that no quorum has. If that member goes,
    the next session begins without them, and the mark would vouch for records that are not of its line; and anybody
    may read what lies at or below a mark."""
    return min(replica.last_id, session.high_water_mark)


def next_to_be_marked(session: SessionView) -> SessionReplica | None:
    """The member whose low-water mark is set next; None while another one's is.

    One after the other: before a replica sets a mark it syncs what is below, and all that it is sent behind that waits.
    The others are a quorum meanwhile, so nobody else waits. By number, so that partitions whose sessions begin together
    (theirs are as busy as each other) keep the same replica busy, and not each another one.
    """
    if any(replica.marking for replica in session.replicas.values()):
        return None
    due = [replica for replica in session.replicas.values() if replica.mark_due]
    return min(due, key=lambda replica: replica.replica_id) if due else None


def may_become_member(replica: SessionReplica, x: int) -> bool:
    """A late joiner is registered in ZooKeeper once it is on the live stream and has what the session began with."""
    return replica.phase is Phase.LIVE and replica.last_id >= x


def reopens_when_lost(session: SessionView, replica: SessionReplica) -> bool:
    """A member that fails leaves for good, and so does one that is as good as a member: its entry may be written."""
    return replica.phase is Phase.MEMBER or replica.replica_id in session.joining
