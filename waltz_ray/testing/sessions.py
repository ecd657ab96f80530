"""ZooKeeper sessions of an in-memory cluster's clients: the twin has no threads, so it is asked on the IO thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from waltz_ray.client.io_thread import IoThread
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer

__all__ = ["ClientSessions", "on_thread"]

T = TypeVar("T")


def on_thread(io: IoThread, call: Callable[[], T]) -> T:
    """What ``call`` returns, called on the IO thread; it may be where we are."""

    async def calling() -> T:
        return call()

    return call() if io.is_current else io.call(calling())


class ClientSessions:
    """The sessions that clients have with ``server``, each of its own."""

    def __init__(self, server: MemoryZooKeeperServer, io: IoThread) -> None:
        self._server, self._io = server, io
        self._open: list[MemoryZooKeeper] = []

    def begin(self) -> ZooKeeper:
        """A session for one client, which closes it."""

        def begin() -> MemoryZooKeeper:
            self._open.append(self._server.client())
            return self._open[-1]

        return cast(ZooKeeper, _FromAnyThread(on_thread(self._io, begin), self._io))

    def expire(self) -> None:
        """All of them are over; their clients begin new ones."""

        def expire() -> None:
            for client in self._open:
                self._server.expire(client.session_id)

        on_thread(self._io, expire)


class _FromAnyThread:
    """``coordination.api.ZooKeeper``: each call is made on the IO thread."""

    def __init__(self, zookeeper: MemoryZooKeeper, io: IoThread) -> None:
        self._zookeeper, self._io = zookeeper, io

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._zookeeper, name)
        if not callable(found):
            return found
        return lambda *args, **options: on_thread(self._io, lambda: found(*args, **options))
