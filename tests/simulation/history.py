"""What the world observed, for the checkers: commits, acknowledgements, fates, feeds, sessions.

It only listens. Nothing here influences what the machines do.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from waltz_ray.protocol.ids import NO_SESSION
from waltz_ray.protocol.messages.replica import (
    REPLICA_TYPES,
    Read,
    RefusalCode,
    Refused,
)

__all__ = ["Fate", "Feed", "History", "Logical", "RosterWrite", "Refusal", "Trace", "Violation"]


class Violation(AssertionError):
    """A rule of the log is broken. ``checker``: whose."""

    def __init__(self, checker: str, message: str) -> None:
        super().__init__(checker, message)
        self.checker, self.message = checker, message

    def __str__(self) -> str:
        return f"{self.checker}: {self.message}"


READ_REQUEST = REPLICA_TYPES[Read]


@dataclass(frozen=True, slots=True)
class Fate:
    """What an application was told of a transaction: ``committed`` (as which ID), ``absent``, ``unknown``."""

    kind: str
    transaction_id: int = -1


@dataclass(slots=True)
class Logical:
    """One thing an application wanted in the log once, however often it was sent."""

    uid: str
    partition_id: int
    client: str
    since_s: float
    fate: Fate | None = None


@dataclass(slots=True)
class Feed:
    """What one subscription was fed: pairs of (transaction ID, uid or ReqId text), beginning after ``mark``."""

    client: str
    partition_id: int
    mark: int
    entries: list[tuple[int, str]] = field(default_factory=list)


@dataclass(slots=True)
class Trace:
    """What one client told its application, in order: (partition, what, about which transaction).

    | what | about |
    |---|---|
    | ``proposed``, ``completed`` | the uid of a single append or a context |
    | ``lock refused``, ``applied`` | a transaction ID |
    | ``went back`` | the application's mark now: it has another database, an older one, or as new as it must be |
    | ``closed`` | 0 |
    """

    client: str
    marks: dict[int, int]
    events: list[tuple[int, str, int | str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RosterWrite:
    """A partition's ZooKeeper record as it was written."""

    who: str
    session_id: int
    generation: int
    replicas: dict[int, tuple[int, int | None]]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A replica's. ``follows``: the same connection, partition and session were refused something before."""

    replica: str
    peer: str
    partition_id: int
    session_id: int
    code: RefusalCode
    follows: bool
    message: str


@dataclass
class History:
    """Per partition where a list is indexed by it."""

    partitions: int
    checkpoint_interval: int = 1 << 62
    committed: list[dict[int, bytes]] = field(default_factory=list)  # ID -> record bytes, as first counted committed
    committed_by: list[dict[int, str]] = field(default_factory=list)
    writers: dict[tuple[int, int], str] = field(default_factory=dict)  # (partition, session) -> process
    takers: dict[tuple[int, int], str] = field(default_factory=dict)  # (partition, session) -> process
    roster_writes: list[list[RosterWrite]] = field(default_factory=list)
    logicals: dict[str, Logical] = field(default_factory=dict)
    feeds: list[Feed] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    reads: list[tuple[int, int, bytes]] = field(default_factory=list)  # (partition, ID, record) answered by servers
    refusals: list[Refusal] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    violation: Violation | None = None
    given_up: dict[tuple[str, int], int] = field(default_factory=dict)
    """Of partitions that a replica's process gave up because they were moved away, the last session it had opened:
    what is left on its way of that, or of older ones, does not fit any more."""
    _refused: set[tuple[object, int, int]] = field(default_factory=set)  # (connection, partition, session)

    def __post_init__(self) -> None:
        self.grow(self.partitions)

    def grow(self, partitions: int) -> None:
        """There are so many now."""
        for _ in range(partitions - len(self.committed)):
            self.committed.append({})
            self.committed_by.append({})
            self.roster_writes.append([])

    def forget(self, partition_id: int) -> None:
        """Its space was deleted: what was said about its records has nothing to be compared with any more."""
        self.committed[partition_id].clear()
        self.logicals = {uid: one for uid, one in self.logicals.items() if one.partition_id != partition_id}
        self.feeds = [feed for feed in self.feeds if feed.partition_id != partition_id]
        self.reads = [read for read in self.reads if read[0] != partition_id]
        for trace in self.traces:
            trace.events = [event for event in trace.events if event[0] != partition_id]

    def blame(self, checker: str, message: str) -> None:
        """Found on the way: the world stops at the end of this step. The first one counts."""
        self.violation = self.violation or Violation(checker, message)

    # ---- what is observed ---------------------------------------------------------------------------------

    def record_written(self, who: str, partition_id: int, fields: dict[str, Any]) -> None:
        replicas = {int(r): (e["session"], e["closing_mark"]) for r, e in fields["replicas"].items()}
        write = RosterWrite(who, fields["session"], fields["generation"], replicas)
        self.roster_writes[partition_id].append(write)

    def server_committed(self, who: str, partition_id: int, transaction_id: int, record: bytes) -> None:
        """A server counts this record as committed."""
        known = self.committed[partition_id].setdefault(transaction_id, record)
        if known == record:
            self.committed_by[partition_id].setdefault(transaction_id, who)
            return
        first = self.committed_by[partition_id][transaction_id]
        self.blame("no_fork", f"partition {partition_id}: {first} and {who} committed different {transaction_id}")

    def taken(self, who: str, partition_id: int, session_id: int) -> None:
        """A server believes that this session is its own."""
        known = self.takers.setdefault((partition_id, session_id), who)
        if known != who:
            self.blame(
                "one_writer", f"partition {partition_id}: both {known} and {who} have taken session {session_id}"
            )

    def appended(self, who: str, partition_id: int, session_id: int) -> None:
        """A replica took records of ``session_id`` from the process ``who``."""
        known = self.writers.setdefault((partition_id, session_id), who)
        if known != who:
            self.blame("one_writer", f"partition {partition_id}: session {session_id} was written by {known} and {who}")

    def opens(self, connection: object, partition_id: int, session_id: int) -> None:
        """A replica is told to open a session: what it refused of it before is over."""
        self._refused.discard((connection, partition_id, session_id))

    def refused(self, replica: str, peer: str, connection: object, reply: Refused) -> None:
        """A replica has refused something.

        That an order does not fit its log must be the effect of an earlier refusal. But a read may: it asks whichever
        member is next, and that one need not hold all that is committed.
        """
        key = (connection, reply.partition_id, reply.session_id)
        follows = key in self._refused
        self._refused.add(key)
        self.refusals.append(
            Refusal(replica, peer, reply.partition_id, reply.session_id, reply.code, follows, reply.message)
        )
        self.counts[f"refused {reply.code.name}"] += 1
        misfit = reply.code is RefusalCode.NOT_CONTIGUOUS and reply.request_type != READ_REQUEST
        if reply.session_id <= self.given_up.get((replica, reply.partition_id), NO_SESSION):
            return
        if misfit and not follows:
            self.blame("costs", f"{replica} refuses {peer}, to which it had refused nothing: {reply.message}")

    def logical(self, uid: str, partition_id: int, client: str, now_s: float) -> Logical:
        logical = self.logicals[uid] = Logical(uid, partition_id, client, now_s)
        self.counts["transactions"] += 1
        return logical

    def fate(self, uid: str, fate: Fate) -> None:
        """The application is told; a second, different word is a violation."""
        logical = self.logicals[uid]
        if logical.fate is not None and logical.fate != fate:
            self.blame("fates", f"{uid} of {logical.client} was told {logical.fate}, then {fate}")
        logical.fate = fate
        self.counts[f"told {fate.kind}"] += 1

    def pending(self) -> list[Logical]:
        return [logical for logical in self.logicals.values() if logical.fate is None]
