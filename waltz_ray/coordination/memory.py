"""The in-memory twin of a ZooKeeper server: same rules, no threads, no clock, so a test can be replayed.

``MemoryZooKeeperServer`` is the server and the network; ``client()`` connects a ``MemoryZooKeeper``. Callbacks wait
in one queue and run, in order and never nested, in ``pump()``; with ``auto_pump`` (the default) every call that
changes something pumps before it returns. Faults are the server's methods: ``disconnect``, ``reconnect``, ``expire``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from waltz_ray.coordination.api import ChildrenCallback, ConnectionState, DataCallback, EphemeralNode, Watch, Write
from waltz_ray.errors import CoordinationError, NodeExists, NoNode, VersionConflict, ZooKeeperUnreachable

__all__ = ["MemoryZooKeeper", "MemoryZooKeeperServer"]


@dataclass(slots=True)
class _Node:
    data: bytes
    owner: int
    created: int  # the server's change number at creation, at the last change of the data, of the children
    changed: int
    children_changed: int
    version: int = 0
    children_version: int = 0
    children_made: int = 0


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class MemoryZooKeeperServer:
    """The tree, the sessions and the network between."""

    def __init__(self, auto_pump: bool = True) -> None:
        self.auto_pump = auto_pump
        self._nodes: dict[str, _Node] = {"/": _Node(b"", 0, 0, 0, 0)}
        self._clients: list[MemoryZooKeeper] = []
        self._live_sessions: set[int] = set()
        self._last_session = 0
        self._changes = 0
        self._jobs: deque[Callable[[], None]] = deque()
        self._pumping = False

    def client(self) -> MemoryZooKeeper:
        """A new client with a session of its own."""
        return MemoryZooKeeper(self)

    def pump(self) -> None:
        """Run the callbacks that wait, and those they cause."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._jobs:
                job = self._jobs.popleft()
                try:
                    job()
                except ZooKeeperUnreachable:
                    continue  # as with the real one: delivered again after the reconnect (Watch.deliver)
        finally:
            self._pumping = False

    def disconnect(self, client: MemoryZooKeeper) -> None:
        """Cut the client off; its session lives on until ``expire``."""
        client._move_to(ConnectionState.SUSPENDED)
        self._changed()

    def reconnect(self, client: MemoryZooKeeper) -> None:
        """Let it in again: into its session, or, if that has expired, LOST and then a new one."""
        if client.session_id not in self._live_sessions:
            client._move_to(ConnectionState.LOST)
            client._new_session()
        client._move_to(ConnectionState.CONNECTED)
        self._changed()

    def expire(self, session_id: int) -> None:
        """The session times out. A client that is connected learns of it at once, another when it reconnects."""
        self._end_session(session_id)
        for client in list(self._clients):
            if client.session_id == session_id and client.state is ConnectionState.CONNECTED:
                client._move_to(ConnectionState.SUSPENDED)
                self.reconnect(client)
        self._changed()

    def _start_session(self) -> int:
        self._last_session += 1
        self._live_sessions.add(self._last_session)
        return self._last_session

    def _end_session(self, session_id: int) -> None:
        self._live_sessions.discard(session_id)
        for path in [path for path, node in list(self._nodes.items()) if node.owner == session_id]:
            self._remove(path)

    def _node(self, path: str) -> _Node:
        node = self._nodes.get(path)
        if node is None:
            raise NoNode(f"ZooKeeper node {path} does not exist, or its parent does not")
        return node

    def _parent_node(self, path: str) -> _Node:
        parent = self._nodes.get(_parent(path))
        if parent is None:
            raise NoNode(f"ZooKeeper node {path} does not exist, or its parent does not")
        return parent

    def _add(self, path: str, data: bytes, owner: int) -> None:
        parent = self._parent_node(path)
        if path in self._nodes:
            raise NodeExists(f"ZooKeeper node {path} exists already")
        if parent.owner:
            raise CoordinationError(f"ZooKeeper node {path}: NoChildrenForEphemeralsError")
        self._changes += 1
        self._nodes[path] = _Node(data, owner, self._changes, self._changes, self._changes)
        parent.children_made += 1
        self._touch_children(parent)
        self._notify(path)

    def _set(self, path: str, data: bytes, version: int) -> int:
        node = self._node(path)
        self._check(path, node, version)
        self._changes += 1
        node.data, node.version, node.changed = data, node.version + 1, self._changes
        self._notify(path)
        return node.version

    def _delete(self, path: str, version: int) -> None:
        self._check(path, self._node(path), version)
        self._check_childless(path)
        self._remove(path)

    def _remove(self, path: str) -> None:
        del self._nodes[path]
        self._changes += 1
        self._touch_children(self._nodes[_parent(path)])
        self._notify(path)

    def _touch_children(self, parent: _Node) -> None:
        parent.children_version += 1
        parent.children_changed = self._changes

    def _check(self, path: str, node: _Node, version: int) -> None:
        if version not in (-1, node.version):
            raise VersionConflict(f"ZooKeeper node {path} was changed by somebody else; read it again")

    def _check_childless(self, path: str, deleted: AbstractSet[str] = frozenset()) -> None:
        if any(f"{path}/{child}" not in deleted for child in self._children(path)):
            raise CoordinationError(f"ZooKeeper node {path}: NotEmptyError")

    def _children(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        known = list(self._nodes)  # another thread may make one
        names = (other[len(prefix) :] for other in known if other.startswith(prefix) and other != "/")
        return sorted(name for name in names if "/" not in name)

    def _notify(self, path: str) -> None:
        for client in self._clients:
            client._touched(path)

    def _changed(self) -> None:
        if self.auto_pump:
            self.pump()


class MemoryZooKeeper:
    """One client of the twin; the contract is that of ``api.ZooKeeper``."""

    def __init__(self, server: MemoryZooKeeperServer) -> None:
        self._server = server
        self._state = ConnectionState.CONNECTED
        self._session_id = server._start_session()
        self._refreshes: dict[Watch, Callable[[], None]] = {}
        self._listeners: dict[Watch, None] = {}
        self._closed = False
        server._clients.append(self)

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def state(self) -> ConnectionState:
        return self._state

    def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False, make_parents: bool = False
    ) -> str:
        server = self._reached(path)
        parent = _parent(path)
        if make_parents and parent not in server._nodes:
            self.create(parent, b"", make_parents=True)
        if sequence:
            path += f"{server._parent_node(path).children_made:010d}"
        server._add(path, data, self._session_id if ephemeral else 0)
        server._changed()
        return path

    def get(self, path: str) -> tuple[bytes, int]:
        node = self._reached(path)._node(path)
        return node.data, node.version

    def set(self, path: str, data: bytes, version: int) -> int:
        result = self._reached(path)._set(path, data, version)
        self._server._changed()
        return result

    def write_all(self, writes: Sequence[Write]) -> None:
        server = self._reached("several nodes")
        deleted: set[str] = set()
        for write in writes:  # look at all before touching any
            if write.data is None:
                server._check(write.path, server._node(write.path), -1 if write.version is None else write.version)
                server._check_childless(write.path, deleted)
                deleted.add(write.path)
            elif write.version is not None:
                server._check(write.path, server._node(write.path), write.version)
            elif write.path in server._nodes:
                raise NodeExists(f"ZooKeeper node {write.path} exists already")
            else:
                made = {other.path for other in writes if other.version is None}
                if _parent(write.path) not in made:
                    server._parent_node(write.path)
        for write in writes:
            if write.data is None:
                server._remove(write.path)
            elif write.version is None:
                server._add(write.path, write.data, 0)
            else:
                server._set(write.path, write.data, write.version)
        server._changed()

    def delete(self, path: str, version: int = -1) -> None:
        self._reached(path)._delete(path, version)
        self._server._changed()

    def exists(self, path: str) -> int | None:
        node = self._reached(path)._nodes.get(path)
        return None if node is None else node.version

    def children(self, path: str) -> list[str]:
        server = self._reached(path)
        server._node(path)
        return server._children(path)

    def children_version(self, path: str) -> int:
        return self._reached(path)._node(path).children_version

    def owner(self, path: str) -> int | None:
        node = self._reached(path)._nodes.get(path)
        return None if node is None else node.owner

    def watch_data(self, path: str, callback: DataCallback) -> Watch:
        watch = Watch(path, callback, self._forget)

        def refresh() -> None:
            node = self._server._nodes.get(path)
            if node is None:
                watch.deliver(None, None, -1)
            else:
                watch.deliver(node.changed, node.data, node.version)

        return self._start(watch, refresh)

    def watch_children(self, path: str, callback: ChildrenCallback) -> Watch:
        watch = Watch(path, callback, self._forget)

        def refresh() -> None:
            node = self._server._nodes.get(path)
            state = None if node is None else (node.created, node.children_changed)
            watch.deliver(state, self._server._children(path) if node else [])

        return self._start(watch, refresh)

    def on_state(self, callback: Callable[[ConnectionState], None]) -> Watch:
        listener = Watch("", callback, self._forget)
        self._listeners[listener] = None
        return listener

    def register_ephemeral(
        self,
        path: str,
        data: Callable[[], bytes],
        *,
        sequence: bool = False,
        may_create: Callable[[bool], bool] | None = None,
    ) -> EphemeralNode:
        return EphemeralNode(self, path, data, sequence, may_create)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for watch in [*self._refreshes, *self._listeners]:
                watch.cancel()
            self._server._clients.remove(self)
            if self._state is ConnectionState.CONNECTED:
                self._server._end_session(self._session_id)
            self._server._changed()

    def _reached(self, path: str) -> MemoryZooKeeperServer:
        if self._closed or self._state is not ConnectionState.CONNECTED:
            what = "the client is closed" if self._closed else "the client is cut off"
            raise ZooKeeperUnreachable(f"ZooKeeper node {path}: {what}; a write may have happened")
        return self._server

    def _start(self, watch: Watch, refresh: Callable[[], None]) -> Watch:
        def guarded() -> None:
            if self._state is ConnectionState.CONNECTED and not watch.cancelled:
                refresh()

        self._refreshes[watch] = guarded
        self._server._jobs.append(guarded)
        self._server._changed()
        return watch

    def _forget(self, watch: Watch) -> None:
        self._refreshes.pop(watch, None)
        self._listeners.pop(watch, None)

    def _touched(self, path: str) -> None:
        for watch, refresh in list(self._refreshes.items()):  # another thread may cancel one
            if watch.path in (path, _parent(path)):
                self._server._jobs.append(refresh)

    def _new_session(self) -> None:
        self._session_id = self._server._start_session()

    def _move_to(self, state: ConnectionState) -> None:
        if self._closed or state is self._state:
            return
        self._state = state
        for listener in list(self._listeners):
            self._server._jobs.append(lambda listener=listener: listener.deliver(object(), state))  # type: ignore[misc]
        if state is ConnectionState.CONNECTED:
            self._server._jobs.extend(self._refreshes.values())
