"""What ZooKeeper holds about one partition: the session, the generation and the replica entries.

As JSON: docs/formats.md, "Nodes of ours". It changes only by compare-and-set, so whoever writes it has read exactly
what they replace.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from waltz_ray.protocol.ids import NO_SESSION, NO_TRANSACTION, quorum_of
from waltz_ray.protocol.value import value

__all__ = ["UNRESOLVED", "Roster", "ReplicaEntry"]

UNRESOLVED: None = None
"""The closing mark of a replica that is, as far as anybody has published, still a member of its session."""

_VERSION = 1


@value()
class ReplicaEntry:
    """One replica's last published session, and where its valid log ends.

    ``session_id`` is NO_SESSION (-1) if the replica never joined one. ``closing_mark`` is the transaction ID
    up to which the replica's log is known to be right (-1 = nothing), or UNRESOLVED (None).
    """

    session_id: int
    closing_mark: int | None


@value()
class Roster:
    """``session_id`` is the last one *taken* (perhaps never published); ``replicas`` the last published truth.

    ``generation`` is that of the session's server. ``replicas`` is replica ID -> entry; do not change it in place.

    ``published_quorum``: of the members of the last published session that ``replicas`` names, at least so many
    hold each record that session has committed. It is that session's quorum, less the members that were removed
    since; the next opening needs votes from more than |M| - published_quorum of them. It cannot be told from the
    number of entries once replicas were added or removed. Not given: the quorum of ``replicas``, which is right as
    long as the set has not changed (and for records written before this field).

    ``owner`` names the attempt that took ``session_id``: no two attempts, of whatever process, have the same. Without
    it two processes of one server would write equal records, and after a lost answer both could take the other's
    for their own: one session with two writers.
    """

    session_id: int
    generation: int
    replicas: Mapping[int, ReplicaEntry]
    published_quorum: int = 0
    owner: str = ""

    def __post_init__(self) -> None:
        if self.published_quorum == 0:
            object.__setattr__(self, "published_quorum", quorum_of(len(self.replicas)))

    @property
    def last_published_session(self) -> int:
        """The highest session any entry names; NO_SESSION if none was ever published."""
        return max((entry.session_id for entry in self.replicas.values()), default=NO_SESSION)

    @property
    def members(self) -> frozenset[int]:
        """M: the replicas that are, as far as anybody has published, members of the last published session."""
        member = ReplicaEntry(self.last_published_session, UNRESOLVED)
        return frozenset(replica_id for replica_id, entry in self.replicas.items() if entry == member)

    def with_replicas(self, replica_ids: Iterable[int]) -> Roster:
        """The record with the partition assigned to another set of replicas, to be written by compare-and-set.

        It rules from the next opening on. Replicas that are new must be empty or hold a copy of this log; they never
        joined, so they are cut to their own low-water mark and filled. Each member that is taken away makes the next
        opening wait for the vote of one more of those that stay, so take away few at a time, with a session between.
        ValueError: none is left, or the members that stay need not hold all that was committed.
        """
        wanted = sorted(set(replica_ids))
        if not wanted:
            raise ValueError("a partition needs at least one replica")
        never_joined = ReplicaEntry(NO_SESSION, UNRESOLVED)
        replicas = {replica_id: self.replicas.get(replica_id, never_joined) for replica_id in wanted}
        if self.last_published_session == NO_SESSION:
            return Roster(
                self.session_id, self.generation, replicas, owner=self.owner
            )  # nothing can have been committed
        removed = self.members - replicas.keys()
        published_quorum = self.published_quorum - len(removed)
        if published_quorum < 1:
            raise ValueError(
                f"replicas {sorted(removed)} may be the only ones with what session {self.last_published_session} has "
                "committed; remove fewer of them, and let a server open a session before the next ones"
            )
        return Roster(self.session_id, self.generation, replicas, published_quorum, self.owner)

    def has_replaced(self, version: int, stored: Roster, stored_version: int) -> bool:
        """Whether ``stored`` shows that this roster was written over ``version``: for a writer without an answer.

        Only because ``owner`` differs from attempt to attempt does an equal roster mean one's own.
        """
        return stored_version == version + 1 and stored == self

    @classmethod
    def initial(cls, replica_ids: Iterable[int]) -> Roster:
        """A partition that never had a session."""
        return cls(0, 0, {replica_id: ReplicaEntry(NO_SESSION, UNRESOLVED) for replica_id in sorted(replica_ids)})

    def to_json(self) -> str:
        """The record as JSON, as ZooKeeper keeps it; people read it too."""
        replicas = {
            str(replica_id): {"session": entry.session_id, "closing_mark": entry.closing_mark}
            for replica_id, entry in sorted(self.replicas.items())
        }
        fields = {
            "version": _VERSION,
            "session": self.session_id,
            "generation": self.generation,
            "owner": self.owner,
            "published_quorum": self.published_quorum,
            "replicas": replicas,
        }
        return json.dumps(fields, indent=1)

    @classmethod
    def from_json(cls, text: str | bytes) -> Roster:
        """ValueError says what is wrong with ``text``."""
        try:
            fields = json.loads(text)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        if not isinstance(fields, dict) or fields.get("version") != _VERSION:
            raise ValueError(f"not a roster of version {_VERSION}")
        replicas = fields.get("replicas")
        if not isinstance(replicas, dict):
            raise ValueError("the roster has no replicas")
        return cls(
            _integer(fields, "session", 0),
            _integer(fields, "generation", 0),
            {int(replica_id): _entry(replica_id, value) for replica_id, value in replicas.items()},
            _integer(fields, "published_quorum", 1) if "published_quorum" in fields else 0,
            str(fields.get("owner", "")),  # written since there is one
        )


def _entry(replica_id: str, value: Any) -> ReplicaEntry:
    if not isinstance(value, dict) or "closing_mark" not in value:
        raise ValueError(f"replica {replica_id} of the roster has no session and closing mark")
    # A missing mark must never read as UNRESOLVED: it would make the replica a voter.
    mark = None if value["closing_mark"] is None else _integer(value, "closing_mark", NO_TRANSACTION)
    return ReplicaEntry(_integer(value, "session", NO_SESSION), mark)


def _integer(fields: Mapping[str, Any], name: str, lowest: int) -> int:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise ValueError(f"{name} of the roster must be an integer from {lowest}, not {value!r}")
    return value
