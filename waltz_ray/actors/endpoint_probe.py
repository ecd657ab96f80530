"""Notices within milliseconds that a process is gone: one connection held to the endpoint it announced.

When a process ends, the kernel closes its sockets: the held connection breaks, and a new one is *refused*. That is
proof that nobody listens; silence, a broken connection or an unreachable host is not, and reports nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from waltz_ray.net.backoff import Backoff
from waltz_ray.net.connector import connect
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.net.stream import GreetedStream
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.manager import EndpointAnswered, EndpointRefused
from waltz_ray.wire.codec import BATCH_VERSION
from waltz_ray.wire.framing import MAGIC_CLIENT

__all__ = ["probe_endpoint"]

_CONNECT_TIMEOUT_S = 2.0
_MAX_FRAME_BYTES = 1024  # a probe asks for nothing


class _Held(GreetedStream):
    """A client's connection on which nothing is asked for."""

    def __init__(self) -> None:
        super().__init__(MAGIC_CLIENT, (BATCH_VERSION,), _MAX_FRAME_BYTES, "cluster-manager probe", Outgoing())
        self.over = asyncio.Event()

    def on_frame(self, frame: memoryview) -> None:
        """Whatever it is, it comes from somebody who lives."""

    def on_closed(self, error: Exception) -> None:
        self.over.set()


async def probe_endpoint(
    server_id: int, endpoint: Endpoint, report: Callable[[EndpointRefused | EndpointAnswered], None]
) -> None:
    """Hold a connection until cancelled; ``report`` what is new, from the loop."""
    refused = False
    # Short at first: a dying process may still accept for a moment, between closing one socket and the next.
    pauses = Backoff()
    while True:
        try:
            held = await connect(_Held, *endpoint, _CONNECT_TIMEOUT_S)
        except ConnectionRefusedError:
            if not refused:
                refused = True
                report(EndpointRefused(server_id, endpoint))
        except OSError:
            pass  # no proof of anything
        else:
            if refused:
                refused = False
                report(EndpointAnswered(server_id, endpoint))
            try:
                await held.over.wait()
            finally:
                held.abort("the probe is over")
            if held.version >= 0:
                pauses.reset()
                continue  # it lived: see at once whether somebody still listens
        await asyncio.sleep(pauses.next_s())
