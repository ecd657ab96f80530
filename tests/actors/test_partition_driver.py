"""The shell of a partition's machine: what becomes of a write of ZooKeeper whose answer was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.protocol.test_partition import Bench, free
from waltz_ray.actors import partition_driver
from waltz_ray.actors.partition_driver import Host, PartitionDriver
from waltz_ray.config import ServerConfig
from waltz_ray.errors import NodeDamaged, VersionConflict, ZooKeeperRefused, ZooKeeperUnreachable
from waltz_ray.protocol.messages.replica import FindTime
from waltz_ray.protocol.partition.events import Assigned, Event, Unassigned
from waltz_ray.protocol.pool import Pool
from waltz_ray.protocol.retained import RetainedMemory
from waltz_ray.protocol.roster import Roster
from waltz_ray.protocol.session_types import RosterConflict, RosterWritten
from waltz_ray.runtime.measures import Measures
from waltz_ray.runtime.watchdog import Watchdog


@dataclass
class Store:
    """ZooKeeper's roster; the first write is lost on its way, and ``meanwhile`` happens."""

    meanwhile: Callable[[Roster], Roster | None]
    stored: Roster = field(default_factory=lambda: Roster.initial([0, 1, 2]))
    version: int = 0
    writes: int = 0

    def roster(self, partition_id: int) -> tuple[Roster, int]:
        return self.stored, self.version

    def set_roster(self, partition_id: int, roster: Roster, version: int) -> int:
        self.writes += 1
        if self.writes == 1:
            meanwhile = self.meanwhile(roster)
            if meanwhile is not None:
                self.stored, self.version = meanwhile, self.version + 1
            raise ZooKeeperUnreachable("the answer was lost")
        if version != self.version:
            raise VersionConflict("somebody else has written it")
        self.stored, self.version = roster, self.version + 1
        return self.version


def _first_answer(store: Store, patch: pytest.MonkeyPatch) -> Event:
    """What the machine hears of the first session that it takes."""
    patch.setattr(partition_driver, "_ZOOKEEPER_RETRY_S", 0)
    heard: list[Event] = []

    async def run() -> None:
        done = asyncio.get_running_loop().create_future()

        async def in_thread(call: Callable[[], Any]) -> Any:
            return call()

        host: Any = SimpleNamespace(
            config=ServerConfig(),
            queue=Pool(1),
            retained=RetainedMemory(1),
            store=store,
            incarnation="me",
            links={},
            watchdog=Watchdog(),
        )
        host.measures = Measures()
        host.in_thread, host.fatal = in_thread, lambda message: done.set_exception(RuntimeError(message))
        driver = PartitionDriver(0, cast(Host, host))
        step = driver.machine.step

        def listening(event: Event) -> list[Any]:
            heard.append(event)
            if isinstance(event, RosterWritten | RosterConflict) and not done.done():
                done.set_result(None)
                return []
            return cast(list[Any], step(event))

        patch.setattr(driver.machine, "step", listening)
        driver.handle(Assigned(1))
        await asyncio.wait_for(done, 10)
        await driver.close()

    asyncio.run(run())
    return next(event for event in heard if isinstance(event, RosterWritten | RosterConflict))


def test_a_write_that_happened_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _first_answer(Store(lambda mine: mine), monkeypatch) == RosterWritten(1, 1)


def test_a_write_that_did_not_happen_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(lambda mine: None)
    assert _first_answer(store, monkeypatch) == RosterWritten(1, 1)
    assert store.writes == 2


@dataclass
class Unusable(Store):
    """A roster that somebody has overwritten, until a person puts it right; ``while_it_lasts`` is called before."""

    left: int = 2
    while_it_lasts: Callable[[], None] = lambda: None

    def roster(self, partition_id: int) -> tuple[Roster, int]:
        if self.left:
            self.left -= 1
            self.while_it_lasts()
            raise NodeDamaged("/store/partitions/0 is not a roster of version 1")
        return super().roster(partition_id)

    def set_roster(self, partition_id: int, roster: Roster, version: int) -> int:
        if self.writes == 0:
            self.writes = 1  # the next one is not the first
            raise ZooKeeperRefused("not this process's node")
        return super().set_roster(partition_id, roster, version)


def test_a_roster_that_cannot_be_used_is_no_reason_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next server would end for it, too, with all its partitions; its status says what a person has to do."""
    monkeypatch.setattr(partition_driver, "_UNUSABLE_RETRY_S", 0)
    store, told = Unusable(lambda mine: None), list[str]()
    store.while_it_lasts = lambda: told.append(drivers[-1].hindrance())
    drivers: list[PartitionDriver] = []
    begin = PartitionDriver.__init__

    def noted(self: PartitionDriver, partition_id: int, host: Host) -> None:
        begin(self, partition_id, host)
        drivers.append(self)

    monkeypatch.setattr(PartitionDriver, "__init__", noted)
    assert _first_answer(store, monkeypatch) == RosterWritten(1, 1)
    assert "its roster in ZooKeeper cannot be used: /store/partitions/0 is not a roster" in told[-1]
    assert "ZooKeeper" not in drivers[-1].hindrance()


def test_a_twins_record_with_the_same_session_is_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    twin = Store(lambda mine: replace(mine, owner="my twin/1"))
    assert _first_answer(twin, monkeypatch) == RosterConflict(1)


@pytest.mark.parametrize("leaves", [False, True])
def test_what_a_time_leads_to_is_not_told_by_a_server_that_has_lost_the_partition_meanwhile(leaves: bool) -> None:
    """It knows of no commit any more, and all that was appended before would seem to be later."""
    bench = Bench().open()
    bench.mount()
    bench.append(0, free(), free(), free())
    bench.settle()

    async def find_time(question: FindTime) -> int:
        if leaves:
            bench.step(Unassigned("moved"))
        return 2

    async def ask() -> int:
        links: Any = dict.fromkeys(range(3), SimpleNamespace(find_time=find_time))
        parts = {"queue": Pool(1), "retained": RetainedMemory(1), "links": links}
        host: Any = SimpleNamespace(config=ServerConfig(), incarnation="me", **parts)
        host.watchdog, host.measures, host.fatal = Watchdog(), Measures(), pytest.fail
        driver = PartitionDriver(0, cast(Host, host))
        driver.machine = bench.partition
        return await driver.first_id_at(1_700_000_000_000)

    if not leaves:
        assert asyncio.run(ask()) == 2
        return
    with pytest.raises(ConnectionError, match="has left this server"):
        asyncio.run(ask())
