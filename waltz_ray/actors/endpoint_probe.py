"""Notices within milliseconds that a process is gone: one connection held to the endpoint it announced.

When a process ends, the kernel closes its sockets: the held connection breaks, and a new one is *refused*. That is
proof that nobody listens; silence, a broken connection or an unreachable host is not, and reports nothing.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

from waltz_ray.net.backoff import Backoff
from waltz_ray.net.connector import connect_blocking
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.manager import EndpointAnswered, EndpointRefused
from waltz_ray.wire.framing import Hello, encode_hello

__all__ = ["EndpointProbe"]

_CONNECT_TIMEOUT_S = 2.0


class EndpointProbe:
    """Holds the connection in a thread until ``stop()``; ``report`` is called from that thread and must not block."""

    def __init__(
        self, server_id: int, endpoint: Endpoint, report: Callable[[EndpointRefused | EndpointAnswered], None]
    ) -> None:
        self._server_id, self._endpoint, self._report = server_id, endpoint, report
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name=f"probe-{server_id}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Idempotent; waits for the thread."""
        self._stopping.set()
        with self._lock:
            if self._connection is not None:
                with contextlib.suppress(OSError):  # the other side may have closed it already
                    self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _run(self) -> None:
        refused = False
        # Short at first: a dying process may still accept for a moment, between closing one socket and the next.
        pauses = Backoff()
        while not self._stopping.is_set():
            try:
                connection = connect_blocking(*self._endpoint, _CONNECT_TIMEOUT_S)
            except ConnectionRefusedError:
                if not refused:
                    refused = True
                    self._report(EndpointRefused(self._server_id, self._endpoint))
            except OSError:
                pass  # no proof of anything
            else:
                if refused:
                    refused = False
                    self._report(EndpointAnswered(self._server_id, self._endpoint))
                if self._hold(connection):
                    pauses.reset()
                    continue  # it lived: see at once whether somebody still listens
            self._stopping.wait(pauses.next_s())

    def _hold(self, connection: socket.socket) -> bool:
        """Until the connection ends; whether the server had said anything on it."""
        spoke = False
        with connection:
            with self._lock:
                self._connection = connection
            try:
                if not self._stopping.is_set():
                    connection.settimeout(None)
                    connection.sendall(encode_hello(Hello((5,), "cluster-manager probe")))
                    while connection.recv(4096):
                        spoke = True
            except OSError:
                pass  # broken: the next connection attempt tells why
            with self._lock:
                self._connection = None
        return spoke
