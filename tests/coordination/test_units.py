"""Ownership in ZooKeeper: who is registered under which incarnation, what renews a lease, the table."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.coordination.conftest import Harness, Seen
from tests.coordination.test_memory_faults import DyingZooKeeper
from tests.protocol.units import Halving, Slice
from waltz_ray.coordination.api import ZooKeeper
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.coordination.unit_lease import agreed_session_ms, confirmed_incarnations, keep_lease
from waltz_ray.coordination.unit_store import UnitMember, UnitRegistration, UnitStore, incarnations
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import CoordinationError, VersionConflict, ZooKeeperUnreachable
from waltz_ray.protocol.arrangement import arrange, first_table
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.ownership_types import LeaseConfirmed, RegisteredAs, UnitPlace, UnitTable, Unregistered

HERE, THERE = Endpoint("127.0.0.1", 5000), Endpoint("127.0.0.1", 6000)
SPLITTING = Halving(2, 8)
TABLE = UnitTable(2, {Slice(2, 0): UnitPlace(0, 7, 1), Slice(2, 1): UnitPlace(None, 3, None)})


def store_of(zookeeper: ZooKeeper, root: str = "c") -> UnitStore[Slice]:
    return UnitStore(zookeeper, root, "kv", "orders", SPLITTING)


def members_path(root: str) -> str:
    return f"/{root}/store/units/kv/orders/members"


# ---- both kinds of ZooKeeper


def test_the_table_is_written_where_it_was_read(harness: Harness, root: str) -> None:
    store, other = store_of(harness.client(), root), store_of(harness.client(), root)
    assert store.table() == (None, -1)
    seen: Seen[UnitTable[Slice] | None] = Seen()
    watch = other.watch_table(seen)
    assert seen.until(lambda table: True) is None
    assert store.set_table(TABLE, -1) == 0
    assert seen.until(lambda table: table is not None) == TABLE
    assert other.table() == (TABLE, 0)
    with pytest.raises(VersionConflict):
        other.set_table(TABLE, -1)
    finer = arrange(SPLITTING, TABLE, [0, 1, 2], fewest=2)
    assert other.set_table(finer, 0) == 1
    assert seen.until(lambda table: table != TABLE) == finer
    with pytest.raises(VersionConflict):
        store.set_table(TABLE, 0)
    watch.cancel()


def test_who_is_registered_is_seen_and_has_another_incarnation_each_time(harness: Harness, root: str) -> None:
    client, watcher = harness.client(), harness.client()
    seen: Seen[dict[int, UnitMember]] = Seen()
    watch = store_of(watcher, root).watch_members(seen)
    told: Seen[RegisteredAs | Unregistered] = Seen()
    registration = store_of(client, root).register(3, HERE, told, lambda: 5.0)
    first = told.until(lambda event: isinstance(event, RegisteredAs))
    assert isinstance(first, RegisteredAs)
    assert seen.until(bool) == {3: UnitMember(HERE, first.incarnation)}
    assert registration.contact() == LeaseConfirmed(first.incarnation, 5.0)
    harness.expire(client)
    assert told.until(lambda event: True) == Unregistered()
    second = told.until(lambda event: isinstance(event, RegisteredAs))
    assert isinstance(second, RegisteredAs)
    assert second != first
    now = seen.until(lambda found: incarnations(found) == {3: second.incarnation})
    assert store_of(watcher, root).confirmed_members() == now
    assert registration.contact() == LeaseConfirmed(second.incarnation, 5.0)
    registration.leave()
    assert seen.until(lambda found: found[3].leaving)
    registration.cancel()
    assert seen.until(lambda found: not found) == {}
    watch.cancel()


def test_a_registration_that_was_removed_is_made_anew(harness: Harness, root: str) -> None:
    store, told = store_of(harness.client(), root), Seen[RegisteredAs | Unregistered]()
    registration = store.register(0, HERE, told, lambda: 0.0)
    first = told.until(lambda event: isinstance(event, RegisteredAs))
    assert isinstance(first, RegisteredAs)
    store_of(harness.client(), root).remove(0, "a later one")
    assert store.members()[0].incarnation == first.incarnation
    store_of(harness.client(), root).remove(0, first.incarnation)
    assert told.until(lambda event: True) == Unregistered()
    second = told.until(lambda event: True)
    assert isinstance(second, RegisteredAs)
    assert incarnations(store.members()) == {0: second.incarnation}
    registration.cancel()


# ---- what only the twin can stage


class Rig:
    """An actor's registration, on a client that can be cut off."""

    def __init__(self, client: MemoryZooKeeper | None = None) -> None:
        self.server = client._server if client is not None else MemoryZooKeeperServer()
        self.client = client or self.server.client()
        self.told: list[RegisteredAs | Unregistered] = []
        self.now = 0.0
        self.registration: UnitRegistration = self.register()

    def register(self) -> UnitRegistration:
        return store_of(self.client).register(0, HERE, self.told.append, lambda: self.now)

    @property
    def last(self) -> str:
        (*_, found) = [event.incarnation for event in self.told if isinstance(event, RegisteredAs)]
        return found


def test_a_successor_waits_until_the_node_of_his_predecessor_has_gone() -> None:
    """His lease may be good until then."""
    rig = Rig()
    rig.server.disconnect(rig.client)
    successor: list[RegisteredAs | Unregistered] = []
    late = store_of(rig.server.client()).register(0, THERE, successor.append, lambda: 0.0)
    assert (successor, late.incarnation, late.contact()) == ([], None, None)
    rig.server.expire(rig.client.session_id)
    assert successor == [RegisteredAs(late.incarnation or "")]
    # who comes back late neither disturbs him nor has a lease
    rig.server.reconnect(rig.client)
    assert rig.told[1:] == [Unregistered()]
    assert rig.registration.contact() is None
    assert late.contact() is not None
    assert store_of(rig.client).members() == {0: UnitMember(THERE, late.incarnation or "")}


def test_who_is_cut_off_has_no_new_lease_and_no_other_incarnation() -> None:
    rig = Rig()
    rig.server.disconnect(rig.client)
    with pytest.raises(ZooKeeperUnreachable):
        rig.registration.contact()
    rig.server.reconnect(rig.client)
    rig.now = 9.0
    assert rig.registration.contact() == LeaseConfirmed(rig.last, 9.0)
    assert len(rig.told) == 1


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("write", range(6))
def test_a_lost_answer_to_any_write(write: int, after: bool) -> None:
    """Creations and contacts: never two incarnations at once, and a lease only for the one that is there."""
    server = MemoryZooKeeperServer()
    store_of(server.client()).confirmed_members()  # the parents are there
    rig_client = DyingOnce(server, write, after)
    rig = Rig(rig_client)
    for now in (1.0, 2.0, 3.0, 4.0, 5.0):
        rig.now = now
        try:
            found = rig.registration.contact()
        except ZooKeeperUnreachable:
            server.disconnect(rig_client)
            server.reconnect(rig_client)
            continue
        if rig_client.cut:  # the creation was what was lost: the watch is called again after a reconnect
            server.disconnect(rig_client)
            server.reconnect(rig_client)
            rig_client.cut = False
        if found is not None:
            assert found == LeaseConfirmed(store_of(rig_client).members()[0].incarnation, now)
    assert rig.registration.contact() == LeaseConfirmed(rig.last, 5.0)
    assert incarnations(store_of(rig_client).members()) == {0: rig.last}


class DyingOnce(DyingZooKeeper):
    """Its n-th write is lost, or its answer; the next ones are not."""

    cut = False

    def _step(self, write):  # type: ignore[no-untyped-def]
        try:
            return super()._step(write)
        except ZooKeeperUnreachable:
            self._left, self.cut = -1, True
            raise


def test_a_deleted_node_is_noticed_by_the_contact_and_made_anew() -> None:
    rig = Rig()
    rig.server.auto_pump = False  # the watch has not told yet
    first = rig.last
    rig.server.client().delete(members_path("c") + "/0")
    assert rig.registration.contact() is None
    assert rig.told[1:] == [Unregistered(), RegisteredAs(rig.last)]
    assert rig.last != first
    rig.server.pump()
    assert len(rig.told) == 3


def test_who_says_that_he_leaves_says_so_again_in_his_next_session() -> None:
    rig = Rig()
    rig.registration.leave()
    rig.registration.leave()
    rig.server.expire(rig.client.session_id)
    members = store_of(rig.server.client()).members()
    assert members == {0: UnitMember(HERE, rig.last, leaving=True)}


def test_a_removal_that_meets_somebody_alive_removes_nothing() -> None:
    rig = Rig()

    class Late(MemoryZooKeeper):
        def delete(self, path: str, version: int = -1) -> None:
            rig.registration.contact()  # it comes in between
            super().delete(path, version)

    store_of(Late(rig.server)).remove(0, rig.last)
    assert incarnations(store_of(rig.client).members()) == {0: rig.last}
    store_of(rig.client).remove(7, "x")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b'{"version": 1, "level": 2, "places": [[0, 1, null]]}',
        b'{"version": 1, "level": 2, "places": [[0, 1, null], [true, 1, null]]}',
        b'{"version": 1, "level": 2, "places": [[0, 1, null], [1, 1, null, 4]]}',
    ],
)
def test_a_damaged_table_is_named(data: bytes) -> None:
    client = MemoryZooKeeperServer().client()
    client.create("/c/store/units/kv/orders/table", data, make_parents=True)
    with pytest.raises(CoordinationError, match="/c/store/units/kv/orders/table"):
        store_of(client).table()


def test_first_tables_make_a_round_trip() -> None:
    store = store_of(MemoryZooKeeperServer().client())
    table = first_table(SPLITTING, 1_700_000_000)
    store.set_table(table, -1)
    assert store.table() == (table, 0)


class Scarce(ThreadPoolExecutor):
    """Its first thread cannot be started."""

    def submit(self, *call: Any, **options: Any) -> Any:
        if not self.refused:
            self.refused = True
            raise RuntimeError("can't start new thread")
        return super().submit(*call, **options)

    refused = False


@pytest.mark.parametrize(("asked_ms", "agreed_ms"), [(90_000, 60_000), (10_000, 10_000), (500, 1_000)])
def test_a_lease_lasts_no_longer_than_the_session_that_the_server_agrees_to(
    zookeeper_server: str, asked_ms: int, agreed_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    zookeeper = KazooZooKeeper(zookeeper_server, asked_ms)
    try:
        assert zookeeper.session_timeout_ms == agreed_ms
        assert agreed_session_ms("kv/3", asked_ms, zookeeper.session_timeout_ms) == min(asked_ms, agreed_ms)
        told = [each.getMessage() for each in caplog.records if "agrees to sessions of 60000 ms" in each.getMessage()]
        assert bool(told) == (agreed_ms < asked_ms)
    finally:
        zookeeper.close()


def test_a_lease_is_renewed_and_members_are_read_after_a_lack_of_threads() -> None:
    """Whoever were registered without would keep its units, and serve none of them."""
    zookeeper = MemoryZooKeeper(MemoryZooKeeperServer())
    zookeeper.create("/c", b"")
    store = store_of(zookeeper)

    async def run() -> LeaseConfirmed:
        registered = asyncio.Event()
        loop = asyncio.get_running_loop()

        def told(event: RegisteredAs | Unregistered) -> None:
            loop.call_soon_threadsafe(registered.set)

        registration = store.register(3, HERE, told, time.monotonic)
        await registered.wait()
        confirmed: asyncio.Future[LeaseConfirmed] = loop.create_future()

        def renewed(lease: LeaseConfirmed) -> None:
            if not confirmed.done():
                confirmed.set_result(lease)

        with Scarce(1) as thread:
            keeping = asyncio.ensure_future(keep_lease("kv/3", lambda: registration, thread, 0.1, renewed))
            keeping.add_done_callback(lambda task: task.cancelled() or confirmed.cancel())
            await asyncio.wait([confirmed], timeout=10)
            keeping.cancel()
        with Scarce(1) as thread:
            assert [*await confirmed_incarnations("kv/3", store, thread, 0.01)] == [3]
        registration.cancel()
        return confirmed.result()

    assert asyncio.run(run()).incarnation
    zookeeper.close()
