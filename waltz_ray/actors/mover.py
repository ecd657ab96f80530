"""Carries out what is recorded of partitions that are to be on other replicas, while the manager leads.

Which step comes next is decided in ``protocol/set_moves.py``. What is wanted and which sets were changed is in
ZooKeeper, and each change is one transaction; so the manager may end anywhere, and whoever leads next goes on. In the
manager's loop; ZooKeeper is asked in a thread of its own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from waltz_ray.actors.manager import end_manager
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.errors import CoordinationError, NoNode
from waltz_ray.protocol import set_moves as rules
from waltz_ray.protocol.roster import Roster
from waltz_ray.protocol.set_moves import ChangeSet, Moves, SetReached, Wait

__all__ = ["Mover"]

log = logging.getLogger(__name__)

_LOOK_S = 0.1
"""How often it looks at partitions that are on the way: each of some steps waits for a session to be published."""

_STUCK_S = 2.0
"""For how long a session must have been taken and not published before a replica that is added is taken out again: as
long as an append may take."""

_AGAIN_S = 3.0
"""A server that has not noticed a changed set for so long is told again."""


class Mover:
    """``start`` in the loop; ``close`` ends it, after the step that is under way. ``on_fatal`` is called when a step
    fails otherwise than ZooKeeper does: then nothing is moved any more, and the process has to end. ``gone``: the
    partitions of deleted spaces, as far as is known."""

    def __init__(
        self,
        store: ClusterStore,
        leading: Callable[[], bool],
        on_fatal: Callable[[str], None] = end_manager,
        gone: Callable[[], frozenset[int]] = frozenset,
    ) -> None:
        self.waits: dict[int, str] = {}
        """Of each partition that was looked at last, what it waits for."""
        self._store, self._leading, self._fatal, self._gone = store, leading, on_fatal, gone
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="manager-moves")
        self._moves = Moves()
        self._wanted = asyncio.Event()  # something is
        self._since: dict[int, tuple[tuple[int, ...], float]] = {}  # partition -> its sessions, and since when these
        self._watch: Any = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Look from now on. CoordinationError."""

        def seen(moves: Moves) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._seen, moves)

        self._watch = await self._loop.run_in_executor(self._thread, lambda: self._store.moves.watch(seen))
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fatal(f"manager: a step of moving partitions failed: {error!r}")

    async def close(self) -> None:
        """Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        if self._watch is not None:
            self._watch.cancel()
        self._thread.shutdown(wait=True)

    def _seen(self, moves: Moves) -> None:
        self._moves = moves
        if moves.wanted:
            self._wanted.set()
        else:
            self._wanted.clear()
            self.waits.clear()

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            began_s = self._loop.time()
            if self._leading():
                try:
                    await self._loop.run_in_executor(self._thread, self.look)
                except CoordinationError as error:
                    log.warning("manager: partitions are not moved just now: %s", error)
            await asyncio.sleep(max(_LOOK_S, self._loop.time() - began_s))  # of many, ZooKeeper is asked half the time

    def look(self) -> None:
        """One round: a step for every partition that is on the way and ready for one. CoordinationError."""
        moves = self._store.moves.read()
        if gone := self._gone() & moves.wanted.keys():  # no server has them: they would be on the way for ever
            log.info("manager: partitions %s are not moved any more: their space was deleted", sorted(gone))
            moves = self._store.moves.forget(gone)
        self.waits = {p: wait for p, wait in self.waits.items() if p in moves.wanted}
        self._since = {p: since for p, since in self._since.items() if p in moves.wanted}
        on_the_way = len(moves.changed)
        for p in _in_order(moves):
            if p in moves.changed or on_the_way < rules.MOST_AT_ONCE:
                on_the_way += self._step(p, moves) and p not in moves.changed
            else:
                self.waits[p] = f"{rules.MOST_AT_ONCE} others come first"

    def _step(self, p: int, moves: Moves) -> bool:
        """Whether its set was changed."""
        wanted = moves.wanted[p]
        try:
            roster, version = self._store.roster(p)
        except NoNode:
            self.waits[p] = "its space is being made"
            return False
        stood_s = self._stands_s(p, roster)
        stuck = roster.session_id > roster.last_published_session and stood_s > _STUCK_S
        step = rules.next_step(roster, wanted, moves.changed_in(p), stuck)
        match step:
            case ChangeSet(replicas, why):
                log.info("manager: partition %d from %s to %s: %s", p, sorted(roster.replicas), list(replicas), why)
                self._since.pop(p, None)
                return self._store.moves.change_set(p, roster, version, roster.with_replicas(replicas))
            case SetReached():
                log.info("manager: partition %d is on %s", p, sorted(wanted))
                self._store.moves.done(p, wanted)
            case Wait(why):
                self.waits[p] = why
                if not rules.has_noticed(roster, moves.changed_in(p)) and stood_s > _AGAIN_S:
                    self._since.pop(p, None)
                    self._store.moves.look_again(p, roster.last_published_session)
        return False

    def _stands_s(self, p: int, roster: Roster) -> float:
        """For how long its sessions and its set have been the same."""
        now, seen = time.monotonic(), (roster.session_id, roster.last_published_session, *sorted(roster.replicas))
        if self._since.get(p, ((), 0.0))[0] != seen:
            self._since[p] = (seen, now)
        return now - self._since[p][1]


def _in_order(moves: Moves) -> Iterator[int]:
    """Those that are on the way come first."""
    yield from sorted(p for p in moves.changed if p in moves.wanted)
    yield from sorted(p for p in moves.wanted if p not in moves.changed)
