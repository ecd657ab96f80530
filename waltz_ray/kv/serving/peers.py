"""The other actors of a space, as far as this one asks them: whether they have a second copy."""

from __future__ import annotations

import asyncio
import contextlib

from waltz_ray.client.credentials import NO_CREDENTIALS, Presented
from waltz_ray.errors import BadPayload
from waltz_ray.kv.messages import Ack, SecondaryHas, ShuttingDown
from waltz_ray.kv.serving.peer_link import PeerLink
from waltz_ray.net.outgoing import Outgoing

__all__ = ["Peers"]

_LEAVING_S = 0.2
_RESTED_S = 5.0


class Peers:
    """Links to other members, opened when they are first asked. In one event loop."""

    def __init__(
        self,
        own_server: str,
        outgoing: Outgoing,
        timeout_s: float,
        shown: Presented = NO_CREDENTIALS,
        space: str = "",
    ) -> None:
        """``shown``: what proves to the others that we are of the cluster. ``space``: as ``PeerLink`` has it."""
        self._shown, self._space = shown, space
        self._own_server = own_server
        self._outgoing = outgoing
        self._timeout_s = timeout_s
        self._links: dict[str, PeerLink] = {}
        self._closing: set[asyncio.Future[None]] = set()

    async def has(self, server: str, partition: int, transaction_id: int) -> bool:
        """Whether it says within the time that it has the transaction; False if it says no or is not to be reached."""
        link = self._links.get(server)
        if link is None:
            link = self._links[server] = PeerLink(
                server, self._own_server, self._outgoing, self._shown, space=self._space
            )
        try:
            return isinstance(await link.ask(SecondaryHas(partition, transaction_id), self._timeout_s), Ack)
        except TimeoutError:
            return False

    def rest(self, server: str) -> None:
        """It has said that it shuts down: it is not dialled for a while. Whether it is gone says ``forget_all_but``."""
        link = self._links.get(server)
        if link is not None:
            link.rest(_RESTED_S)

    def forget_all_but(self, servers: set[str]) -> None:
        """Who is not registered any more is not dialled."""
        for server in self._links.keys() - servers:
            task = asyncio.ensure_future(self._links.pop(server).close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def leave(self) -> None:
        """Tell those whom we are connected with that we shut down, and wait for their acks a moment."""

        async def tell(link: PeerLink) -> None:
            with contextlib.suppress(TimeoutError, ConnectionError, BadPayload):  # ZooKeeper tells it, too
                await link.ask(ShuttingDown(), _LEAVING_S)

        await asyncio.gather(*(tell(link) for link in self._links.values() if link.up))

    async def close(self) -> None:
        """Say goodbye to all."""
        links, self._links = self._links, {}
        await asyncio.gather(*(link.close() for link in links.values()), *self._closing)
