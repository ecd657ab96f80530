"""The ZooKeeper API (``api.py``, its names are also here) over kazoo: the only module that imports it.

Three kinds of threads meet here. kazoo's own do the network; they only put work into our queues. One of ours
delivers states, one reads watched nodes again and calls back, so a watch that waits for ZooKeeper cannot hold
up the news that the session is lost.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import EventType, KazooState, WatchedEvent
from kazoo.retry import KazooRetry
from kazoo.security import ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE, Permissions, make_digest_acl

from waltz_ray.coordination.api import (
    ChildrenCallback,
    ConnectionState,
    DataCallback,
    EphemeralNode,
    Watch,
    Write,
    ZooKeeper,
)
from waltz_ray.coordination.zookeeper_access import (
    ZOOKEEPER_VARIABLES,
    NodeAccess,
    ZooKeeperAccess,
    access_of_node,
    zookeeper_access,
)
from waltz_ray.errors import (
    SHORTAGES,
    CoordinationError,
    InvalidInput,
    NodeExists,
    NoNode,
    VersionConflict,
    ZooKeeperRefused,
    ZooKeeperUnreachable,
    shortage,
)
from waltz_ray.small_files import nobody_types

__all__ = [
    "ConnectionState",
    "EphemeralNode",
    "KazooZooKeeper",
    "Watch",
    "Write",
    "ZooKeeper",
]

logger = logging.getLogger(__name__)

_AGAIN_S = 0.2

_UNREACHABLE = (
    ConnectionClosedError,
    ConnectionLoss,
    KazooTimeoutError,
    OperationTimeoutError,
    SessionExpiredError,
)
_STATES = {
    KazooState.CONNECTED: ConnectionState.CONNECTED,
    KazooState.SUSPENDED: ConnectionState.SUSPENDED,
    KazooState.LOST: ConnectionState.LOST,
}


class _KazooLog(logging.LoggerAdapter):  # type: ignore[type-arg]  # Python 3.10 takes none
    """What kazoo has to say; its warnings at INFO: what an application has to know, it gets as an error of ours.

    What it sends and gets it tells at DEBUG: of that only the kinds and the paths, as passwords are in it.
    ``last_warning``: its words for why there is no connection.
    """

    last_warning = ""

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        if level >= logging.WARNING and not str(msg).startswith("Failed connecting"):
            self.last_warning = str(msg) % args if args else str(msg)
        if level < logging.INFO and self.isEnabledFor(level):
            args = tuple(map(_without_content, args))
        super().log(level if level >= logging.ERROR else min(level, logging.INFO), msg, *args, **kwargs)


def _without_content(argument: object) -> object:
    """What may be in a log of a request, or of an answer."""
    if argument is None or isinstance(argument, int | float | BaseException):
        return argument
    return f"{type(argument).__name__} {getattr(argument, 'path', '')}".rstrip()


class _Worker:
    """One daemon thread that runs what it is given, in order. A job's error is logged, the next job runs."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def stop(self) -> None:
        self._jobs.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except ZooKeeperUnreachable as error:
                logger.info("will be read again after the reconnect: %s", error)
            except Exception:
                logger.exception("a ZooKeeper callback failed")


class _Threads(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Kazoo's. Where one cannot be started those before it end."""

    def start(self) -> None:
        try:
            super().start()
        except BaseException:
            self._running = True  # else it would not stop them
            self.stop()
            raise


class KazooZooKeeper:
    """A client of a real ZooKeeper. ``hosts``: "host:port,host:port"; the server may bound the session time-out.

    InvalidInput for ``hosts`` that make no sense. ZooKeeperUnreachable, with the reason, if none of them answers within
    ``connect_timeout_s``, or if there is no handle, thread or memory for a client; nothing is left of it then. Later, a
    call gives up after the session time-out (at least 2 s); one made while there is no connection waits as long for it
    to come back. ``access``: None = as the environment says; ConfigError.
    """

    def __init__(
        self,
        hosts: str,
        session_timeout_ms: int = 6000,
        connect_timeout_s: float = 10.0,
        access: ZooKeeperAccess | None = None,
    ) -> None:
        access = zookeeper_access() if access is None else access
        self._acls = _acls(access)
        self.hosts = hosts
        self._call_timeout_s = max(2.0, session_timeout_ms / 1000)
        self._agreed_ms = session_timeout_ms
        self._closed = False
        self._lock = threading.Lock()
        self._watches: dict[Watch, Callable[[], None]] = {}
        self._listeners: dict[Watch, None] = {}
        # Quick reconnects: a failover must not wait for a back-off meant for a busy server.
        retry = KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_jitter=0.2, max_delay=1.0)
        # Whatever it meets (no handles, an answer that cannot be): else kazoo's thread ends, and no session ever comes.
        retry.retry_exceptions += (Exception,)
        log = _KazooLog(logging.getLogger("kazoo.client"))
        try:
            self._client = KazooClient(
                hosts,
                session_timeout_ms / 1000,
                connection_retry=retry,
                logger=log,
                handler=_Threads(),
                **_options(access, self._acls),
            )
            self._note_agreed()
        except ValueError as error:
            raise InvalidInput(f"{hosts!r} is no connect string of ZooKeeper, host:port,host:port: {error}") from error
        try:
            self._client.start(timeout=connect_timeout_s)
            self._state_worker = _Worker("waltz-zookeeper-states")
            try:
                self._watch_worker = _Worker("waltz-zookeeper-watches")
            except BaseException:
                self._state_worker.stop()
                raise
        except KazooTimeoutError as error:
            self._end_client()
            why = f" ({log.last_warning})" if log.last_warning else ""
            raise ZooKeeperUnreachable(
                f"no ZooKeeper server answers at {hosts} within {connect_timeout_s:g} s{why}; is it running?"
            ) from error
        except SHORTAGES as error:
            self._end_client()
            raise ZooKeeperUnreachable(
                f"no client of ZooKeeper can be started just now ({shortage(error)}); raise the process's "
                "limits (ulimit -n, ulimit -u) if it lasts"
            ) from error
        self._client.add_listener(self._on_kazoo_state)

    @property
    def session_id(self) -> int:
        client_id = self._client.client_id
        return int(client_id[0]) if client_id and client_id[0] is not None else -1

    @property
    def session_timeout_ms(self) -> int:
        """Of the session, as the server has agreed to: it may be less than what was asked for, or more."""
        return self._agreed_ms

    @property
    def state(self) -> ConnectionState:
        return _STATES[self._client.state]

    def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False, make_parents: bool = False
    ) -> str:
        call = self._client.create_async
        acl = self._acl(path)
        if make_parents and acl is not None:  # kazoo would make the parents with the node's own list
            self._call(path, self._client.ensure_path_async, path.rpartition("/")[0])
        options = {"ephemeral": ephemeral, "sequence": sequence, "makepath": make_parents and acl is None, "acl": acl}
        return str(self._call(path, call, path, data, **options))

    def get(self, path: str) -> tuple[bytes, int]:
        data, stat = self._call(path, self._client.get_async, path)
        return data or b"", stat.version

    def set(self, path: str, data: bytes, version: int) -> int:
        return int(self._call(path, self._client.set_async, path, data, version).version)

    def write_all(self, writes: Sequence[Write]) -> None:
        transaction = self._client.transaction()
        for write in writes:
            if write.data is None:
                transaction.delete(write.path, -1 if write.version is None else write.version)
            elif write.version is None:
                transaction.create(write.path, write.data, acl=self._acl(write.path))
            else:
                transaction.set_data(write.path, write.data, write.version)
        results = self._call("several nodes", transaction.commit_async)
        for write, result in zip(writes, results, strict=True):
            if isinstance(result, Exception) and not isinstance(result, RolledBackError | RuntimeInconsistency):
                raise self._translated(write.path, result) from result

    def delete(self, path: str, version: int = -1) -> None:
        self._call(path, self._client.delete_async, path, version)

    def exists(self, path: str) -> int | None:
        stat = self._call(path, self._client.exists_async, path)
        return None if stat is None else int(stat.version)

    def children(self, path: str) -> list[str]:
        return sorted(self._call(path, self._client.get_children_async, path))

    def children_version(self, path: str) -> int:
        return int(self._call(path, self._client.get_async, path)[1].cversion)

    def owner(self, path: str) -> int | None:
        stat = self._call(path, self._client.exists_async, path)
        return None if stat is None else int(stat.ephemeralOwner)

    def watch_data(self, path: str, callback: DataCallback) -> Watch:
        def read(trigger: Callable[[WatchedEvent], None]) -> tuple[object, tuple[object, ...]]:
            # exists() sets a watch whether the node is there or not; get() could not.
            if self._call(path, self._client.exists_async, path, trigger) is not None:
                try:
                    data, stat = self._call(path, self._client.get_async, path)
                    return stat.mzxid, (data or b"", stat.version)
                except NoNode:
                    pass  # deleted in between: the watch just set has fired, and this is what it will find
            return None, (None, -1)

        return self._watch(path, callback, read)

    def watch_children(self, path: str, callback: ChildrenCallback) -> Watch:
        def read(trigger: Callable[[WatchedEvent], None]) -> tuple[object, tuple[object, ...]]:
            try:
                names, stat = self._call(path, self._client.get_children_async, path, trigger, include_data=True)
                return (stat.czxid, stat.pzxid), (sorted(names),)
            except NoNode:
                if self._call(path, self._client.exists_async, path, trigger) is not None:
                    return read(trigger)  # made in between
                return None, ([],)

        return self._watch(path, callback, read)

    def on_state(self, callback: Callable[[ConnectionState], None]) -> Watch:
        with self._lock:
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
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for watch in [*self._watches, *self._listeners]:
                watch.cancelled = True
        self._client.stop()
        self._client.close()
        self._watch_worker.stop()
        self._state_worker.stop()

    def _note_agreed(self) -> None:
        """kazoo tells nobody what the server has agreed to."""
        connection = self._client._connection
        invoke = connection._invoke

        def noted(timeout: float, request: Any, xid: int | None = None) -> Any:
            answer = invoke(timeout, request, xid)
            if isinstance(request, Connect) and answer[0].time_out > 0:  # 0: the session has expired
                self._agreed_ms = int(answer[0].time_out)
            return answer

        connection._invoke = noted

    def _end_client(self) -> None:
        """Also one that was not wholly started."""
        with contextlib.suppress(AttributeError):  # kazoo's own, after all else, where it has no socket to wake it by
            self._client.stop()
        self._client.close()

    def _watch(
        self,
        path: str,
        callback: Callable[..., None],
        read: Callable[[Callable[[WatchedEvent], None]], tuple[object, tuple[object, ...]]],
    ) -> Watch:
        watch = Watch(path, callback, self._forget)

        def look() -> None:
            if not watch.cancelled and not self._closed:
                state, arguments = read(trigger)
                watch.deliver(state, *arguments)

        refresh = self._or_again(self._watch_worker, look)

        def trigger(event: WatchedEvent) -> None:
            # NONE means that the connection is gone; every watch is read again when it is back.
            if event.type != EventType.NONE:
                self._watch_worker.put(refresh)

        with self._lock:
            self._watches[watch] = refresh
        self._watch_worker.put(refresh)
        return watch

    def _forget(self, watch: Watch) -> None:
        with self._lock:
            self._watches.pop(watch, None)
            self._listeners.pop(watch, None)

    def _on_kazoo_state(self, state: str) -> None:
        """Runs on kazoo's connection thread: must not wait for anything."""
        now = _STATES[state]
        with self._lock:
            if self._closed:
                return
            listeners, refreshes = list(self._listeners), list(self._watches.values())
        for listener in listeners:
            tell = partial(listener.deliver, object(), now)
            connected = now is ConnectionState.CONNECTED
            self._state_worker.put(self._or_again(self._state_worker, tell) if connected else tell)
        if now is ConnectionState.CONNECTED:
            for refresh in refreshes:
                self._watch_worker.put(refresh)

    def _or_again(self, worker: _Worker, job: Callable[[], None]) -> Callable[[], None]:
        """The job; a little later once more where there was no answer though the connection is there: this process was
        stopped for longer than a call waits, or an answer made no sense. No reconnect follows then."""

        def run() -> None:
            try:
                job()
            except ZooKeeperUnreachable as error:
                if self._closed or self.state is not ConnectionState.CONNECTED:
                    raise
                logger.info("tried again: %s", error)
                time.sleep(_AGAIN_S)
                worker.put(run)

        return run

    def _acl(self, path: str) -> list[ACL] | None:
        """Of a node that is made there; None: the usual one."""
        access = access_of_node(path)
        return None if access is NodeAccess.READ else self._acls.get(access)

    def _call(self, path: str, function: Callable[..., Any], *arguments: object, **options: object) -> Any:
        answer = function(*arguments, **options)
        try:
            return answer.get(block=True, timeout=self._call_timeout_s)
        except (KazooTimeoutError, KazooException) as error:
            raise self._translated(path, error) from error
        except Exception as error:  # of kazoo, which could not read the answer: bytes that were changed on their way
            why = f"the answer from {self.hosts} makes no sense: {error!r}"
            raise ZooKeeperUnreachable(f"ZooKeeper node {path}: {why}; a write may have happened") from error

    def _translated(self, path: str, error: Exception) -> CoordinationError:
        if isinstance(error, _UNREACHABLE):
            what = "the client is closed" if self._closed else f"{type(error).__name__} from {self.hosts}"
            return ZooKeeperUnreachable(f"ZooKeeper node {path}: {what}; a write may have happened")
        if isinstance(error, NoNodeError):
            return NoNode(f"ZooKeeper node {path} does not exist, or its parent does not")
        if isinstance(error, NoAuthError):
            return ZooKeeperRefused(
                f"ZooKeeper node {path}: only who knows the cluster's name and password there may do that; "
                f"{ZOOKEEPER_VARIABLES[0]} names the file with both"
            )
        if isinstance(error, NodeExistsError):
            return NodeExists(f"ZooKeeper node {path} exists already")
        if isinstance(error, BadVersionError):
            return VersionConflict(f"ZooKeeper node {path} was changed by somebody else; read it again")
        return CoordinationError(f"ZooKeeper node {path}: {type(error).__name__} {error}".rstrip())


def _acls(access: ZooKeeperAccess) -> dict[NodeAccess, list[ACL]]:
    """Of nodes that are made; none where nobody has a name."""
    if not access.user:
        return {}
    owner = [make_digest_acl(access.user, access.password, all=True)]
    return {
        NodeAccess.READ: [*owner, *READ_ACL_UNSAFE],
        NodeAccess.CLOSED: owner,
        NodeAccess.OPEN: [*owner, ACL(Permissions.READ | Permissions.WRITE, OPEN_ACL_UNSAFE[0].id)],
    }


def _options(access: ZooKeeperAccess, acls: dict[NodeAccess, list[ACL]]) -> dict[str, Any]:
    """What kazoo is told of it."""
    options: dict[str, Any] = {}
    if access.user:
        options["auth_data"] = [("digest", f"{access.user}:{access.password}")]
        options["default_acl"] = acls[NodeAccess.READ]
    if access.authority:
        options |= {"use_ssl": True, "check_hostname": True, "ca": access.authority}
    if access.certificate:
        options |= {"certfile": access.certificate, "keyfile": access.key, "keyfile_password": nobody_types}
    return options
