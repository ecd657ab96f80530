"""The master: whichever of the topic actors leads. The others send a client on, and one that is gone is passed over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from waltz_ray.errors import PartitionNotReady, WireError
from waltz_ray.net.backoff import Backoff
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.topics.client.links import TopicLinks
from waltz_ray.topics.link_quality import LinkQuality
from waltz_ray.topics.rpc import RpcFault
from waltz_ray.topics.wire import TopicRequest, TopicResponse

__all__ = ["Masters"]

_NOBODY = "no topic actor is registered: start them with waltz up --topics"


class Masters:
    """``addresses``: where the actors listen now."""

    def __init__(self, links: TopicLinks, addresses: Callable[[], Sequence[Endpoint]]) -> None:
        self.why = _NOBODY
        """Why the last attempt has failed."""
        self._links = links
        self._addresses = addresses
        self._quality = LinkQuality()
        self._led: Endpoint | None = None  # who has answered last

    async def ask(self, make: Callable[[], TopicRequest], within_s: float) -> TopicResponse:
        """The answer of the one that leads; ``make`` makes the request for each attempt anew. Tried until one answers;
        PartitionNotReady: none did within ``within_s``, which each of them has."""
        loop = asyncio.get_running_loop()
        until_s, pauses = loop.time() + within_s, Backoff(first_s=0.02, longest_s=0.5)
        while True:
            masters = self._in_order()
            if not masters:
                self.why = _NOBODY
            for master in masters:
                answer = await self._ask(master, make(), within_s)
                if answer is not None:
                    self._led = master
                    return answer
            if loop.time() > until_s:
                raise PartitionNotReady(f"no master of topics answers: {self.why}")
            await asyncio.sleep(pauses.next_s())

    def _in_order(self) -> list[Endpoint]:
        """Who led last comes first; whose link is bad last, if nobody else leads: it may be well by now."""
        addresses = list(self._addresses())
        self._quality.know(map(str, addresses))
        shielded = set(self._quality.shielded(_now_ms()))
        return sorted(addresses, key=lambda each: (str(each) in shielded, each != self._led))

    async def _ask(self, master: Endpoint, request: TopicRequest, within_s: float) -> TopicResponse | None:
        try:
            answer = await self._links.ask(master, request, within_s)
        except (OSError, WireError) as error:
            self._quality.failed(str(master), _now_ms())
            self.why = f"{master}: {error}"
            return None
        self._quality.answered(str(master))
        if isinstance(answer, RpcFault):  # it does not lead, or could not do it
            self.why = f"{master}: {answer.text}"
            return None
        return answer


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
