"""Groups over the real ports: consumers that go on whatever happens, and all that masters grant, written down."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from tests.topics.foreign_client import Fields, ForeignClient, ForeignFault, ForeignReply, parsed, payloads_of, text
from tests.topics.groups.grant_log import GrantLog
from tests.topics.members import Member
from tests.topics.servers import TopicCluster
from waltz_ray.topics.groups.effects import ConsumerAnswer, MasterEffect, PartitionFreed, PartitionGranted
from waltz_ray.topics.groups.events import ConsumerBeats, ConsumerRegisters, MasterEvent, TookOver
from waltz_ray.topics.serving.topic_server import TopicServer

__all__ = ["Crowd", "SceneMember", "Ways", "partition_of"]

GONE = (201, 301, 411, 412)
"""A slot that says so has nothing for this consumer any more."""


def partition_of(subscription: str) -> tuple[str, str]:
    """(topic, slot): without the address."""
    _, place, partition = subscription.split("#")
    return partition.split(":")[0], place.split(":")[0]


class Ways(Protocol):
    """How a consumer reaches the others. ConnectionError where nobody listens."""

    async def connection(self, port: int) -> ForeignClient: ...

    async def master(self) -> ForeignClient | None:
        """None: nobody leads just now."""
        ...


class SceneMember(Member):
    """Goes on when the master or a slot is away, as clients of the protocol do: it registers again, with what it has,
    and leaves to the master what a slot does not give it."""

    def __init__(self, ways: Ways, name: str, group: str = "g", register: Fields | None = None) -> None:
        super().__init__(ways.connection, name, group)
        self.ways = ways
        self.register_fields: Fields = register or {4: text("orders")}
        self.codes: list[int] = []
        """Of registrations at slots."""
        self.registered: ForeignClient | None = None
        self.orders: list[int] = []
        """IDs of the events it has done."""
        self.spoke = time.monotonic()
        """When it began to say the last thing that the master has answered."""

    @property
    def partitions(self) -> set[tuple[str, str]]:
        return {partition_of(each) for each in self.has}

    async def register(self) -> int:
        head: dict[int, object] = {1: text(self.name), 2: text(self.group), 3: text("127.0.0.1")}
        if self.has:
            head |= {5: [text(each) for each in self.has], 12: 0}
        reply = await self.master.ask(4, {**head, **self.register_fields})
        return reply.code

    async def beat(self) -> int:
        """Also the way to the master, if that is another one now. 0: there is none."""
        master = await self.ways.master()
        if master is None:
            return 0
        self.master = master
        begun = time.monotonic()
        try:
            if self.registered is not master:
                code = await self.register()
                self.registered = master if code == 200 else None
                self.spoke = begun
                return code
            code = await super().beat()
            self.spoke = begun
            if self.event:
                self.orders.append(ForeignReply(parsed(self.event)).number(1))
            if code == 411:
                self.registered = None
            return code
        except (ConnectionError, ForeignFault):
            self.registered = None
            return 0

    async def connect(self, subscription: str) -> None:
        topic, place = partition_of(subscription)[0], subscription.split("#")[1]
        try:
            broker = await self.client(int(place.split(":")[2]))
            reply = await broker.register(self.group, topic, self.name)
        except ConnectionError:
            return
        self.codes.append(reply.code)
        if reply.code == 200:
            self.has[subscription] = broker

    async def leave(self, subscription: str) -> None:
        broker = self.has.pop(subscription, None)
        if broker is None:
            return
        try:
            reply = await broker.register(self.group, partition_of(subscription)[0], self.name, out=True)
            assert reply.code in (200, *GONE, 403, 503), reply.fields
        except ConnectionError:
            return  # its actor is gone

    async def consume(self) -> None:
        """A pull and a confirm of each partition; what was confirmed is in ``got``."""
        for subscription, broker in list(self.has.items()):
            topic = partition_of(subscription)[0]
            try:
                reply = await broker.pull(self.group, topic, self.name, by_hand=True)
                if reply.code in GONE:
                    self.has.pop(subscription, None)
                elif reply.code == 200:
                    confirmed = await broker.confirm(self.group, topic, self.name)
                    if confirmed.code == 200:
                        self.got += payloads_of(reply)
            except ConnectionError:
                self.has.pop(subscription, None)

    async def close(self) -> None:
        """Leave everything, and the group."""
        for subscription in list(self.has):
            await self.leave(subscription)
        if self.registered is not None:
            assert (await self.registered.ask(6, {1: text(self.name), 2: text(self.group)})).code == 200


class Crowd:
    """Members of a group; who has what is looked at whenever one of them has done something."""

    def __init__(self, cluster: TopicCluster, group: str = "g") -> None:
        self.cluster, self.group = cluster, group
        self.members: dict[str, SceneMember] = {}
        self.log = GrantLog()
        self.moves: list[tuple[str, str, str]] = []
        """(partition, from, to) of grants."""
        self._last: dict[str, str] = {}
        self._in_doubt: dict[str, set[tuple[str, str]]] = {}
        """By member: what it had when it had been silent for too long, and has still."""
        self._connections: dict[int, ForeignClient] = {}
        for server in cluster.servers.values():
            self.watch(server)

    def watch(self, server: TopicServer) -> None:
        """Write down what this one grants, as long as it leads."""
        step = server.master.machine.step

        def watched(event: MasterEvent, now_ms: int) -> list[MasterEffect]:
            effects = step(event, now_ms)
            if isinstance(event, TookOver):
                self.log.leader_changes()
            ours = isinstance(event, ConsumerBeats | ConsumerRegisters) and event.group == self.group
            asking = event.client_id if ours else None  # type: ignore[union-attr]
            mine = [each for each in effects if getattr(each, "group", self.group) == self.group]
            self.log.takes([each for each in mine if asking or not isinstance(each, ConsumerAnswer)], asking)
            self._note(mine)
            return effects

        server.master.machine.step = watched  # type: ignore[method-assign]

    def _note(self, effects: Iterable[MasterEffect]) -> None:
        for each in effects:
            match each:
                case PartitionGranted(_, partition, to):
                    before = self._last.get(str(partition), "")
                    if before != to:
                        self.moves.append((str(partition), before, to))
                    self._last[str(partition)] = to
                case PartitionFreed():
                    pass

    async def connection(self, port: int) -> ForeignClient:
        """All share it."""
        found = self._connections.get(port)
        if found is None or found._listening.done():
            found = self._connections[port] = await self.cluster.client(port)
        return found

    async def master(self) -> ForeignClient | None:
        leader = self.cluster.leader()
        endpoint = None if leader is None else self.cluster.servers[leader].endpoint
        try:
            return None if endpoint is None else await self.connection(endpoint.port)
        except ConnectionError:
            return None

    def add(self, *names: str, register: Fields | None = None) -> None:
        for name in names:
            self.members[name] = SceneMember(self, name, self.group, register)

    async def remove(self, name: str) -> None:
        await self.members.pop(name).close()

    def vanish(self, name: str) -> None:
        """It says nothing any more, as if it had been killed: what it consumed, nobody else may yet."""
        del self.members[name]

    async def beat(self, names: Collection[str] | None = None) -> None:
        """Everybody at once; no partition may have two."""

        async def one(member: SceneMember) -> None:
            had, spoke = member.partitions, member.spoke
            await member.beat()
            if member.spoke - spoke >= self.cluster.config.client_ms / 1000:
                self._in_doubt[member.name] = had
            self.check()

        await asyncio.gather(*(one(self.members[name]) for name in names or list(self.members)))

    def check(self) -> None:
        """Who was silent for longer than the master waits may have lost what it has, and will hear of it: also after it
        has registered again, until then."""
        since = time.monotonic() - self.cluster.config.client_ms / 1000
        known = [each for each in self.members.values() if each.spoke > since]
        for name in self._in_doubt.keys() & self.members.keys():
            self._in_doubt[name] &= self.members[name].partitions
        has = [(one, each.name) for each in known for one in each.partitions - self._in_doubt.get(each.name, set())]
        assert len({partition for partition, _ in has}) == len(has), f"two have one: {sorted(has)}"

    def counts(self) -> list[int]:
        return sorted((len(each.has) for each in self.members.values()), reverse=True)

    async def until_shared(self, counts: Sequence[int], limit_s: float = 20.0) -> None:
        """Beat until it is so."""
        begun = time.monotonic()
        while self.counts() != sorted(counts, reverse=True):
            assert time.monotonic() - begun < limit_s, f"{self.counts()}, not {counts}"
            await self.beat()
            await asyncio.sleep(0.005)  # polling interval, not synchronisation

    async def random_life(self, seed: int, steps: int, most: int) -> None:
        """Members come, leave, vanish, and beat, in any order."""
        chance, number = random.Random(seed), 0
        for _ in range(steps):
            what = chance.random()
            if what < 0.4 and len(self.members) < most:
                number += 1
                self.add(f"m{number}")
            elif what < 0.55 and self.members:
                await self.remove(chance.choice(sorted(self.members)))
            elif what < 0.6 and self.members:
                self.vanish(chance.choice(sorted(self.members)))
            names = sorted(self.members)
            await self.beat(chance.sample(names, chance.randint(0, len(names))) or names[:1])
