"""What both clients are made of: getting a call done, over connections that clients of one loop share.

A call is one or several *jobs*, an item or a lock each. They go to whom the table names, in one command or several.
What has not been done then (it has moved, nobody serves it just now, the connection was lost) waits a moment or for
news and goes again, with the same number, until the call's time is over. What jobs are and what answers mean:
``errands.py``.

Everything runs on one event loop. An answer that nobody waits for any more is dropped.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

from waltz_ray.client.ending import Ending
from waltz_ray.client.own_loop import check_loop
from waltz_ray.errors import ClientClosed
from waltz_ray.kv.client.connections import KvConnections, answers_by, settle
from waltz_ray.kv.client.errands import Errand, J, KvJob
from waltz_ray.kv.client.link import Answer, KvPeer, Missed
from waltz_ray.kv.client.request_numbers import RequestNumbers
from waltz_ray.kv.client.settings import KvClientConfig
from waltz_ray.kv.messages import FailInfo, TryElsewhere, Unknown
from waltz_ray.net.backoff import Backoff

__all__ = ["KvEngine"]

if TYPE_CHECKING:
    from waltz_ray.client.aio import AsyncWaltzClient

T = TypeVar("T")

_DETOURS = 3  # that are followed at once; then a pause, or two actors that name each other would be busy


class KvEngine:
    """See the module. ``connections``: started, and to be left by this."""

    def __init__(self, connections: KvConnections, config: KvClientConfig) -> None:
        self.config = config
        self.connections = connections
        self.table = connections.table
        self.numbers = RequestNumbers(secrets.randbits(64) or 1)
        # Whoever waits for a lock has no answer for minutes, and no write in between would count as settled.
        self.lock_numbers = RequestNumbers(secrets.randbits(64) or 1)
        self.room = ByteRoom(config.outstanding_bytes)
        self.retries = 0
        """Jobs that had to be sent again."""
        self.watching: set[AsyncWaltzClient] = set()
        """Clients of the log that watches have; closed with this."""
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._own: dict[str, KvPeer] = {}  # connections for locks
        self._asked: set[asyncio.Future[Answer]] = set()  # that are waited for
        self._tasks: set[asyncio.Task[object]] = set()
        self._ending = Ending(self._end)  # whole: nobody could leave the connections afterwards

    # ---- life

    def now(self) -> float:
        """The loop's clock, seconds."""
        return self._loop.time()

    def check_open(self) -> None:
        """ClientClosed if it is; SpaceGone if there is nothing any more to be asked; InvalidInput on another loop."""
        check_loop(self._loop)
        if self.closed:
            raise ClientClosed("the key/value client is closed; connect again")
        if self.connections.gone is not None:
            raise self.connections.gone.with_traceback(None)  # which would grow with each time

    def background(self, work: Awaitable[T]) -> asyncio.Task[T]:
        """Something that goes on until it ends or the client is closed."""
        task: asyncio.Task[T] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        """End what goes on, with ClientClosed, and the connections that nobody else uses. Idempotent. InvalidInput on
        another loop, unless this one's is closed."""
        if self._loop.is_closed():  # what was on it has ended with it
            self.closed = True
            await self.connections.leave()
            return
        check_loop(self._loop)
        self.closed = True
        await self._ending.come()

    async def _end(self) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        for answer in self._asked:
            settle(answer, Missed.LOST)
        self.connections.changed()
        own, self._own = self._own, {}
        ends = [self.connections.part_with(peer) for peer in own.values()]
        watches = [log.close() for log in self.watching]
        try:
            await asyncio.gather(*ends, *watches, *tasks, return_exceptions=True)
        finally:  # also if the loop ends meanwhile
            await self.connections.leave()

    async def _own_connections(self, jobs: Iterable[KvJob], end_s: float) -> None:
        """Have tried to connect with the actors of these."""
        known = self.connections.known
        lost = [server for server, peer in self._own.items() if peer.tried and peer.link is None]
        for server in lost:
            if server not in known:
                self.background(self.connections.part_with(self._own.pop(server)))
        for owner in {self.table.owner(job.key_hash) for job in jobs} - {None}:
            assert owner is not None
            if owner not in self._own:
                self._own[owner] = self.connections.private_peer(owner)
            peer = self._own[owner]
            while not self.closed and not peer.tried and self.now() < end_s:
                await self.connections.news(end_s)

    def _peer(self, errand: Errand[J], server: str) -> KvPeer:
        self.check_open()
        own = self._own.get(server) if errand.alone else None
        return own or self.connections.peer(server)

    # ---- getting jobs done

    async def run(self, errand: Errand[J], jobs: Sequence[J], end_s: float) -> None:
        """Until each of ``jobs`` is done or the loop's clock is at ``end_s``. Then ``job.done`` says so.

        ClientClosed.
        """
        self.check_open()
        if errand.alone:
            await self._own_connections(jobs, end_s)
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
                    self.connections.ask_anew()
                pause_s = backoff.next_s()
                await self.connections.news(min(now_s + pause_s, end_s))
                unknown = [job.key_hash for job in left if self.table.owner(job.key_hash) is None]
                await self.connections.locate(unknown, end_s)
                self.check_open()
            if errand.alone:
                await self._own_connections(left, end_s)
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
                job.reason = self.connections.nobody()
                if refused := self.connections.refused():
                    job.not_allowed(str(refused))
            else:
                groups.setdefault(server, []).append(job)
        asked: list[tuple[str, list[J], asyncio.Future[Answer]]] = []
        for server, group in groups.items():
            peer = self._peer(errand, server)
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
        if server is None or (link := self._peer(errand, server).ready) is None:
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
        self.connections.peer(other)
        self.table.redirected(job.key_hash, other)
        job.detour = job.moved = True

    def _put_off(self, jobs: Iterable[KvJob], server: str, why: str) -> None:
        """Their actor cannot be reached: perhaps somebody else knows of a new one."""
        others = self.connections.links()
        for job in jobs:
            job.reason = f"no connection with {server}: {why}"
            if others:
                self.table.doubted(job.key_hash, server)

    async def answers(self, asked: Sequence[asyncio.Future[Answer]], end_s: float) -> list[Answer]:
        """Wait for all of them, until then by the loop's clock."""
        self._asked.update(asked)
        try:
            return await answers_by(end_s, asked)
        finally:
            self._asked.difference_update(asked)


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
            # It was given at the last moment; or it was in the way of others, for whom there is room.
            self.give_back(0 if waiter.cancelled() else size)
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
