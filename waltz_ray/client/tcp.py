"""The usual transport: one TCP connection, opened by the client's event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from typing import cast

from waltz_ray.client.directory import Location
from waltz_ray.client.transport import Channel, Receiver
from waltz_ray.wire.primitives import BytesLike

__all__ = ["TcpTransport"]

_BUSY_BYTES = 1024 * 1024
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVE_COUNT = 5, 2, 3  # a vanished machine is noticed in 11 s
_SEND_TIMEOUT_MS = 10_000


class TcpTransport:
    """Opens ``TCP_NODELAY`` connections with keep-alive probes."""

    def __init__(self, connect_timeout_ms: int = 5_000) -> None:
        self._connect_timeout_s = connect_timeout_ms / 1000

    async def connect(self, location: Location, receiver: Receiver) -> Channel:
        if location.endpoint is None:
            raise ConnectionError(f"server {location.server_id} is not registered")
        host, port = location.endpoint
        loop = asyncio.get_running_loop()
        channel = _TcpChannel(receiver)
        try:
            # Not wait_for: cancelled at the wrong moment it loses a connection that has just been made.
            async with asyncio.timeout(self._connect_timeout_s):
                await loop.create_connection(lambda: channel, host, port)
        except BaseException:
            channel.abandon()
            raise
        return channel


class _TcpChannel(asyncio.Protocol):
    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._transport: asyncio.Transport | None = None
        self._busy = False
        self._abandoned = False

    @property
    def busy(self) -> bool:
        return self._busy

    def write(self, parts: Iterable[BytesLike]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(parts)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()  # nothing that still waits to be sent matters to a side that gives up

    def abandon(self) -> None:
        """Nobody waits for this connection any more, whether it is made or about to be."""
        self._abandoned = True
        self.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._abandoned:
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=_BUSY_BYTES)
        sock = self._transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", _KEEPALIVE_IDLE_S),
            ("TCP_KEEPINTVL", _KEEPALIVE_INTERVAL_S),
            ("TCP_KEEPCNT", _KEEPALIVE_COUNT),
            ("TCP_USER_TIMEOUT", _SEND_TIMEOUT_MS),
        ):
            if hasattr(socket, option):  # not every system has all of them
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def data_received(self, data: bytes) -> None:
        self._receiver.received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._receiver.lost(exc)

    def pause_writing(self) -> None:
        self._busy = True

    def resume_writing(self) -> None:
        self._busy = False
        self._receiver.writable()
