"""The usual transport: one TCP connection, opened by the client's event loop."""

from __future__ import annotations

from collections.abc import Hashable

from waltz_ray.client.directory import Location
from waltz_ray.client.transport import Opening
from waltz_ray.net.connector import connect

__all__ = ["TcpTransport"]


class TcpTransport:
    """The transport that opens TCP connections to servers."""

    def __init__(self, connect_timeout_ms: int = 5_000) -> None:
        self._connect_timeout_s = connect_timeout_ms / 1000
        self.shared: Hashable | None = ("tcp", connect_timeout_ms)

    async def connect(self, location: Location, stream: Opening) -> None:
        if location.endpoint is None:
            raise ConnectionError(f"server {location.server_id} is not registered")
        await connect(lambda: stream, *location.endpoint, self._connect_timeout_s)
