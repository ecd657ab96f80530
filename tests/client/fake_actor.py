"""A partition server's actor handle without Ray: the channel methods, carried to a ``FakeServer`` over loopback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any

from tests.client.fake_server import FakeServer

POLL_S = 0.2


class Reference:
    """Stands for an object reference."""

    def __init__(self, future: Future[Any]) -> None:
        self._future = future

    def future(self) -> Future[Any]:
        return self._future


class Method:
    def __init__(self, pool: ThreadPoolExecutor, function: Callable[..., Any]) -> None:
        self._pool = pool
        self._function = function

    def remote(self, *args: Any) -> Reference:
        return Reference(self._pool.submit(self._function, *args))


class _Channel:
    def __init__(self, server: FakeServer) -> None:
        self.socket = socket.create_connection(server.endpoint)
        self.socket.settimeout(POLL_S)
        self.waiting: dict[int, bytes] = {}
        self.next = 0
        self.lock = threading.Lock()


class FakeActorHandle:
    """Calls run on threads of a pool, so they start in any order, as on a real actor."""

    def __init__(self, server: FakeServer) -> None:
        self._server = server
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="fake-actor")
        self._channels: dict[str, _Channel] = {}
        self._names = count()
        self.sends = 0
        for name in ("channel_open", "channel_send", "channel_receive", "channel_close"):
            setattr(self, name, Method(self._pool, getattr(self, "_" + name)))

    def shut_down(self) -> None:
        self._pool.shutdown()
        for channel in self._channels.values():
            channel.socket.close()

    def _channel_open(self) -> str:
        name = f"channel-{next(self._names)}"
        self._channels[name] = _Channel(self._server)
        return name

    def _channel_send(self, name: str, number: int, data: bytes) -> None:
        channel = self._channels[name]
        with channel.lock:
            self.sends += 1
            assert number not in channel.waiting
            assert number >= channel.next
            channel.waiting[number] = data
            while channel.next in channel.waiting:
                channel.socket.sendall(channel.waiting.pop(channel.next))
                channel.next += 1

    def _channel_receive(self, name: str, number: int) -> bytes | None:
        channel = self._channels[name]
        try:
            data = channel.socket.recv(1024 * 1024)
        except TimeoutError:
            return b""
        except OSError:
            return None  # closed under us by channel_close, or reset
        return data or None

    def _channel_close(self, name: str) -> None:
        self._channels[name].socket.shutdown(socket.SHUT_RDWR)
