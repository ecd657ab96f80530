"""Random walks: owners that are cut off, expire, lose answers and race for a cursor, while the log is trimmed.

Each of their calls may be interrupted by whatever others do, which is where a pause of any length is; and news of the
session and the lease come late.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from tests.coordination.test_cursors import ORDERS, made
from waltz_ray.coordination.api import ConnectionState, Write
from waltz_ray.coordination.cursor_lease import CursorLease
from waltz_ray.coordination.cursor_nodes import CursorNodes
from waltz_ray.coordination.cursor_store import CursorStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.coordination.trim_store import TrimStore
from waltz_ray.errors import CursorLost, CursorNotFound, CursorTaken, Trimmed, ZooKeeperUnreachable
from waltz_ray.protocol.cursors import CursorRecord

T = TypeVar("T")


class Unreliable(MemoryZooKeeper):
    """Before a call others may act, and a write may be lost, or its answer."""

    def __init__(self, walk: Walk, name: str) -> None:
        super().__init__(walk.server)
        self._walk, self._name = walk, name

    def _unsure(self, write: Callable[[], T]) -> T:
        walk = self._walk
        walk.meanwhile()
        fate = walk.chance.random()
        if fate < 0.05:
            raise ZooKeeperUnreachable("lost on the way there")
        result = write()
        walk.changed(self._name)
        if fate < 0.1:
            raise ZooKeeperUnreachable("lost on the way back")
        return result

    def create(
        self, path: str, data: bytes, *, ephemeral: bool = False, sequence: bool = False, make_parents: bool = False
    ) -> str:
        make = super().create
        return self._unsure(lambda: make(path, data, ephemeral=ephemeral, make_parents=make_parents))

    def set(self, path: str, data: bytes, version: int) -> int:
        put = super().set
        return self._unsure(lambda: put(path, data, version))

    def write_all(self, writes: Sequence[Write]) -> None:
        put = super().write_all
        self._unsure(lambda: put(writes))

    def delete(self, path: str, version: int = -1) -> None:
        take_away = super().delete
        self._unsure(lambda: take_away(path, version))

    def get(self, path: str) -> tuple[bytes, int]:
        self._walk.meanwhile()
        return super().get(path)

    def owner(self, path: str) -> int | None:
        self._walk.meanwhile()
        return super().owner(path)


class Process:
    """One that wants the cursor, and works when it has it."""

    def __init__(self, walk: Walk, name: str) -> None:
        self.walk, self.name = walk, name
        self.zookeeper = Unreliable(walk, name)
        self.store = CursorStore(self.zookeeper, "c", ORDERS, name)
        self.held: CursorLease | None = None
        self.busy = False

    def step(self) -> None:
        """One call, as an application makes it: it is not in two at once."""
        if self.busy:
            return
        self.busy = True
        try:
            if self.held is None and self.walk.chance.random() < 0.1:
                self.store.delete("audit")
            elif self.held is None:
                self.held = self.store.take("audit", self.walk.chance.choice([None, True, False]))
            else:
                self.work(self.held)
        except CursorNotFound:
            self.create()
        except CursorLost:
            self.held = None
        except (CursorTaken, ZooKeeperUnreachable):
            return
        finally:
            self.busy = False

    def create(self) -> None:
        try:
            self.store.create("audit", {0: self.store.first_ids()[0]}, hold=True)
        except (Trimmed, ZooKeeperUnreachable):
            return

    def work(self, held: CursorLease) -> None:
        chance, position = self.walk.chance, held.record.positions[0]
        deed = chance.random()
        if deed < 0.6:
            held.advance({0: position + chance.randrange(4)})
            assert self.walk.now == held.record, "what it was told is written is there"
        elif deed < 0.75:
            try:
                held.reset({0: max(0, position - chance.randrange(6))})
            except Trimmed:
                return
        elif deed < 0.85:
            held.release()
            self.held = None


class Walk:
    """Three processes, the trimmer, and what must hold after every write."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.server = MemoryZooKeeperServer(auto_pump=False)
        quiet = self.server.client()
        made(quiet)
        self.trims = TrimStore(quiet, "c")
        self.nodes = CursorNodes(quiet, "c", ORDERS)
        self.now = CursorRecord({})
        self.writer = ""
        self.deep = False
        self.processes = [Process(self, name) for name in "abc"]

    def meanwhile(self) -> None:
        """In the midst of somebody's call."""
        if not self.deep and self.chance.random() < 0.3:
            self.deep = True
            self.happen()
            self.deep = False

    def happen(self) -> None:
        process = self.chance.choice(self.processes)
        match self.chance.randrange(11):
            case 0:
                self.server.expire(process.zookeeper.session_id)
            case 1:
                self.server.disconnect(process.zookeeper)
            case 2 | 3 if process.zookeeper.state is not ConnectionState.CONNECTED:
                self.server.reconnect(process.zookeeper)
            case 4:
                self.trim()
            case 5:
                self.server.pump()  # who has lost it, or may have it, hears of it
            case _:
                process.step()

    def changed(self, writer: str) -> None:
        """``writer`` has written something: was it his to write?"""
        before, (now, _) = self.now, self.nodes.read_any("audit")
        self.now = now
        holds = {name: hold.positions for name, hold in self.trims.holds.all().items()}
        assert holds == ({"cursor.orders.audit": {10: now.positions[0]}} if now.holds_retention else {})
        if now == before:
            return
        if before.deleted:
            assert (now.epoch, now.deleted) == (before.epoch, False)
            self.writer = writer  # who has made it, until somebody takes it
        elif now.epoch == before.epoch:
            assert self.writer == writer, "who writes in an epoch has raised it"
        else:
            assert (now.epoch, now.owner) == (before.epoch + 1, writer), "nor does an epoch ever come again"
            assert now.positions == before.positions, "the next one goes on where the last one was"
            self.writer = writer

    def trim(self) -> None:
        before = self.trims.marks().get(10, 0)
        mark = self.trims.raise_marks({10: self.chance.randrange(40)})[10]
        if self.now.holds_retention:
            assert mark <= max(before, self.now.positions[0]), "what it will read is held"

    def heal(self) -> None:
        """All is well again: then one has it, or somebody gets it."""
        self.deep = True  # nobody interrupts any more
        for process in self.processes:
            if process.zookeeper.state is not ConnectionState.CONNECTED:
                self.server.reconnect(process.zookeeper)
        self.server.pump()
        self.chance.random = lambda: 0.5  # type: ignore[method-assign]  # and nothing is lost: they advance
        owners = [process for process in self.processes if process.held is not None and process.held.lost is None]
        assert len(owners) <= 1
        for _ in range(4):
            for process in self.processes:
                process.step()
        (owner,) = (process for process in self.processes if process.held is not None)
        assert owner.name == self.now.owner


@pytest.mark.parametrize("seed", range(40))
def test_a_walk(seed: int) -> None:
    walk = Walk(seed)
    for _ in range(150):
        walk.happen()
    walk.heal()
