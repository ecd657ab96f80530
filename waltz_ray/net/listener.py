"""Accepting connections, in an event loop or in threads.

What a failure leaves: no connection can be accepted, or no thread be started, for lack of handles or memory: the
listener waits a little and goes on; that connection at the most is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
import threading
from collections.abc import Callable

from waltz_ray import compat
from waltz_ray.net.connector import keep_alive
from waltz_ray.net.limit import ConnectionLimit
from waltz_ray.net.tls import TLS_HANDSHAKE
from waltz_ray.runtime.seldom import Few

__all__ = ["BlockingListener", "LoopListener", "Tls", "listen", "shut"]

log = logging.getLogger(__name__)

_PAUSE_S = 0.1
_HANDSHAKE_S = 5.0
_BACKLOG = 128
_A_TURN = 32  # connections accepted before others have their turn
_BEGINNING = 256  # connections whose first byte or TLS handshake is awaited
_NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)


Tls = ssl.SSLContext | Callable[[], ssl.SSLContext]
"""A context, or what is asked for one for each connection."""


class _Shortage:
    """Of handles or memory, where connections are accepted: one line in the log when it begins, one when it is over."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lasts = False

    def met(self, error: OSError) -> bool:
        """Whether ``error`` is such a shortage: then it is told, and ``_PAUSE_S`` later is soon enough to try again."""
        if error.errno not in _NO_RESOURCES:
            return False
        if not self._lasts:
            log.error("%s: cannot accept connections until there is room again: %s", self._name, error)
        self._lasts = True
        return True

    def over(self) -> None:
        """A connection has been accepted."""
        if self._lasts:
            log.warning("%s: accepts connections again", self._name)
        self._lasts = False


class LoopListener:
    """Accepts in the loop that runs now: ``make`` makes what serves each connection. Until ``close``.

    The accept loop is our own: that of uvloop closes the listening socket for good when the kernel lacks memory, and
    that of asyncio logs a hundred tracebacks a second when there are no handles. Here new connections wait in the
    kernel until there is room again, which is looked for every ``_PAUSE_S``, and there is one line when that begins
    and one when it is over.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], asyncio.Protocol],
        listening: socket.socket,
        tls: Tls | None,
        plain: bool = False,
    ) -> None:
        """``listening``: does not block, and is closed with this. ``plain``: with ``tls``, a client may do without:
        its first byte tells which it is, so it has to speak first."""
        self._plain = plain
        self._name = name
        self._make = make
        self._socket = listening
        self._tls = tls
        self.port = int(listening.getsockname()[1])
        """Where it listens."""
        self._loop = asyncio.get_running_loop()
        self._shortage = _Shortage(name)
        self._lines = Few()
        self._pause: asyncio.TimerHandle | None = None
        self._beginning: dict[asyncio.Task[object], socket.socket] = {}  # the oldest first
        self._loop.add_reader(listening.fileno(), self._accept)

    def close(self) -> None:
        """Accept nothing more; connections that have begun stay. Idempotent."""
        if self._socket.fileno() < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        for task in list(self._beginning):
            task.cancel()

    def _accept(self) -> None:
        for _ in range(_A_TURN):
            try:
                connection, _ = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue  # it had gone before we came to it
            except OSError as error:
                if not self._shortage.met(error):
                    raise  # to the loop's handler: nobody knows why
                self._loop.remove_reader(self._socket.fileno())
                self._pause = self._loop.call_later(_PAUSE_S, self._again)
                return
            self._shortage.over()
            connection.setblocking(False)
            if len(self._beginning) >= _BEGINNING:
                next(iter(self._beginning)).cancel()  # who is one of ours needs some milliseconds
            task = self._loop.create_task(self._begin(connection))
            self._beginning[task] = connection
            task.add_done_callback(self._begun)

    def _begun(self, task: asyncio.Task[object]) -> None:
        connection = self._beginning.pop(task)
        if task.cancelled():  # perhaps before its first step, so that nothing of it has run
            connection.close()

    def _again(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket.fileno(), self._accept)

    async def _begin(self, connection: socket.socket) -> None:
        try:
            tls = self._tls() if callable(self._tls) else self._tls
            if tls is not None and self._plain and not await self._is_tls(connection):
                tls = None
            timeout_s = None if tls is None else _HANDSHAKE_S
            await self._loop.connect_accepted_socket(self._make, connection, ssl=tls, ssl_handshake_timeout=timeout_s)
        except (OSError, MemoryError) as error:
            connection.close()
            self._lines.say(log, logging.INFO, "%s: a connection was lost before it began: %s", self._name, error)

    async def _is_tls(self, connection: socket.socket) -> bool:
        """Whether the first byte is that of a TLS client; it stays where it is. TimeoutError if none comes."""
        came: asyncio.Future[None] = self._loop.create_future()
        handle = connection.fileno()

        def arrived() -> None:
            if not came.done():
                came.set_result(None)

        self._loop.add_reader(handle, arrived)
        try:
            async with compat.timeout(_HANDSHAKE_S):
                await came
        except TimeoutError as error:
            raise TimeoutError(f"its first byte has not come for {_HANDSHAKE_S:g} s") from error
        finally:
            self._loop.remove_reader(handle)
        return connection.recv(1, socket.MSG_PEEK) == bytes([TLS_HANDSHAKE])


async def listen(
    name: str,
    make: Callable[[], asyncio.Protocol],
    host: str,
    port: int,
    tls: Tls | None = None,
    plain: bool = False,
) -> LoopListener:
    """Accept in the running loop. OSError if the port cannot be had. ``tls`` and ``plain``: as of ``LoopListener``.

    How many connections there may be is ``net.stream``'s.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listening = socket.create_server((host, port), family=found[0][0], backlog=_BACKLOG)
    listening.setblocking(False)
    return LoopListener(name, make, listening, tls, plain)


class BlockingListener:
    """Accepts in a thread of its own, and lets ``serve(connection, peer)`` have each connection in another.

    The connection is closed when ``serve`` returns. ``on_fatal`` is called with a message when nothing can be
    accepted any more and nobody knows why. ``receive_buffer_bytes`` is the kernel's, of each connection; 0: its choice.
    """

    def __init__(
        self,
        name: str,
        host: str,
        port: int,
        serve: Callable[[socket.socket, str], None],
        limit: ConnectionLimit,
        on_fatal: Callable[[str], None],
        receive_buffer_bytes: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.accepted = 0
        """Connections that were ever served."""
        self._name = name
        self._serve = serve
        self._limit = limit
        self._on_fatal = on_fatal
        self._tls = tls
        self._socket = socket.create_server((host, port), backlog=_BACKLOG)
        if receive_buffer_bytes:
            # Inherited by accepted sockets, and only before they are accepted does it set the window.
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.port = int(self._socket.getsockname()[1])
        """Where it listens."""
        self._lock = threading.Lock()
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._stopped = threading.Event()
        self._acceptor = threading.Thread(target=self._accept, name=f"{name}-accept", daemon=True)

    def start(self) -> None:
        """Begin to accept connections, in a thread."""
        self._acceptor.start()

    def stop(self) -> None:
        """Stop listening, end every connection, wait for all threads."""
        with self._lock:
            self._stopped.set()
            connections = dict(self._connections)
        with contextlib.suppress(OSError):  # not connected: some systems refuse what wakes accept() on Linux
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in connections.values():
            with contextlib.suppress(OSError):  # the peer may have gone already
                shut(connection)
        for thread in [self._acceptor, *connections]:
            if thread.ident is not None:
                thread.join()

    def _accept(self) -> None:
        shortage = _Shortage(self._name)
        while True:
            try:
                connection, peer = self._socket.accept()
            except ConnectionAbortedError:
                continue  # it had gone before we came to it
            except OSError as error:
                if self._stopped.is_set():
                    return
                if not shortage.met(error):
                    self._on_fatal(f"{self._name}: cannot accept connections any more: {error}")
                    return
                self._stopped.wait(_PAUSE_S)
                continue
            shortage.over()
            self._begin(connection, str(peer[0]), int(peer[1]))

    def _begin(self, connection: socket.socket, address: str, port: int) -> None:
        """Serve it in a thread of its own, or close it."""
        thread = threading.Thread(target=self._run, args=(address, port), name=f"{self._name}-{port}", daemon=True)
        with self._lock:
            if self._stopped.is_set() or not self._limit.admits(address):
                connection.close()
                return
            self._connections[thread] = connection
            self.accepted += 1
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:
                log.error("%s: no thread for the connection of %s, it is closed: %s", self._name, address, error)
                self._end(thread, address)

    def _end(self, thread: threading.Thread, address: str) -> None:
        """Under the lock."""
        self._connections.pop(thread).close()
        self._limit.left(address)

    def _run(self, address: str, port: int) -> None:
        thread, peer = threading.current_thread(), f"{address}:{port}"
        try:
            with self._lock:
                connection = self._connections[thread]
            keep_alive(connection)
            if self._tls is not None:
                connection.settimeout(_HANDSHAKE_S)
                connection = self.encrypted(connection, self._tls)
                connection.do_handshake()
                connection.settimeout(None)
            self._serve(connection, peer)
        except (OSError, MemoryError) as error:
            self._limit.lines.say(log, logging.INFO, "%s: connection of %s lost: %s", self._name, peer, error)
        finally:
            with self._lock:
                self._end(thread, address)

    def encrypted(self, plain: socket.socket, tls: ssl.SSLContext) -> ssl.SSLSocket:
        """The connection that the thread which calls this serves, in place of ``plain``: the handshake is its own to
        do. OSError if the listener has stopped."""
        with self._lock:  # from here on it is this one that stop() has to end
            if self._stopped.is_set():
                raise ConnectionAbortedError("the listener has stopped")
            connection = tls.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
            self._connections[threading.current_thread()] = connection
        return connection


def shut(connection: socket.socket) -> None:
    """End it in both directions, in any thread. OSError if it has ended.

    What is below TLS is ended, not TLS: ``SSLSocket.shutdown`` turns the socket into a plain one first, and what its
    own thread sends just then would leave as it is.
    """
    socket.socket.shutdown(connection, socket.SHUT_RDWR)
