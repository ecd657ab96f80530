"""The writes of one hash, one after the other, and what is known of its items before they are folded. Pure.

An owner decides a write by what is there: so of each hash one write at a time is on its way to the log. What is
committed but not yet in the projection, because the feed has not brought it, is kept here (*fresh*) until it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from waltz_ray.kv.fold_clients import refused_number
from waltz_ray.kv.messages import Command
from waltz_ray.kv.model import (
    Delete,
    Item,
    ItemKey,
    Lock,
    LockHeld,
    Record,
    RequestId,
    Set,
    Touch,
    Unlock,
    WriteRefused,
)
from waltz_ray.kv.routing import Unit
from waltz_ray.kv.rules import Outcome, What, is_over
from waltz_ray.kv.state import KvState

__all__ = ["LOCKS", "NOT_DUE", "Call", "Fresh", "Line", "LineKey", "PendingRead", "PendingWrite", "lock_code"]

LOCKS = -1
"""In place of a map's hash."""

NOT_DUE = 1 << 64
"""In place of a time."""

LineKey = tuple[int, int]
"""Map hash and key hash; of a lock ``LOCKS`` and the hash of its name."""


class Call:
    """One command that writes; a ``Put`` has several writes. ``parting``: its client has said goodbye, so it does not
    wait for a lock or an owner. ``abandoned``: its connection is gone, so what has not been appended is not appended
    any more. Either is refused then."""

    __slots__ = ("abandoned", "command", "connection", "fullwait", "left", "outcomes", "parting", "token")

    def __init__(self, token: int, connection: int, command: Command, writes: int, fullwait: bool) -> None:
        self.token = token
        self.connection = connection
        self.command = command
        self.fullwait = fullwait
        self.left = writes
        """Writes that have not ended."""
        self.parting = self.abandoned = False
        self.outcomes: list[Outcome | None] = [None] * writes


class PendingWrite:
    """One write of a call."""

    __slots__ = ("call", "index", "key_hash", "line_key", "park_until_ms", "proven_ms", "request", "what")

    def __init__(self, call: Call, index: int, what: What, request: RequestId, line_key: LineKey) -> None:
        self.call = call
        self.index = index
        self.what = what
        self.request = request
        self.line_key = line_key
        self.key_hash = line_key[1]
        self.park_until_ms = 0
        self.proven_ms = 0
        """The log has just said that its unit was ours after this time: it may be refused for what was there then."""


class PendingRead:
    """A command that reads, while it waits: for a write before it, for an owner, for a proof that this is the owner."""

    __slots__ = (
        "attempt",
        "command",
        "connection",
        "key_hash",
        "missing",
        "park_until_ms",
        "proven",
        "sought_ms",
        "token",
    )

    def __init__(self, token: int, connection: int, command: Command, key_hash: int) -> None:
        self.token = token
        self.connection = connection
        self.command = command
        self.key_hash = key_hash
        """Of its item; of several, of one."""
        self.missing: set[Unit] = set()
        """Units without proof, in this attempt."""
        self.proven: frozenset[Unit] = frozenset()
        """Those that have it, once none is missing."""
        self.sought_ms = 0
        """When this attempt began."""
        self.attempt = 0
        self.park_until_ms = 0


class Fresh:
    """What own records have made of one hash that is not folded yet. ``version`` -1: nothing."""

    __slots__ = ("items", "locks", "requests", "settled", "version")

    def __init__(self) -> None:
        self.items: dict[ItemKey, Item | None] = {}
        self.locks: dict[bytes, LockHeld | None] = {}
        self.requests: dict[tuple[int, int], int] = {}
        self.settled: dict[int, int] = {}
        self.version = -1


_NOTHING = Fresh()
"""Of every line that has nothing fresh; never changed."""


class Line:
    """One hash; also a ``rules.Known``."""

    __slots__ = ("due_ms", "flying", "fresh", "key", "queue", "state", "waiting")

    def __init__(self, key: LineKey, state: KvState) -> None:
        self.key = key
        self.state = state
        self.queue: deque[PendingWrite | PendingRead] = deque()
        self.flying: PendingWrite | None = None
        """On its way to the log, or waiting to be decided again."""
        self.waiting: deque[PendingWrite] = deque()
        """For the lock."""
        self.due_ms = NOT_DUE
        """Before then time alone changes nothing for those."""
        self.fresh = _NOTHING

    @property
    def idle(self) -> bool:
        """Nothing is to be remembered of it."""
        return not self.queue and self.flying is None and not self.waiting and self.fresh.version < 0

    def is_before(self, connection: int, now_ms: int) -> bool:
        """Whether a read that comes now over that connection has to wait for a write before it.

        For the connection's own. And where something has expired, for the one that is on its way: it was decided by
        what was there then, so nobody may be shown before it that this has gone.
        """
        return self.has_write_of(connection) or (self.flying is not None and self.has_expired(now_ms))

    def has_expired(self, now_ms: int) -> bool:
        """Whether an item is there whose deadline is over."""
        return any(is_over(item.deadline_ms, now_ms) for _, item in self.items_of_hash(*self.key))

    def has_write_of(self, connection: int) -> bool:
        """Whether a write of that connection is not decided or not committed."""
        if self.flying is not None and self.flying.call.connection == connection:
            return True
        return any(isinstance(one, PendingWrite) and one.call.connection == connection for one in self.queue)

    # ---- what is known

    def item(self, key: ItemKey) -> Item | None:
        if key in self.fresh.items:
            return self.fresh.items[key]
        return self.state.item(key)

    def items_of_hash(self, map_hash: int, key_hash: int, limit: int = 2) -> Sequence[tuple[ItemKey, Item]]:
        found = dict(self.state.items_of_hash(map_hash, key_hash, limit + len(self.fresh.items)))  # these may be gone
        for key, item in self.fresh.items.items():
            if item is None:
                found.pop(key, None)
            else:
                found[key] = item
        return list(found.items())

    def lock(self, name: bytes) -> LockHeld | None:
        return self.fresh.locks[name] if name in self.fresh.locks else self.state.lock(name)

    def request(self, client: int, sequence: int) -> int | None:
        found = self.fresh.requests.get((client, sequence))
        return self.state.request(client, sequence) if found is None else found

    def settled(self, client: int) -> int:
        return max(self.state.settled(client), self.fresh.settled.get(client, 0))

    def committed(self, record: Record, version: int) -> None:
        """``record`` is in the log as ``version``, and not in the state yet."""
        if version <= self.state.mark:
            return  # the feed was faster
        fresh = self.fresh
        if fresh is _NOTHING:
            fresh = Fresh()
        if isinstance(record, Set):  # nearly always
            item = Item(record.type, record.data, version, record.deadline_ms, record.map_name)
            fresh.items[record.key] = item
        elif isinstance(record, Delete):
            fresh.items[record.key] = None
        elif isinstance(record, Touch):
            before = self.item(record.key)
            if before is not None:
                touched = Item(before.type, before.data, version, record.deadline_ms, before.map_name)
                fresh.items[record.key] = touched
        elif isinstance(record, Lock):
            code = record.renewed or lock_code(version, record.random)
            fresh.locks[record.name] = LockHeld(code, record.deadline_ms)
        elif isinstance(record, Unlock):
            fresh.locks[record.name] = None
        elif not isinstance(record, WriteRefused):
            return
        client, sequence, settled = record.request
        if client:
            if isinstance(record, WriteRefused):
                fresh.requests[client, sequence] = refused_number(record.code, record.version)
            else:
                fresh.requests[client, sequence] = version
            fresh.settled[client] = max(settled, fresh.settled.get(client, 0))
        fresh.version = version
        self.fresh = fresh

    def folded(self) -> None:
        """The state has gone on: what is fresh no longer is forgotten."""
        if 0 <= self.fresh.version <= self.state.mark:
            self.fresh = _NOTHING


def lock_code(version: int, random: int) -> int:
    """What a lock is had under: rises with every new owner, and cannot be guessed."""
    return (version << 16) | (random & 0xFFFF)
