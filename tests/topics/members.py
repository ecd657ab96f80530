"""A consumer as the protocol has it, on a foreign client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.topics.foreign_client import ForeignClient, ForeignReply, message, payloads_of, text

__all__ = ["Member", "brokers_in", "joined"]


def brokers_in(texts: list[str]) -> dict[int, int]:
    """slot -> port."""
    return {int(slot): int(port) for slot, _, port in (each.split(":") for each in texts)}


async def joined(master: ForeignClient, consumer: str, group: str = "g", topic: str = "orders") -> ForeignReply:
    return await master.ask(4, {1: text(consumer), 2: text(group), 3: text("127.0.0.1"), 4: text(topic)})


class Member:
    """A consumer as it is written down: it does what the master says, one event at a time."""

    def __init__(self, client: Callable[[int], Awaitable[ForeignClient]], name: str, group: str = "g") -> None:
        """``client(port)`` opens a connection, which is not closed here."""
        self.client, self.name, self.group = client, name, group
        self.has: dict[str, ForeignClient] = {}
        self.got: list[bytes] = []
        self.event: bytes = b""

    async def join(self, master: ForeignClient) -> None:
        self.master = master
        assert (await joined(master, self.name, self.group)).code == 200

    async def beat(self) -> int:
        has = [text(each) for each in self.has]
        fields: dict[int, int | bytes | list[bytes]] = {1: text(self.name), 2: text(self.group), 3: has, 4: 1}
        if self.event:
            fields[5] = self.event
        reply = await self.master.ask(5, fields)
        if reply.code != 200:
            return reply.code
        self.event = b""
        for event in reply.parts(4):
            wanted = event.texts(4)
            if event.number(2) in (1, 10):
                for each in wanted:
                    await self.connect(each)
            elif event.number(2) in (2, 20):
                for each in wanted:
                    await self.leave(each)
            self.event = message({1: event.number(1), 2: event.number(2), 3: 2, 4: [text(each) for each in wanted]})
        return 200

    async def connect(self, subscription: str) -> None:
        place = subscription.split("#")[1]
        topic = subscription.split("#")[2].split(":")[0]
        broker = await self.client(int(place.split(":")[2]))
        registered = await broker.register(self.group, topic, self.name)
        if registered.code == 200:
            self.has[subscription] = broker

    async def leave(self, subscription: str) -> None:
        broker = self.has.pop(subscription, None)
        if broker is not None:
            assert (await broker.register(self.group, "orders", self.name, out=True)).code == 200

    async def consume(self) -> None:
        for broker in self.has.values():
            reply = await broker.pull(self.group, "orders", self.name)
            self.got += payloads_of(reply) if reply.code == 200 else []
