"""Connections with all actors of a space, what these have said, and the table of who has what: for one event loop.

Clients of one loop that name the same space share them (``connections_of``): sixty-four that each wait for one write
are one piece of input for an actor, one step of its keeper and one wake-up of this process, not sixty-four. The last
one to leave closes them. Locks go over connections of each client's own (``KvEngine``), for an actor drops what waits
for a lock when its connection ends.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from waltz_ray.client.credentials import Presented
from waltz_ray.errors import AccessRefused, ClientClosed, SpaceGone
from waltz_ray.kv.client.link import Answer, KvLink, KvPeer, Missed
from waltz_ray.kv.client.members import KvDirectory, Members
from waltz_ray.kv.client.table import RouteTable
from waltz_ray.kv.messages import FailCode, FailInfo, Get, Hashmask, Hashmasks, KvHello, Opcode, TryElsewhere, Unknown
from waltz_ray.net.shared import SharedByLoop

__all__ = ["KvConnections", "answers_by", "connections_of", "settle"]

T = TypeVar("T")

_PROBES = 16  # buckets that are looked for at a time
_PROBE_S = 1.0
_ANEW_S = 0.25  # between two times at which all actors are asked what they have
_MOST_SHARE = 64  # clients: an actor reads no more from a connection that has 4,096 commands outstanding


class KvConnections:
    """See the module. Made on the loop that runs, and ``start``ed there."""

    def __init__(self, directory: KvDirectory, max_frame_bytes: int, shown: Presented) -> None:
        """``shown``: what says to actors who we are. Owns ``directory``."""
        self.partitions = directory.partitions
        """Of the space."""
        self.gone: SpaceGone | None = None
        """It has been deleted."""
        self.table = RouteTable()
        self._key = _key(directory, max_frame_bytes, shown)
        self._shown = shown
        self._max_frame_bytes = max_frame_bytes
        self._may_ask = True  # for items, so as to find out who has them
        self._asked_anew_s = -_ANEW_S
        self._directory = directory
        self._loop = asyncio.get_running_loop()
        self._peers: dict[str, KvPeer] = {}
        self._private: set[KvPeer] = set()
        self._members: tuple[str, ...] = ()  # that the directory names
        self._listed: tuple[str, ...] = ()  # that an actor has named last
        self._waiters: dict[asyncio.Future[None], None] = {}  # for any news, who came first first
        self._tasks: set[asyncio.Task[object]] = set()
        self._starting: asyncio.Task[Callable[[], None]] | None = None
        self._closed = False

    # ---- life

    async def start(self) -> None:
        """Find the actors, and begin to connect with all of them. Every client that takes part waits for it."""
        if self._starting is None:
            self._starting = self._loop.create_task(asyncio.to_thread(self._directory.watch, self._found))
        await asyncio.shield(self._starting)

    async def leave(self) -> None:
        """To be called once by each client. The last one ends every connection; those of a closed loop have ended."""
        if self._loop.is_closed():
            await asyncio.to_thread(self._directory.close)
            return
        if not _shared.leave(self._key, self):
            return
        self._closed = True
        try:
            await self._end()
        finally:  # also if the loop ends meanwhile
            await asyncio.to_thread(self._directory.close)

    async def _end(self) -> None:
        if self._starting is not None:
            await asyncio.wait([self._starting])
            if not self._starting.cancelled() and self._starting.exception() is None:
                await asyncio.to_thread(self._starting.result())
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        self.changed()
        peers, self._peers = self._peers, {}
        await asyncio.gather(*[peer.stop() for peer in peers.values()], *tasks, return_exceptions=True)

    def owns(self, directory: KvDirectory) -> bool:
        """Whether it is the one that these were made with."""
        return directory is self._directory

    def _background(self, work: Awaitable[object]) -> None:
        task: asyncio.Task[object] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- LinkHome

    def announced(self, server: str, message: Hashmasks | Hashmask) -> None:
        if isinstance(message, Hashmasks):
            others = self.table.announced(server, message)
        else:
            others = self.table.changed(server, message)
        for other in sorted(others):
            for peer in (self._peers.get(other), *self._private):
                if peer is not None and peer.server == other and (link := peer.ready) is not None:
                    link.doubt()
        self.changed()

    def listed(self, servers: tuple[str, ...]) -> None:
        # In the dialect 2012 they are told one by one.
        self._listed = servers if len(servers) != 1 else tuple(dict.fromkeys((*self._listed, *servers)))
        self._connect_all()

    def changed(self) -> None:
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            settle(waiter, None)

    # ---- who there is

    def _found(self, members: Members) -> None:
        """By the directory, from any thread."""

        def take() -> None:
            if isinstance(members, SpaceGone):
                self.gone = members
                self.changed()
            else:
                self._members = tuple(members)
                self._connect_all()

        if not self._closed and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(take)

    def _connect_all(self) -> None:
        if self._closed:
            return
        wanted = self.known
        for server in sorted(wanted):
            self.peer(server)
        for server in [server for server, peer in self._peers.items() if server not in wanted and peer.link is None]:
            self._background(self._peers.pop(server).stop())
        self.changed()

    @property
    def known(self) -> set[str]:
        """The actors there are, as far as somebody says so."""
        return {*self._members, *self._listed}

    def peer(self, server: str) -> KvPeer:
        """The actor there, from now on. ClientClosed."""
        if self._closed:
            raise ClientClosed("the key/value client is closed; connect again")
        if server not in self._peers:
            self._peers[server] = self._new_peer(server)
        return self._peers[server]

    def private_peer(self, server: str) -> KvPeer:
        """A connection for one client alone, until it gives it to ``part_with``."""
        peer = self._new_peer(server)
        self._private.add(peer)
        return peer

    async def part_with(self, peer: KvPeer) -> None:
        """End a private one."""
        self._private.discard(peer)
        await peer.stop()

    def _new_peer(self, server: str) -> KvPeer:
        return KvPeer(self, server, self._max_frame_bytes, self._shown, self._directory.serves)

    def links(self) -> list[KvLink]:
        """Every connection there is."""
        return [link for peer in self._peers.values() if (link := peer.ready) is not None]

    def link(self, server: str) -> KvLink | None:
        """The connection with one actor. None: there is none just now."""
        return self.peer(server).ready

    def nobody(self) -> str:
        """Why a bucket's actor is not known."""
        if self.links():
            return "no actor is known to serve it"
        whys = sorted({peer.why for peer in self._peers.values()})
        return "no actor is connected" + (f" ({'; '.join(whys)})" if whys else ": the space has none just now")

    def refused(self) -> AccessRefused | None:
        """Why nobody lets us in; None: somebody does, or has not said."""
        why = next((peer.why for peer in self._peers.values() if peer.refused), "")
        return AccessRefused(why) if why and not self.links() else None

    # ---- news

    async def news(self, until_s: float) -> None:
        """Wait until anything changes, or until then by the loop's clock."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters[waiter] = None
        timer = self._loop.call_at(until_s, settle, waiter, None)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.pop(waiter, None)

    async def all_known(self, end_s: float) -> None:
        """Until each bucket's actor is known and connected, or then by the loop's clock. AccessRefused."""
        while self._loop.time() < end_s:
            if refused := self.refused():
                raise refused
            owners = self.table.owners()
            if None not in owners and all(owner and self.link(owner) is not None for owner in {*owners}):
                return
            await self.news(min(end_s, self._loop.time() + _ANEW_S))
            await self.locate([bucket for bucket, owner in enumerate(owners) if owner is None], end_s)

    def ask_anew(self) -> None:
        """Things are not where they were said to be: have every actor say again what it has, if not just now."""
        if self._loop.time() < self._asked_anew_s + _ANEW_S:
            return
        self._asked_anew_s = self._loop.time()
        for link in self.links():
            link.ask(KvHello())

    async def locate(self, key_hashes: Iterable[int], end_s: float) -> None:
        """Ask any actor about buckets that nobody is known to have: it names who has them. Who may not ask for items
        has all of them say again what they have: that came before their connection was ready, and was doubted then."""
        links = self.links()
        buckets = {key_hash & self.table.mask: key_hash for key_hash in key_hashes}
        if not links or not buckets:
            return
        if not self._may_ask:
            self.ask_anew()
            return
        asked = []
        for key_hash in [*buckets.values()][:_PROBES]:
            link = random.choice(links)
            asked.append((link.server, key_hash, link.ask(Get(Opcode.GET_TYPE, 0, key_hash))))
        answers = await answers_by(min(end_s, self._loop.time() + _PROBE_S), [answer for _, _, answer in asked])
        for (server, key_hash, _), answer in zip(asked, answers, strict=True):
            self._located(server, key_hash, answer)

    def _located(self, server: str, key_hash: int, answer: Answer) -> None:
        if isinstance(answer, FailInfo) and answer.code == FailCode.NOT_ALLOWED:
            self._may_ask = False  # who may only append is told by what actors announce
        owner = _owner(server, answer)
        if owner is not None and not self._closed and self.table.owner(key_hash) is None:
            self.peer(owner)
            self.table.redirected(key_hash, owner)


_shared: SharedByLoop[KvConnections] = SharedByLoop()


def _key(directory: KvDirectory, max_frame_bytes: int, shown: Presented) -> Hashable:
    """What clients that share have in common."""
    return directory.identity, max_frame_bytes, shown


async def connections_of(directory: KvDirectory, max_frame_bytes: int, shown: Presented) -> KvConnections:
    """Those of other clients on this loop, or new ones; started. ``leave`` them once. Takes ``directory`` over.

    Raises what finding the actors raises; then there is nothing to leave.
    """
    key = _key(directory, max_frame_bytes, shown)
    those = _shared.take(key, lambda: KvConnections(directory, max_frame_bytes, shown), _MOST_SHARE)
    try:
        if not those.owns(directory):
            await asyncio.to_thread(directory.close)
        await those.start()
    except (Exception, asyncio.CancelledError):
        await those.leave()
        raise
    return those


async def answers_by(end_s: float, asked: Sequence[asyncio.Future[Answer]]) -> list[Answer]:
    """Wait for all of them, until then by the loop's clock."""
    timer = asyncio.get_running_loop().call_at(end_s, _too_late, asked)
    try:
        return [await each for each in asked]
    finally:
        timer.cancel()


def _too_late(answers: Iterable[asyncio.Future[Answer]]) -> None:
    for answer in answers:
        settle(answer, Missed.LATE)


def settle(future: asyncio.Future[T], result: T) -> None:
    """Its result, unless it has one."""
    if not future.done():
        future.set_result(result)


def _owner(server: str, answer: Answer) -> str | None:
    """Who has the bucket, by what ``server`` has answered a get."""
    if isinstance(answer, TryElsewhere):
        return answer.server if answer.server != server else None
    if isinstance(answer, FailInfo):
        return server if answer.code in (FailCode.COLLISION, FailCode.WRONG_TYPE) else None
    return None if isinstance(answer, Missed | Unknown) else server
