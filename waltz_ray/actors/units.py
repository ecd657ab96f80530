"""Who should have which unit of a layer's spaces: written by the leading manager, as members come and go.

A member that is killed is noticed within milliseconds: nobody listens any more where it has announced itself. Then its
registration, and with it its lease, is removed. One that hangs is noticed when its session ends. What is written here
only says who *should* have a unit; who has it says the log (``protocol/ownership.py``). So two leaders who write in
turn, or one that is late, cost moves and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

from waltz_ray.actors.endpoint_probe import SilentProbe, probe_endpoint
from waltz_ray.coordination.unit_store import UnitMember, UnitStore
from waltz_ray.errors import CoordinationError, VersionConflict
from waltz_ray.protocol.ownership_types import Splitting
from waltz_ray.protocol.unit_manager import may_arrange, rearranged

__all__ = ["SpaceUnits"]

log = logging.getLogger(__name__)

_LOOK_S = 1.0

U = TypeVar("U", bound=Hashable)


class SpaceUnits(Generic[U]):
    """Of one space. In one event loop; ``in_thread`` runs what blocks. ``leading`` and ``expected`` (how many actors
    there are to be) are asked at each look."""

    def __init__(
        self,
        store: UnitStore[U],
        splitting: Splitting[U],
        leading: Callable[[], bool],
        expected: Callable[[], int],
        fewest: int,
        settle_s: float,
    ) -> None:
        self._store = store
        self._splitting = splitting
        self._leading = leading
        self._expected = expected
        self._fewest = fewest
        self._settle_s = settle_s
        self._loop = asyncio.get_running_loop()
        self._members: dict[int, UnitMember] = {}
        self._probes: dict[int, tuple[str, asyncio.Task[None]]] = {}
        self._refused: dict[int, str] = {}  # where nobody listens: actors and their incarnations
        self._changed = asyncio.Event()
        self._led_since: float | None = None
        self._settled = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until cancelled."""

        def seen(members: dict[int, UnitMember]) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._seen, members)

        watch = await asyncio.to_thread(self._store.watch_members, seen)
        try:
            while True:
                self._changed.clear()
                await self._look()
                await self._wait()
        finally:
            watch.cancel()
            for task in self._tasks:  # probes are among them
                task.cancel()

    async def _wait(self) -> None:
        """Until something has changed, or it is time to look anyway."""
        timer = self._loop.call_later(_LOOK_S, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()

    def _seen(self, members: dict[int, UnitMember]) -> None:
        self._members = members
        self._changed.set()
        for actor, (incarnation, task) in list(self._probes.items()):
            if actor not in members or members[actor].incarnation != incarnation:
                task.cancel()
                del self._probes[actor]
                self._refused.pop(actor, None)
        for actor, member in members.items():
            if actor not in self._probes:
                refused = partial(self._suspect, actor, member.incarnation)
                answered = partial(self._refused.pop, actor, None)
                probe = self._spawn(probe_endpoint(SilentProbe, member.endpoint, refused, answered))
                self._probes[actor] = member.incarnation, probe

    def _suspect(self, actor: int, incarnation: str) -> None:
        self._refused[actor] = incarnation
        self._changed.set()

    async def _remove_refused(self) -> None:
        """Also those that were refused while another led: he may have died of the same."""
        for actor, incarnation in [*self._refused.items()]:
            try:
                await asyncio.to_thread(self._store.remove, actor, incarnation)
            except (CoordinationError, RuntimeError) as error:  # RuntimeError: no thread can be started just now
                log.warning("the registration of actor %d is not removed, its session will end: %s", actor, error)
                continue
            log.info("nobody listens any more where actor %d did: its registration is removed", actor)
            if self._refused.get(actor) == incarnation:
                del self._refused[actor]

    async def _look(self) -> None:
        if not self._leading():
            self._led_since, self._settled = None, False
            return
        await self._remove_refused()
        if self._led_since is None:
            self._led_since = self._loop.time()
        present = [actor for actor, member in sorted(self._members.items()) if not member.leaving]
        waited_s = self._loop.time() - self._led_since
        if not self._settled and not may_arrange(present, self._expected(), waited_s, self._settle_s):
            return
        self._settled = True
        try:
            await asyncio.to_thread(self._write, present)
        except VersionConflict:
            self._changed.set()  # another leader, for a moment: look again
        except (CoordinationError, RuntimeError) as error:
            log.warning("who should have which unit is not written: %s", error)

    def _write(self, present: list[int]) -> None:
        table, version = self._store.table()
        wanted = rearranged(self._splitting, table, present, self._fewest, int(time.time()))
        if wanted is not None:
            self._store.set_table(wanted, version)
            log.info("units are arranged anew for actors %s", present)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
