"""The usual transport: one TCP connection, opened by the client's event loop."""

from __future__ import annotations

from collections.abc import Hashable

from waltz_ray.client.credentials import NO_CREDENTIALS, Presented
from waltz_ray.client.directory import Location
from waltz_ray.client.transport import Introducing, Opening
from waltz_ray.errors import ConfigError
from waltz_ray.net.connector import connect

__all__ = ["TcpTransport"]


class TcpTransport:
    """The transport that opens TCP connections to servers, with TLS if there are credentials."""

    def __init__(self, connect_timeout_ms: int = 5_000, credentials: Presented = NO_CREDENTIALS) -> None:
        self._credentials = credentials
        self._connect_timeout_s = connect_timeout_ms / 1000
        # Who shares a connection is one client to the server: nobody may have another's rights by that.
        self.shared: Hashable | None = ("tcp", connect_timeout_ms, credentials)

    async def connect(self, location: Location, stream: Opening) -> None:
        if location.endpoint is None:
            raise ConnectionError(f"server {location.server_id} is not registered")
        try:
            tls, token = self._credentials.context(), self._credentials.token()
        except ConfigError as error:  # as it is now: files may be put right
            raise ConnectionError(str(error)) from error
        if token and isinstance(stream, Introducing):
            stream.introduce(token)
        await connect(lambda: stream, *location.endpoint, self._connect_timeout_s, tls)
