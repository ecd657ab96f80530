"""Notices within milliseconds that a process is gone: one connection held to the endpoint it announced.

When a process ends, the kernel closes its sockets: the held connection breaks, and a new one is *refused*. That is
proof that nobody listens; silence, a broken connection or an unreachable host is not, and reports nothing. Who does not
answer over such a connection is found out in ``heartbeats``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from waltz_ray.net.backoff import Backoff
from waltz_ray.net.connector import Opening, connect
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.net.stream import GreetedStream
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.messages.client import PartitionStateRequest
from waltz_ray.wire.codec import BATCH_VERSION, encode_client
from waltz_ray.wire.framing import MAGIC_CLIENT, encode_frame

__all__ = ["GreetedProbe", "SilentProbe", "probe_endpoint"]

_CONNECT_TIMEOUT_S = 2.0
_LIVED_S = 0.2
_NO_PARTITION = -1  # whose state anybody may ask for, whatever rights clients need
_MAX_FRAME_BYTES = 1024  # a probe asks for little


class GreetedProbe(GreetedStream):
    """A client's connection to a server of the log, on which only signs of life are asked for. ``heard``: there was
    one."""

    def __init__(self, heard: Callable[[], object]) -> None:
        super().__init__(MAGIC_CLIENT, (BATCH_VERSION,), _MAX_FRAME_BYTES, "cluster-manager probe", Outgoing())
        self.over = asyncio.Event()
        self._heard = heard
        self._asked = True  # a question is open; at first, its HELLO is

    def on_ready(self) -> None:
        super().on_ready()
        self._told()

    def ask(self) -> None:
        """Have the server say something, unless it owes us an answer."""
        if not self._asked:
            self._asked = True
            question = encode_client(self.version, PartitionStateRequest(0, _NO_PARTITION))
            self.send_bytes(encode_frame(MAGIC_CLIENT, self.version, *question))

    def on_frame(self, frame: memoryview) -> None:
        """Whatever it is, it comes from somebody who lives."""
        self._told()

    def _told(self) -> None:
        self._asked = False
        self._heard()

    def on_closed(self, error: Exception) -> None:
        # Who has no place for one more connection closes it in the loop that serves the others: that loop runs.
        if self.version < 0 and isinstance(error, ConnectionResetError):
            self._heard()
        self.over.set()


class SilentProbe(Opening):
    """A connection on which nothing is said."""

    def __init__(self) -> None:
        self.over = asyncio.Event()
        self._transport: asyncio.BaseTransport | None = None
        self._aborted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if self._aborted:
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.over.set()

    def abort(self, why: str | Exception) -> None:
        self._aborted = True
        if self._transport is not None:
            self._transport.close()


async def probe_endpoint(
    make: Callable[[], GreetedProbe | SilentProbe],
    endpoint: Endpoint,
    refused: Callable[[], object],
    answered: Callable[[], object],
) -> None:
    """Hold a connection until cancelled, which ``make`` makes; tell what is new, from the loop: that nobody listens
    there, that somebody does so again."""
    loop = asyncio.get_running_loop()
    was_refused = False
    # Short at first: a dying process may still accept for a moment, between closing one socket and the next.
    pauses = Backoff()
    while True:
        try:
            held = await connect(make, *endpoint, _CONNECT_TIMEOUT_S)
        except ConnectionRefusedError:
            if not was_refused:
                was_refused = True
                refused()
        except OSError:
            pass  # no proof of anything
        else:
            since_s = loop.time()
            if was_refused:
                was_refused = False
                answered()
            try:
                await held.over.wait()
            finally:
                held.abort("the probe is over")
            if loop.time() - since_s >= _LIVED_S:
                pauses.reset()
                continue  # it lived: see at once whether somebody still listens
        await asyncio.sleep(pauses.next_s())
