"""What both clients are made of: connections to all actors, the table of who has what, and getting a call done.

A call is one or several *jobs*, an item or a lock each. They go to whom the table names, in one command or several.
What has not been done then (it has moved, nobody serves it just now, the connection was lost) waits a moment or for
news and goes again, with the same number, until the call's time is over. What jobs are and what answers mean:
``errands.py``.

Everything runs on one event loop. An answer that nobody waits for any more is dropped.
"""

from __future__ import annotations

import asyncio
import random
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from waltz_ray.client.credentials import NO_CREDENTIALS, Presented
from waltz_ray.errors import AccessRefused, ClientClosed
from waltz_ray.kv.client.errands import Errand, J, KvJob
from waltz_ray.kv.client.link import Answer, KvLink, KvPeer, Missed
from waltz_ray.kv.client.members import KvDirectory
from waltz_ray.kv.client.request_numbers import RequestNumbers
from waltz_ray.kv.client.settings import KvClientConfig
from waltz_ray.kv.client.table import RouteTable
from waltz_ray.kv.messages import FailCode, FailInfo, Get, Hashmask, Hashmasks, KvHello, Opcode, TryElsewhere, Unknown
from waltz_ray.net.backoff import Backoff

__all__ = ["KvEngine"]

T = TypeVar("T")

_DETOURS = 3  # that are followed at once; then a pause, or two actors that name each other would be busy
_PROBES = 16  # buckets that are looked for at a time
_PROBE_S = 1.0
_ANEW_S = 0.25  # between two times at which all actors are asked what they have


class KvEngine:
    """See the module. Made on the loop that runs, and ``start``ed there."""

    def __init__(self, directory: KvDirectory, config: KvClientConfig, shown: Presented = NO_CREDENTIALS) -> None:
        """``shown``: what says to actors who we are."""
        self.config = config
        self._shown = shown
        self._may_ask = True  # for items, so as to find out who has them
        self.partitions = directory.partitions
        """Of the space."""
        self.table = RouteTable()
        self.numbers = RequestNumbers(secrets.randbits(64) or 1)
        self.room = ByteRoom(config.outstanding_bytes)
        self.retries = 0
        """Jobs that had to be sent again."""
        self.closed = False
        self._asked_anew_s = -_ANEW_S
        self._directory = directory
        self._loop = asyncio.get_running_loop()
        self._peers: dict[str, KvPeer] = {}
        self._members: tuple[str, ...] = ()  # that the directory names
        self._listed: tuple[str, ...] = ()  # that an actor has named last
        self._waiters: set[asyncio.Future[None]] = set()  # for any news
        self._tasks: set[asyncio.Task[object]] = set()
        self._stop_watching: Callable[[], None] = lambda: None

    # ---- life

    async def start(self) -> None:
        """Find the actors, and begin to connect with all of them."""
        self._stop_watching = await asyncio.to_thread(self._directory.watch, self._found)

    def now(self) -> float:
        """The loop's clock, seconds."""
        return self._loop.time()

    def check_open(self) -> None:
        """ClientClosed if it is."""
        if self.closed:
            raise ClientClosed("the key/value client is closed; connect again")

    def background(self, work: Awaitable[T]) -> asyncio.Task[T]:
        """Something that goes on until it ends or the client is closed."""
        task: asyncio.Task[T] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        """End what goes on, with ClientClosed, and every connection. Idempotent."""
        if self.closed:
            return
        self.closed = True
        await asyncio.to_thread(self._stop_watching)
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        self.changed()
        peers, self._peers = self._peers, {}
        await asyncio.gather(*[peer.stop() for peer in peers.values()], *tasks, return_exceptions=True)
        await asyncio.to_thread(self._directory.close)

    # ---- LinkHome

    def announced(self, server: str, message: Hashmasks | Hashmask) -> None:
        if isinstance(message, Hashmasks):
            others = self.table.announced(server, message)
        else:
            others = self.table.changed(server, message)
        for other in others:
            if (peer := self._peers.get(other)) is not None and (link := peer.ready) is not None:
                link.doubt()
        self.changed()

    def listed(self, servers: tuple[str, ...]) -> None:
        # In the dialect 2012 they are told one by one.
        self._listed = servers if len(servers) != 1 else tuple({*self._listed, *servers})
        self._connect_all()

    def changed(self) -> None:
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # ---- who there is

    def _found(self, servers: Sequence[str]) -> None:
        """By the directory, from any thread."""

        def take() -> None:
            self._members = tuple(servers)
            self._connect_all()

        if not self.closed and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(take)

    def _connect_all(self) -> None:
        if self.closed:
            return
        wanted = {*self._members, *self._listed}
        for server in wanted:
            self._peer(server)
        for server in [server for server, peer in self._peers.items() if server not in wanted and peer.link is None]:
            self.background(self._peers.pop(server).stop())
        self.changed()

    def _peer(self, server: str) -> KvPeer:
        self.check_open()
        if server not in self._peers:
            self._peers[server] = KvPeer(self, server, self.config.max_frame_bytes, self._shown)
        return self._peers[server]

    def links(self) -> list[KvLink]:
        """Every connection there is."""
        return [link for peer in self._peers.values() if (link := peer.ready) is not None]

    def link(self, server: str) -> KvLink | None:
        """The connection with one actor. None: there is none just now."""
        return self._peer(server).ready

    async def news(self, until_s: float) -> None:
        """Wait until anything changes, or until then by the loop's clock."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.add(waiter)
        timer = self._loop.call_at(until_s, _settle, waiter, None)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.discard(waiter)

    # ---- getting jobs done

    async def run(self, errand: Errand[J], jobs: Sequence[J], end_s: float) -> None:
        """Until each of ``jobs`` is done or the loop's clock is at ``end_s``. Then ``job.done`` says so.

        ClientClosed.
        """
        self.check_open()
        await self._round(errand, jobs, end_s)
        left = [job for job in jobs if not job.done]
        if left:
            await self._go_on(errand, left, end_s)
        else:
            self.check_open()

    async def _go_on(self, errand: Errand[J], left: list[J], end_s: float) -> None:
        """What a round has left."""
        backoff, detours = Backoff(first_s=0.005, longest_s=0.25), 0
        while True:
            self.check_open()
            now_s = self.now()
            if not left or now_s >= end_s:
                return
            self.retries += len(left)
            if detours < _DETOURS and all(job.detour for job in left):
                detours += 1
            else:
                if any(job.moved for job in left):
                    self.ask_anew()
                pause_s = backoff.next_s()
                await self.news(min(now_s + pause_s, end_s))
                await self.locate([job.key_hash for job in left if self.table.owner(job.key_hash) is None], end_s)
            await self._round(errand, left, end_s)
            left = [job for job in left if not job.done]

    async def _round(self, errand: Errand[J], jobs: Sequence[J], end_s: float) -> None:
        """Send each job to whom the table names, and take the answers."""
        if len(jobs) == 1 and await self._asked_one(errand, jobs, end_s):
            return
        groups: dict[str, list[J]] = {}
        for job in jobs:
            job.detour = job.moved = False
            server = self.table.owner(job.key_hash)
            if server is None:
                job.reason = self._nobody()
                if refused := self.refused():
                    job.not_allowed(str(refused))
            else:
                groups.setdefault(server, []).append(job)
        asked: list[tuple[str, list[J], asyncio.Future[Answer]]] = []
        for server, group in groups.items():
            peer = self._peer(server)
            if (link := peer.ready) is None:
                self._put_off(group, server, peer.why)
                if peer.refused:
                    for job in group:
                        job.not_allowed(peer.why)
                continue
            for command, some in errand.commands(group, end_s - self.now()):
                asked.append((server, some, link.ask(command)))
        answers = await self.answers([answer for _, _, answer in asked], end_s)
        for (server, some, _), answer in zip(asked, answers, strict=True):
            self._take(errand, server, some, answer)

    async def _asked_one(self, errand: Errand[J], jobs: Sequence[J], end_s: float) -> bool:
        """A round for one job, as most are; False: its actor is not known, or not connected."""
        (job,) = jobs
        server = self.table.owner(job.key_hash)
        if server is None or (link := self._peer(server).ready) is None:
            return False
        job.detour = job.moved = False
        ((command, some),) = errand.commands(jobs, end_s - self.now())
        (answer,) = await self.answers([link.ask(command)], end_s)
        self._take(errand, server, some, answer)
        return True

    def _take(self, errand: Errand[J], server: str, jobs: list[J], answer: Answer) -> None:
        if isinstance(answer, Missed):
            errand.missed(jobs, f"{server} did not answer")
        elif isinstance(answer, TryElsewhere):
            for job in jobs:
                self._redirect(job, server, answer.server)
        elif isinstance(answer, Unknown):
            errand.refused(jobs, f"{server} does not know command {answer.opcode}")
        elif isinstance(answer, FailInfo):
            errand.failed(jobs, answer, server)
        else:
            errand.answered(jobs, answer)
            for job in jobs:
                if job.elsewhere:
                    job.elsewhere, job.moved = False, True
                    job.reason = f"{server} does not serve it any more"
                    self.table.doubted(job.key_hash, server)

    def _redirect(self, job: KvJob, server: str, other: str) -> None:
        job.reason = f"{server} says: try {other}"
        if other == server:
            return
        self._peer(other)
        self.table.redirected(job.key_hash, other)
        job.detour = job.moved = True

    def _put_off(self, jobs: Iterable[KvJob], server: str, why: str) -> None:
        """Their actor cannot be reached: perhaps somebody else knows of a new one."""
        others = self.links()
        for job in jobs:
            job.reason = f"no connection with {server}: {why}"
            if others:
                self.table.doubted(job.key_hash, server)

    def _nobody(self) -> str:
        if self.links():
            return "no actor is known to serve it"
        whys = sorted({peer.why for peer in self._peers.values()})
        return "no actor is connected" + (f" ({'; '.join(whys)})" if whys else ": the space has none just now")

    def refused(self) -> AccessRefused | None:
        """Why nobody lets us in; None: somebody does, or has not said."""
        why = next((peer.why for peer in self._peers.values() if peer.refused), "")
        return AccessRefused(why) if why and not self.links() else None

    async def all_known(self, end_s: float) -> None:
        """Until every bucket's actor is known and connected, or then by the loop's clock. AccessRefused."""
        while self.now() < end_s:
            self.check_open()
            if refused := self.refused():
                raise refused
            owners = self.table.owners()
            if None not in owners and all(owner and self.link(owner) is not None for owner in {*owners}):
                return
            await self.news(min(end_s, self.now() + _ANEW_S))
            await self.locate([bucket for bucket, owner in enumerate(owners) if owner is None], end_s)

    def ask_anew(self) -> None:
        """Things are not where they were said to be: have every actor say again what it has, if not just now."""
        if self.now() < self._asked_anew_s + _ANEW_S:
            return
        self._asked_anew_s = self.now()
        for link in self.links():
            link.ask(KvHello())

    async def locate(self, key_hashes: Iterable[int], end_s: float) -> None:
        """Ask any actor about buckets that nobody is known to have: it names who has them."""
        links = self.links()
        buckets = {key_hash & self.table.mask: key_hash for key_hash in key_hashes}
        if not links or not self._may_ask:
            return
        asked = []
        for key_hash in [*buckets.values()][:_PROBES]:
            link = random.choice(links)
            asked.append((link.server, key_hash, link.ask(Get(Opcode.GET_TYPE, 0, key_hash))))
        answers = await self.answers([answer for _, _, answer in asked], min(end_s, self.now() + _PROBE_S))
        for (server, key_hash, _), answer in zip(asked, answers, strict=True):
            if isinstance(answer, FailInfo) and answer.code == FailCode.NOT_ALLOWED:
                self._may_ask = False  # who may only append is told by what actors announce
            owner = _owner(server, answer)
            if owner is not None and self.table.owner(key_hash) is None:
                self._peer(owner)
                self.table.redirected(key_hash, owner)

    async def answers(self, asked: Sequence[asyncio.Future[Answer]], end_s: float) -> list[Answer]:
        """Wait for all of them, until then by the loop's clock."""
        timer = self._loop.call_at(end_s, _too_late, asked)
        try:
            return [await each for each in asked]
        finally:
            timer.cancel()


class ByteRoom:
    """Bytes outstanding, at most so many; who comes first has room first. One alone may have more."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0
        self._line: deque[tuple[int, asyncio.Future[None]]] = deque()

    def take_at_once(self, size: int) -> bool:
        """Have room for ``size`` bytes, if there is some just now; ``give_back`` them."""
        while self._line and self._line[0][1].cancelled():
            self._line.popleft()
        if self._line or (self._taken and self._taken + size > self._most):
            return False
        self._taken += size
        return True

    async def take(self, size: int) -> None:
        """Wait until there is room for ``size`` bytes, and have it."""
        if self.take_at_once(size):
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append((size, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # at the last moment
                self.give_back(size)
            raise

    def give_back(self, size: int) -> None:
        """They have their answers."""
        self._taken -= size
        line = self._line
        while line and (line[0][1].cancelled() or not self._taken or self._taken + line[0][0] <= self._most):
            size, waiter = line.popleft()
            if not waiter.cancelled():
                self._taken += size
                waiter.set_result(None)


def _owner(server: str, answer: Answer) -> str | None:
    """Who has the bucket, by what ``server`` has answered a get."""
    if isinstance(answer, TryElsewhere):
        return answer.server if answer.server != server else None
    if isinstance(answer, FailInfo):
        return server if answer.code in (FailCode.COLLISION, FailCode.WRONG_TYPE) else None
    return None if isinstance(answer, Missed | Unknown) else server


def _too_late(answers: Iterable[asyncio.Future[Answer]]) -> None:
    for answer in answers:
        _settle(answer, Missed.LATE)


def _settle(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)
