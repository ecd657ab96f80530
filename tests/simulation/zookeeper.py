"""ZooKeeper with faults: the in-memory twin, whose callbacks arrive late and whose answers get lost.

Each client has a queue of callbacks of its own, delivered in order after a delay drawn from the seed; a stopped
process gets them when it goes on. Sessions end as real ones do: when a client has been cut off, stopped or dead for
its session time-out.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, cast

from waltz_ray.coordination.api import ConnectionState, Write
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.errors import ZooKeeperUnreachable

if TYPE_CHECKING:
    from tests.simulation.history import History
    from tests.simulation.loop import ProcessLoop, Scheduler

__all__ = ["SimZooKeeper", "SimZooKeeperServer"]

_LATE_S = (0.2, 2.5)


class _Jobs:
    """One client's callbacks; looks like the twin's queue to the twin."""

    def __init__(self, server: SimZooKeeperServer, loop: ProcessLoop) -> None:
        self._server, self._loop = server, loop
        self._jobs: deque[Callable[[], None]] = deque()
        self._delivering = False

    def append(self, job: Callable[[], None]) -> None:
        self._jobs.append(job)
        self._deliver_later()

    def extend(self, jobs: Iterable[Callable[[], None]]) -> None:
        for job in jobs:
            self.append(job)

    def _deliver_later(self) -> None:
        if not self._delivering and not self._loop.dead:
            self._delivering = True
            self._server.scheduler.after(self._server.delay_s(self._loop), self._deliver)

    def _deliver(self) -> None:
        self._delivering = False
        if self._loop.dead:
            self._jobs.clear()
        elif self._loop.paused:
            self._deliver_later()
        elif self._jobs:
            job = self._jobs.popleft()
            try:
                self._loop.enter(job)
            except ZooKeeperUnreachable:
                pass  # as with the real one: delivered again after the reconnect (Watch.deliver)
            except Exception as error:  # noqa: BLE001 - a bug of a callback ends the history, like one anywhere
                self._server.scheduler.fail(error)
            if self._jobs:
                self._deliver_later()


class _View:
    """The server as one client sees it: the same tree, its own queue."""

    def __init__(self, server: SimZooKeeperServer, loop: ProcessLoop) -> None:
        self._server = server
        self._jobs = _Jobs(server, loop)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)


class SimZooKeeper(MemoryZooKeeper):
    """One process's client.

    ``lose_answers``: so many further writes happen without their caller hearing of it. ``lose_requests``: so many
    do not happen. The caller cannot tell one from the other. A request gets lost with its connection only, so that
    comes back a moment later, and every watch is read again.
    """

    def __init__(self, server: SimZooKeeperServer, loop: ProcessLoop) -> None:
        super().__init__(cast(MemoryZooKeeperServer, _View(server, loop)))
        self.loop = loop
        self.lose_answers = self.lose_requests = 0
        self._sim = server

    def _lose_request(self, path: str) -> None:
        if self.lose_requests:
            self.lose_requests -= 1
            self._sim.faults["zookeeper request lost"] += 1
            self._reconnect()
            raise ZooKeeperUnreachable(f"ZooKeeper node {path}: no answer; a write may have happened")

    def _reconnect(self) -> None:
        """A call without an answer is a connection that was lost; another one is made at once."""
        away_s = self._sim.random.uniform(0.005, 0.05)
        self._sim.scheduler.after(0.0, self._sim.cut_off, self, away_s, float("inf"))

    def _lose_answer(self, path: str) -> None:
        if self.lose_answers:
            self.lose_answers -= 1
            self._sim.faults["zookeeper answer lost"] += 1
            self._reconnect()
            raise ZooKeeperUnreachable(f"ZooKeeper node {path}: the answer was lost; a write may have happened")

    def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False, make_parents: bool = False
    ) -> str:
        self._lose_request(path)
        made = super().create(path, data, ephemeral=ephemeral, sequence=sequence, make_parents=make_parents)
        self._lose_answer(path)
        return made

    def set(self, path: str, data: bytes, version: int) -> int:
        self._lose_request(path)
        written = super().set(path, data, version)
        self._sim.after_write(self.loop.name, path, data)
        self._lose_answer(path)
        return written

    def write_all(self, writes: Sequence[Write]) -> None:
        self._lose_request("several nodes")
        super().write_all(writes)
        for write in writes:
            if write.data is not None:
                self._sim.after_write(self.loop.name, write.path, write.data)
        self._lose_answer("several nodes")

    def delete(self, path: str, version: int = -1) -> None:
        self._lose_request(path)
        super().delete(path, version)
        self._lose_answer(path)


class SimZooKeeperServer(MemoryZooKeeperServer):
    """See the module's docstring."""

    def __init__(self, scheduler: Scheduler, random: Random, history: History) -> None:
        super().__init__(auto_pump=False)
        self.scheduler, self.random, self.history = scheduler, random, history
        self.faults = history.faults
        self.late = 0.0
        """Probability that a callback comes seconds late."""
        self.silent_until_s: dict[ProcessLoop, float] = {}
        """Processes that are called back from this moment on only."""

    def delay_s(self, loop: ProcessLoop) -> float:
        silent_s = self.silent_until_s.get(loop, 0.0) - self.scheduler.now
        if silent_s > 0.0:
            return silent_s
        if self.late and self.random.random() < self.late:
            return self.random.uniform(*_LATE_S)
        return self.random.uniform(0.0003, 0.01)

    def connect(self, loop: ProcessLoop) -> SimZooKeeper:
        return SimZooKeeper(self, loop)

    def after_write(self, who: str, path: str, data: bytes) -> None:
        """Every change of a partition's record is observed."""
        if "/store/partitions/" in path:
            self.history.record_written(who, int(path.rpartition("/")[2]), json.loads(data))

    # ---- faults -------------------------------------------------------------------------------------------

    def cut_off(self, client: SimZooKeeper, seconds: float, session_s: float) -> None:
        """No connection for so long; the session expires meanwhile if that is longer than its time-out."""
        if client.state is not ConnectionState.CONNECTED or client._closed:
            return
        self.disconnect(client)
        session = client.session_id
        if seconds > session_s:
            self.scheduler.after(session_s, self.expire, session)
        self.scheduler.after(seconds, self.let_in, client)

    def let_in(self, client: SimZooKeeper) -> None:
        if not client._closed and client.state is not ConnectionState.CONNECTED and not client.loop.dead:
            self.reconnect(client)

    def stopped(self, client: SimZooKeeper, session_s: float) -> None:
        """Its process does nothing: the session ends after its time-out unless it goes on before."""
        session = client.session_id
        self.scheduler.after(session_s, self._expire_if_still_stopped, client, session)

    def _expire_if_still_stopped(self, client: SimZooKeeper, session: int) -> None:
        if client.loop.dead or client.loop.paused:
            self.expire(session)

    def gone(self, client: SimZooKeeper, session_s: float) -> None:
        """Its process has ended: callbacks stop, the session times out."""
        if client in self._clients:
            self._clients.remove(client)
        self.scheduler.after(session_s, self.expire, client.session_id)
