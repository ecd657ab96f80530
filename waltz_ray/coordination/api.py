"""The small blocking znode API that everything here is written against, and what both its kinds share.

Two kinds fulfil it: ``KazooZooKeeper`` (a real server) and ``MemoryZooKeeper`` (the twin, for tests and the
simulation). One contract test suite holds them equal.

Watches report states, not events: a watch calls back once with the present state and then with later states,
perhaps skipping some that were short-lived, never going back; an absent node may be reported more than once.
A watch lives until cancelled, through lost connections and expired sessions. Callbacks of one client run one at
a time on a thread of its own, so they may use the blocking API; one that raises ZooKeeperUnreachable is called
again after the reconnect.
State callbacks run on another thread and must not block.

Any write may raise ZooKeeperUnreachable after it has happened: the outcome is unknown, and the caller looks.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from waltz_ray.errors import NoNode, ZooKeeperUnreachable

__all__ = [
    "ChildrenCallback",
    "ConnectionState",
    "DataCallback",
    "EphemeralNode",
    "Write",
    "Watch",
    "ZooKeeper",
    "release",
]

DataCallback = Callable[[bytes | None, int], None]
"""(data, version) of a node; (None, -1) while it does not exist."""

ChildrenCallback = Callable[[list[str]], None]
"""Sorted names of a node's children; [] while it does not exist."""


class ConnectionState(enum.Enum):
    """CONNECTED; SUSPENDED (no connection, the session may still live); LOST (the session is gone, its nodes too)."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


class Write(NamedTuple):
    """One part of ``write_all``: create the node (``version`` None) or set it where it has ``version``.

    Without ``data``: delete it where it has ``version`` (-1 = any). The parts are done in their order.
    """

    path: str
    data: bytes | None
    version: int | None = None


_UNSEEN = object()


class Watch:
    """A running watch or state callback; ``cancel()`` ends it (a call that is running finishes)."""

    def __init__(self, path: str, callback: Callable[..., None], forget: Callable[[Watch], None]) -> None:
        self.path = path
        self.cancelled = False
        self._callback = callback
        self._forget = forget
        self._last: object = _UNSEEN

    def cancel(self) -> None:
        """Call back no more. Idempotent."""
        self.cancelled = True
        self._forget(self)

    def deliver(self, state: object, *arguments: object) -> None:
        """Call back with ``arguments`` unless ``state``, which identifies them, was the last one delivered.

        ``state`` None (absent) is always delivered: of a node that was made and deleted since the last absence,
        perhaps by the callback itself, nothing else would tell.
        """
        if self.cancelled or (state is not None and state == self._last):
            return
        self._last = state
        try:
            self._callback(*arguments)
        except ZooKeeperUnreachable:
            self._last = _UNSEEN  # every watch is read again after the reconnect: this state is delivered then
            raise


class ZooKeeper(Protocol):
    """One client, one session at a time. All calls block; all raise ZooKeeperUnreachable where they cannot act."""

    @property
    def session_id(self) -> int:
        """The present session; another one after an expiry."""
        ...

    @property
    def state(self) -> ConnectionState: ...

    def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False, make_parents: bool = False
    ) -> str:
        """The path made: with ``sequence``, ``path`` and 10 digits. NodeExists; NoNode if the parent is missing."""
        ...

    def get(self, path: str) -> tuple[bytes, int]:
        """The node's data and version. NoNode."""
        ...

    def set(self, path: str, data: bytes, version: int) -> int:
        """Compare-and-set (-1 = any version): the new version. VersionConflict, NoNode."""
        ...

    def write_all(self, writes: Sequence[Write]) -> None:
        """All or nothing. VersionConflict, NoNode, NodeExists for the first that cannot be done; CoordinationError for
        one that has children and is to be deleted."""
        ...

    def delete(self, path: str, version: int = -1) -> None:
        """NoNode, VersionConflict; CoordinationError if it has children."""
        ...

    def exists(self, path: str) -> int | None:
        """The node's version, None if there is none."""
        ...

    def children(self, path: str) -> list[str]:
        """The names of the node's children, sorted. NoNode."""
        ...

    def children_version(self, path: str) -> int:
        """Rises with every child made or deleted. NoNode."""
        ...

    def owner(self, path: str) -> int | None:
        """Session ID of an ephemeral node, 0 of any other, None if there is no node."""
        ...

    def watch_data(self, path: str, callback: DataCallback) -> Watch: ...

    def watch_children(self, path: str, callback: ChildrenCallback) -> Watch: ...

    def on_state(self, callback: Callable[[ConnectionState], None]) -> Watch:
        """Called with every later state. After LOST the client opens a new session by itself: CONNECTED."""
        ...

    def register_ephemeral(
        self,
        path: str,
        data: Callable[[], bytes],
        *,
        sequence: bool = False,
        may_create: Callable[[bool], bool] | None = None,
    ) -> EphemeralNode:
        """Keep an ephemeral node there until cancelled (see EphemeralNode)."""
        ...

    def close(self) -> None:
        """Ends the session: ephemeral nodes go, watches and state callbacks stop. Idempotent."""
        ...


def release(zookeeper: ZooKeeper, path: str) -> bool:
    """Delete an ephemeral node if it is our session's: after an expiry it may be another's by now.

    False if ZooKeeper cannot be reached: our node goes with our session.
    """
    try:
        if zookeeper.owner(path) == zookeeper.session_id:
            zookeeper.delete(path)
    except NoNode:
        return True
    except ZooKeeperUnreachable:
        return False
    return True


class EphemeralNode:
    """An ephemeral node that comes back when its session expires or somebody deletes it, until ``cancel()``.

    ``data`` is asked at each creation. ``may_create(first)`` is asked before each one (``first`` for the very
    first) and may clear the way; False means somebody else has taken our place: the node is given up for good.

    What a crash leaves: the node, until the session times out. What a lost reply leaves: perhaps a node of our
    session that we do not know; the next creation finds it by owner and data and adopts it.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        path: str,
        data: Callable[[], bytes],
        sequence: bool,
        may_create: Callable[[bool], bool] | None,
    ) -> None:
        self._zookeeper = zookeeper
        self._prefix, self._data, self._sequence = path, data, sequence
        self._may_create = may_create or (lambda first: True)
        self._lock = threading.RLock()
        self._watch: Watch | None = None
        self._over = False
        self.path = ""
        self._create(first=True)

    @property
    def active(self) -> bool:
        """False once cancelled, or given up because somebody took our place."""
        return not self._over

    def cancel(self) -> None:
        """Delete the node and let it be. If ZooKeeper cannot be reached the session's end deletes it."""
        with self._lock:
            if self._over:
                return
            self._end()
            release(self._zookeeper, self.path)

    def _end(self) -> None:
        self._over = True
        if self._watch:
            self._watch.cancel()

    def _create(self, first: bool) -> None:
        with self._lock:
            if self._over:
                return
            if not self._may_create(first):
                self._end()
                return
            data = self._data()
            path = self._mine(data)
            if path is None:
                path = self._zookeeper.create(self._prefix, data, ephemeral=True, sequence=self._sequence)
            if self._watch:
                self._watch.cancel()
            self.path = path
            self._watch = self._zookeeper.watch_data(path, self._changed)

    def _mine(self, data: bytes) -> str | None:
        parent, _, name = self._prefix.rpartition("/")
        for child in self._zookeeper.children(parent or "/"):
            path = f"{parent}/{child}"
            right_name = child[:-10] == name if self._sequence else child == name
            if right_name and self._zookeeper.owner(path) == self._zookeeper.session_id:
                try:
                    if self._zookeeper.get(path)[0] == data:
                        return path
                except NoNode:
                    continue
        return None

    def _changed(self, data: bytes | None, version: int) -> None:
        if data is None:
            self._create(first=False)
