"""An HTTP port with an event loop and a thread of its own, so that whoever floods it disturbs nobody else.

What a stranger can cost is bounded: connections in all and from one address, the time until a whole request has come,
its length, and the time until its answer is taken. Each connection has one request.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from waltz_ray.actors.access_guard import comer_at
from waltz_ray.actors.http_access import Answer, HttpAccess
from waltz_ray.errors import WireError
from waltz_ray.net.limit import ConnectionLimit
from waltz_ray.net.listener import LoopListener, listen
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.net.stream import Patience, Stream
from waltz_ray.net.tls import ServerTls
from waltz_ray.protocol.access import Comer
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.wire.http import HttpFramer, HttpRequest, HttpResponse, encode_response

__all__ = ["HttpLimits", "HttpPort", "page_at"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class HttpLimits:
    """Of one port. Times in milliseconds."""

    connections: int = 64
    connections_per_peer: int = 48
    request_ms: int = 5_000
    """Until a whole request has come."""
    untaken_ms: int = 10_000
    """While the peer takes too little of its answer."""


def page_at(path: str, kind: str, page: Callable[[], tuple[bytes, str]]) -> Answer:
    """Serves one page. ``page``: its content, b"" = there is none yet, and why; ``kind``: its Content-Type."""

    def answer(request: HttpRequest) -> HttpResponse:
        if request.path != path:
            return HttpResponse(404, f"there is {path}\n".encode())
        content, trouble = page()
        return HttpResponse(200, content, kind) if content else HttpResponse(503, f"{trouble}\n".encode())

    return answer


class _HttpConnection(Stream[HttpRequest]):
    def __init__(self, port: HttpPort) -> None:
        limits = port.limits
        super().__init__(HttpFramer(), Outgoing(), Patience(limits.request_ms, limits.untaken_ms), port.limit)
        self._port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._port.connections.add(self)  # not before: whose TLS handshake fails is never told that it is lost
        super().connection_made(transport)

    def on_closed(self, error: Exception) -> None:
        self._port.connections.discard(self)

    def on_frame(self, frame: HttpRequest) -> None:
        if frame.method not in ("GET", "HEAD"):
            response = HttpResponse(405, b"only GET and HEAD are served here\n")
        else:
            response = self._port.answer(frame, comer_at(self._transport), self.peer)
        self.send_bytes(encode_response(response, frame.method != "HEAD"))
        self.finish("answered")

    def on_protocol_error(self, error: WireError) -> None:
        self.send_bytes(encode_response(HttpResponse(400, f"{error}\n".encode())))

    def on_impatience(self, reason: str) -> None:
        self.say(log, logging.INFO, "closing the HTTP connection with %s: %s", self.peer, reason)


class HttpPort:
    """Listens from the beginning. OSError if the port cannot be had. ``answer`` is called in the port's thread."""

    def __init__(
        self,
        host: str,
        port: int,
        answer: Answer,
        limits: HttpLimits | None = None,
        tls: ServerTls | None = None,
        access: HttpAccess | None = None,
    ) -> None:
        """``tls``: it is taken beside plain connections. ``access``: who may be told what; None: everybody all."""
        self._answer, self._access = answer, access
        self.limits = limits or HttpLimits()
        self.limit = ConnectionLimit("http", self.limits.connections, self.limits.connections_per_peer)
        self._loop = asyncio.new_event_loop()
        self.connections: set[_HttpConnection] = set()
        """Those that there are; its thread's."""
        self._thread = threading.Thread(target=self._loop.run_forever, name="http", daemon=True)
        self._thread.start()
        try:
            starting = listen("http", lambda: _HttpConnection(self), host, port, tls, plain=True)
            self._listener: LoopListener = asyncio.run_coroutine_threadsafe(starting, self._loop).result()
        except BaseException:
            self._end()
            raise
        self.endpoint = Endpoint(host, self._listener.port)
        """Where it listens."""

    @property
    def open(self) -> int:
        """Connections that there are."""
        return self.limit.open

    def close(self) -> None:
        """Listen no more, and end every connection."""
        asyncio.run_coroutine_threadsafe(self._leave(), self._loop).result()
        self._end()

    async def _leave(self) -> None:
        self._listener.close()
        for connection in list(self.connections):
            connection.abort("the port is closed")
        await asyncio.sleep(0)  # those whose first byte has not come end, too
        while self.connections:
            await asyncio.sleep(0)

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def answer(self, request: HttpRequest, comer: Comer, peer: str) -> HttpResponse:
        """What ``comer`` is told; in its thread."""
        if self._access is None:
            return self._answer(request)
        return self._access.answer(request, comer, peer, self._answer)
