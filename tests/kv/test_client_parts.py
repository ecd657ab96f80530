"""What the key/value client is made of, piece by piece; where it finds its actors; what it sees of a log."""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import pickle
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import pytest

from tests.kv.cancelling import cancelled_after
from tests.kv.conftest import LogPlace
from tests.kv.fake_cluster import FakeKvCluster
from tests.net.test_tls import made
from waltz_ray import compat, kv
from waltz_ray.client import followers
from waltz_ray.client.aio import AsyncWaltzClient
from waltz_ray.client.client import WaltzClient
from waltz_ray.client.codecs import JsonCodec
from waltz_ray.client.io_thread import IoThread
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.memory import MemoryZooKeeper, MemoryZooKeeperServer
from waltz_ray.coordination.unit_store import UnitStore
from waltz_ray.errors import (
    ClientClosed,
    ConfigError,
    DecodingFailed,
    InvalidInput,
    InvariantBroken,
    KvNotReady,
    SpaceGone,
    SpaceNotFound,
    WireError,
)
from waltz_ray.finding.find import FoundCluster
from waltz_ray.kv.client import watching
from waltz_ray.kv.client.aio import AsyncKvClient
from waltz_ray.kv.client.client import KvClient
from waltz_ray.kv.client.connecting import MemberDirectory
from waltz_ray.kv.client.engine import ByteRoom
from waltz_ray.kv.client.errands import GetErrand, GetJob
from waltz_ray.kv.client.items import KvUpdate
from waltz_ray.kv.client.members import Members
from waltz_ray.kv.client.request_numbers import RequestNumbers
from waltz_ray.kv.client.scanning import covered
from waltz_ray.kv.client.settings import KvClientConfig
from waltz_ray.kv.client.table import RouteTable
from waltz_ray.kv.client.values import Entry
from waltz_ray.kv.client.watching import ItemDeleted, ItemExpired, ItemSet, ItemTouched, LogsOfWatches
from waltz_ray.kv.messages import FailCode, FailInfo, Hashmask, Hashmasks, LockNative, Put, Scanned
from waltz_ray.kv.model import BARRIER, Delete, Expired, ItemKey, Record, Set, Several, Touch, ValueType
from waltz_ray.kv.placement import BucketSplitting
from waltz_ray.kv.records import encode_record, header_of
from waltz_ray.kv.routing import fnv1a_32
from waltz_ray.net.tls import server_context
from waltz_ray.protocol.ids import Endpoint

# ---- the table


def test_the_table_grows_with_the_mask() -> None:
    """O05, O16, O17: each new entry is what its coarser bucket was, then the announcement is applied."""
    table = RouteTable()
    table.announced("a:1", Hashmasks(0xF, ((2, 0), (3, 0), (4, 1))))
    assert [table.owner(bucket) for bucket in (0x52, 3, 4)] == ["a:1", "a:1", None]
    table.changed("b:1", Hashmask(0xFF, 0x52, 0))
    assert table.mask == 0xFF
    assert [table.owner(key) for key in (0x52, 0x42, 0x152, 0x53, 0x54)] == ["b:1", "a:1", "b:1", "a:1", None]
    table.announced("c:1", Hashmasks(0xFFF, ()))
    assert [table.owner(key) for key in (0x552, 0x542)] == ["b:1", "a:1"]


def test_who_has_an_older_mask_is_split_in_the_table() -> None:
    """O15."""
    table = RouteTable()
    table.changed("b:1", Hashmask(0xFF, 0x01, 0))
    table.announced("a:1", Hashmasks(0xF, ((2, 0),)))
    assert table.mask == 0xFF
    assert [bucket for bucket, owner in enumerate(table.owners()) if owner == "a:1"] == [*range(2, 0x100, 16)]
    table.announced("a:1", Hashmasks(0xF, ()))  # has no others
    assert set(table.owners()) == {None, "b:1"}
    table.changed("a:1", Hashmask(0xFF, 0x01, -1))  # it never had that
    assert table.owner(1) == "b:1"
    table.changed("b:1", Hashmask(0xFF, 0x01, 1))  # only as a backup
    assert table.owner(1) is None


@pytest.mark.parametrize(("mask", "bucket"), [(0x7, 1), (0xFFFF, 1), (0xF, 16)])
def test_masks_and_buckets_that_there_are_not(mask: int, bucket: int) -> None:
    with pytest.raises(WireError, match="there is no bucket"):
        RouteTable().announced("a:1", Hashmasks(mask, ((bucket, 0),)))


def test_what_is_said_of_one_bucket() -> None:
    table = RouteTable()
    table.redirected(0x123, "a:1")
    table.doubted(0x123, "b:1")
    assert table.owner(3) == "a:1"
    table.doubted(0x123, "a:1")
    assert table.owner(3) is None


def test_a_scan_counts_only_if_every_bucket_is_spoken_for() -> None:
    def answer(mask: int, *buckets: int) -> Scanned:
        return Scanned(mask, buckets, False, 0, ())

    assert covered(5, 16, [answer(0xF, 5)])
    assert not covered(5, 16, [answer(0xF, 4)])
    assert not covered(5, 16, [])
    assert covered(1, 4, [answer(0xF, 1, 5), answer(0xF, 9, 13)])
    assert not covered(1, 4, [answer(0xF, 1, 5), answer(0xF, 9)])
    fine = [bucket for bucket in range(0x100) if bucket & 15 == 9 or bucket & 15 == 13]
    assert covered(1, 4, [answer(0xF, 1, 5), answer(0xFF, *fine)])
    assert not covered(1, 4, [answer(0xF, 1, 5), answer(0xFF, *fine[1:])])


# ---- numbers, room, settings


def test_settled_is_below_the_lowest_open_number() -> None:
    numbers = RequestNumbers(7)
    assert (numbers.take(3), numbers.take()) == (1, 4)
    for sequence, settled in ((2, 1), (1, 3), (4, 3), (3, 5)):
        numbers.settle(sequence)
        assert numbers.settled == settled
    assert numbers.unsettled == 0
    with pytest.raises(InvariantBroken):
        numbers.settle(3)


@pytest.mark.parametrize("takes_ms", [0.1, 0.4, 0.6, 1.7])
def test_an_item_that_is_updated_all_the_time_lives_as_long_as_it_was_to(
    takes_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an actor's clock, in whole milliseconds, and the client's, which began at another time."""

    class Items:
        deadline_ms, passed_ms = 1_000, 0.0

        def now(self) -> float:
            return 100.00037 + self.passed_ms / 1000

        async def item_asked(self, name: str, timeout: float) -> tuple[Entry, float]:
            return Entry(0, 1, (self.deadline_ms - int(self.passed_ms)) / 1000), self.now()

        async def cas(self, name: str, value: int, version: int, expires: float, timeout: float) -> int:
            self.deadline_ms = int(self.passed_ms) + round(expires * 1000)
            return 2

    async def slept(seconds: float) -> None:
        items.passed_ms += 1000 * seconds

    async def run() -> None:
        while items.passed_ms < min(items.deadline_ms, 5_000):
            update = KvUpdate(items, items, ("n", None, None), 300.0)
            await update.read()
            items.passed_ms += takes_ms
            await update.write(1)

    items: Any = Items()
    monkeypatch.setattr(asyncio, "sleep", slept)
    asyncio.run(run())
    assert 990 < items.passed_ms < 1_010


def test_an_update_may_take_as_long_as_any_call() -> None:
    """Though the clock's time and 300 s, less the clock's time, may be a little more than that."""

    class Items:
        def __init__(self) -> None:
            self.now_s = 4_000.0
            self.timeouts: list[float] = []

        def now(self) -> float:
            return self.now_s

        async def item_asked(self, name: str, timeout: float) -> tuple[None, float]:
            self.timeouts.append(timeout)
            return None, self.now_s

        async def cas(self, name: str, value: int, version: int, expires: None, timeout: float) -> int:
            self.timeouts.append(timeout)
            return 2

    async def run() -> None:
        update = KvUpdate(items, items, ("n", 0, None), 300.0)
        await update.read()
        assert await update.write(1)

    items: Any = Items()
    while (items.now_s + 300.0) - items.now_s <= 300.0:
        items.now_s = math.nextafter(items.now_s, math.inf)
    asyncio.run(run())
    assert items.timeouts == [300.0, 300.0]


def test_who_comes_first_has_room_first() -> None:
    async def run() -> None:
        room, had = ByteRoom(10), []

        async def take(size: int) -> None:
            await room.take(size)
            had.append(size)

        tasks = []
        for size in (8, 7, 1, 2, 50):
            tasks.append(asyncio.ensure_future(take(size)))
            await asyncio.sleep(0)
        assert had == [8]  # the small ones do not overtake
        tasks[1].cancel()
        await asyncio.sleep(0)
        room.give_back(8)
        await asyncio.wait(tasks[:4])
        assert had == [8, 1, 2]
        room.give_back(3)
        await tasks[4]
        assert had == [8, 1, 2, 50]  # one alone may have more

    asyncio.run(run())


def test_who_gives_up_waiting_for_room_is_not_in_the_way_of_others() -> None:
    async def run() -> None:
        room = ByteRoom(10)
        await room.take(8)
        waiting = [asyncio.ensure_future(room.take(size)) for size in (7, 1)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.wait_for(waiting[1], 10)
        room.give_back(9)
        assert room.take_at_once(10)

    asyncio.run(run())


@pytest.mark.parametrize(
    "wrong", [{"timeout_s": 0}, {"timeout_s": 301}, {"outstanding_bytes": 1}, {"max_frame_bytes": 0}]
)
def test_settings_have_bounds(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        KvClientConfig(**wrong)


def test_nobody_loads_a_client_who_does_not_use_it() -> None:
    text = """
import sys
import waltz_ray.kv.keeper
light = [name for name in ("asyncio", "kazoo", "ray", "lmdb", "waltz_ray.client") if name in sys.modules]
import waltz_ray.kv as kv
kv.connect, kv.KvClient, kv.ItemSet
print(light, [name for name in ("kazoo", "ray", "lmdb") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "[] []\n"
    assert all(getattr(kv, name) is not None for name in kv.__all__)


# ---- cancelling


def test_who_waits_for_a_lock_keeps_no_write_from_being_settled() -> None:
    """Else its owner would remember all that come meanwhile, and in the end take no more."""

    async def run(cluster: FakeKvCluster) -> None:
        place = cluster.place()
        async with AsyncKvClient(place) as items, AsyncKvClient(place) as other, other.lock("leader"):
            waiting = asyncio.ensure_future(items.lock("leader", wait=60).acquire())
            while not any(isinstance(c, LockNative) and c.wait_ms > 1000 for a in cluster.actors for c in a.seen):
                await asyncio.sleep(0.005)
            for number in range(3):
                await items.set(f"n{number}", number)
            waiting.cancel()
            await asyncio.wait([waiting])
        puts = [command for actor in cluster.actors for command in actor.seen if isinstance(command, Put)]
        assert sorted((put.sequence, put.settled) for put in puts) == [(1, 1), (2, 2), (3, 3)]

    with FakeKvCluster() as cluster:
        asyncio.run(run(cluster))


def test_what_is_cancelled_leaves_nothing_behind() -> None:
    """A write is not repeated, its number is settled; a lock that is given all the same is given back."""

    async def run(cluster: FakeKvCluster) -> None:
        async with AsyncKvClient(cluster.place()) as items:
            await items.set("ann", 1)
            engine = items._started_engine()
            cluster.move(fnv1a_32(b"ann") & 15, -1)
            writing = asyncio.ensure_future(items.set("ann", 2))
            async with compat.timeout(20):
                while engine.numbers.unsettled != 1:
                    await asyncio.sleep(0)
            writing.cancel()
            await asyncio.wait([writing])
            assert engine.numbers.unsettled == 0
            async with items.lock("leader"):
                waiting = asyncio.ensure_future(items.lock("leader", wait=5).acquire())
                await asyncio.sleep(0.05)
                waiting.cancel()
                await asyncio.wait([waiting])
            async with items.lock("leader", wait=2) as lock:  # it had been given to who was cancelled, for a moment
                assert lock.code
            async with compat.timeout(5):  # it may be given after that, and has no number before it is given back
                while engine.lock_numbers.unsettled or cluster.state.locks:
                    await asyncio.sleep(0.005)

    with FakeKvCluster() as cluster:
        asyncio.run(run(cluster))
        assert cluster.state.items[b"", b"ann"].version == 1
        assert cluster.state.locks == {}


def test_on_another_loop_nothing_is_sent() -> None:
    """It was, and whoever awaited it was told of a future of another loop."""

    async def elsewhere(items: AsyncKvClient) -> None:
        calls = (items.set("ann", 2), items.get("ann"), items.count(), items.lock("leader").acquire(), items.close())
        for call in calls:
            with pytest.raises(InvalidInput, match="belongs to the loop"):
                await call

    async def run(cluster: FakeKvCluster) -> None:
        async with AsyncKvClient(cluster.place()) as items:
            await items.set("ann", 1)
            await asyncio.to_thread(asyncio.run, elsewhere(items))
            assert await items.get("ann") == 1

    with FakeKvCluster() as cluster:
        asyncio.run(run(cluster))
        assert cluster.state.locks == {}


def test_what_a_client_has_beside_its_loop_is_let_go_of_when_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[object] = []
    with FakeKvCluster() as cluster:
        place = cluster.place()
        directory = place.directory()
        monkeypatch.setattr(directory, "close", lambda: closed.append(directory))
        monkeypatch.setattr(place, "directory", lambda: directory)

        async def begun() -> AsyncKvClient:
            items = AsyncKvClient(place)
            await items.start()
            await items.set("ann", 1)
            return items

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # its sockets, which went with the loop
            items = asyncio.run(begun())
            asyncio.run(items.close())
            gc.collect()
        assert closed == [directory]


@pytest.mark.parametrize("turns", [1, 2, 3, 4])
def test_a_lock_whose_release_is_cancelled_is_given_back_all_the_same(turns: int) -> None:
    """Its lease may be a day."""

    async def run(cluster: FakeKvCluster) -> None:
        async with AsyncKvClient(cluster.place()) as items:
            lock = items.lock("leader", lease=86400)
            await lock.acquire()
            await cancelled_after(turns, lock.release())
            async with items.lock("leader", wait=5) as again:
                assert again.code

    with FakeKvCluster() as cluster:
        asyncio.run(run(cluster))


@pytest.mark.parametrize("late", [False, True])
def test_a_lock_that_comes_when_who_waits_for_it_is_interrupted_is_given_back(
    late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be renewed for as long as the process lives. ``late``: it was there already."""

    def interrupted(future: Future[int]) -> int:
        if late:
            future.result(10)
        raise KeyboardInterrupt

    with FakeKvCluster() as cluster, KvClient(cluster.place()) as items:
        lock = items.lock("leader", lease=86400)
        with monkeypatch.context() as patched:
            patched.setattr(IoThread, "result", staticmethod(interrupted))
            with pytest.raises(KeyboardInterrupt):
                lock.acquire()
        with items.lock("leader", wait=5) as again:
            assert again.code
        with pytest.raises(InvalidInput, match="is not had"):
            lock.release()


def test_a_forked_child_has_no_part_in_what_its_parent_has_begun() -> None:
    """It leaves a `with` of a lock, and a scan, when it ends: neither waits for threads that it has not, nor speaks
    over the parent's connections."""
    text = """
import os, signal, sys
from tests.kv.fake_cluster import FakePlace
from waltz_ray.errors import ClientClosed
from waltz_ray.kv.client.client import KvClient
with KvClient(FakePlace(sys.argv[1:])) as kv:
    kv.set_many({f"n{n}": n for n in range(1000)})
    scanned = kv.scan("n")
    next(scanned)
    with kv.lock("leader") as lock:
        child = os.fork()
        if not child:
            signal.alarm(20)  # or it would wait for ever
            kv.set("child", 1)
            try:
                lock.release()
            except ClientClosed:
                scanned.close()
                sys.exit()
        assert os.waitpid(child, 0)[1] == 0
        lock.check()
    assert kv.get("child") == 1
    assert len([*scanned]) == 999
"""
    with FakeKvCluster() as cluster:
        servers = [actor.server for actor in cluster.actors]
        subprocess.run([sys.executable, "-c", text, *servers], check=True, timeout=60)


def test_a_client_of_a_forked_parent_is_one_of_its_own() -> None:
    text = """
import os, sys
from tests.kv.fake_cluster import FakePlace
from waltz_ray.kv.client.client import KvClient
kv = KvClient(FakePlace(sys.argv[1:]))
kv.set("parent", 1)
child = os.fork()
if not child:
    kv.set("child", kv.get("parent") + 1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert kv.get("child") == 2
kv.close()
"""
    with FakeKvCluster() as cluster:
        servers = [actor.server for actor in cluster.actors]
        subprocess.run([sys.executable, "-c", text, *servers], check=True, timeout=30)
        assert len(cluster.state.settled) == 2


def test_a_scan_that_is_left_is_waited_for_by_nobody() -> None:
    """In a forked child, whose parent's IO thread is not there, and behind the end of its client."""
    text = """
import os, signal, sys
from tests.kv.fake_cluster import FakePlace
from waltz_ray.kv.client.client import KvClient
sys.unraisablehook = lambda told: os._exit(7)  # it would only be printed
kv = KvClient(FakePlace(sys.argv[1:]))
kv.set_many({"a": 1, "b": 2})
found = kv.scan()
assert next(found).name == "a"
child = os.fork()
if not child:
    signal.alarm(15)  # or it would outlive the test
    del found
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert next(found).name == "b"
kv.close()
del found
"""
    with FakeKvCluster() as cluster:
        servers = [actor.server for actor in cluster.actors]
        subprocess.run([sys.executable, "-c", text, *servers], check=True, timeout=30)


def test_the_watches_of_a_forked_parent_are_the_parent_s() -> None:
    """Their connections would be waited for in the child, where the threads that have them are not."""
    text = """
import os
from waltz_ray.kv.client.watching import LogsOfWatches
class Log:
    def close(self):
        os._exit(7)
logs = LogsOfWatches()
logs.add(Log())
logs._lock.acquire()  # by another thread, as the fork found it
child = os.fork()
if not child:
    logs.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-c", text], check=True, timeout=30)


# ---- where the actors are


@pytest.fixture
def zookeeper() -> MemoryZooKeeperServer:
    server = MemoryZooKeeperServer()
    store = ClusterStore(MemoryZooKeeper(server), "demo")
    store.initialize(1, [0])
    store.spaces.create("kv", 4, "kv")
    store.spaces.mark_ready("kv")
    return server


def test_actors_are_found_where_they_register(zookeeper: MemoryZooKeeperServer) -> None:
    found, told = FoundCluster("demo", "memory"), list[Members]()
    directory = MemberDirectory(MemoryZooKeeper(zookeeper), found, "kv")
    stop = directory.watch(told.append)
    actor = MemoryZooKeeper(zookeeper)
    units = UnitStore(actor, "demo", "kv", "kv", BucketSplitting(4))
    registration = units.register(0, Endpoint("host", 7), lambda event: None, time.monotonic)
    assert directory.partitions == 4
    wait_for(lambda: told[-1:] == [["host:7"]])
    registration.cancel()
    wait_for(lambda: told[-1] == [])
    ClusterStore(actor, "demo").spaces.delete("kv", "kv")
    wait_for(lambda: isinstance(told[-1], SpaceGone))
    stop()
    directory.close()
    actor.close()


def test_spaces_that_are_none_of_ours(zookeeper: MemoryZooKeeperServer) -> None:
    found = FoundCluster("demo", "memory")
    with pytest.raises(InvalidInput, match="space 'log' of cluster 'demo' is of kind log, not kv"):
        MemberDirectory(MemoryZooKeeper(zookeeper), found, "log")
    with pytest.raises(SpaceNotFound):
        MemberDirectory(MemoryZooKeeper(zookeeper), found, "nothing")


def test_connect_finds_the_cluster(zookeeper: MemoryZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """From ZooKeeper to a value, and again from a pickle; a space without actors is waited for."""
    monkeypatch.setattr("waltz_ray.coordination.zookeeper.KazooZooKeeper", lambda hosts: MemoryZooKeeper(zookeeper))
    session = MemoryZooKeeper(zookeeper)
    units = UnitStore(session, "demo", "kv", "kv", BucketSplitting(4))
    with FakeKvCluster(partitions=4) as cluster, kv.connect("demo", zookeeper="z:1") as items:
        with pytest.raises(KvNotReady, match="no actor is connected: the space has none just now"):
            items.get("ann", timeout=0.1)
        for actor in cluster.actors:
            host, _, port = actor.server.rpartition(":")
            units.register(actor.number, Endpoint(host, int(port)), lambda event: None, time.monotonic)
        items.set("ann", 1)
        with pickle.loads(pickle.dumps(items)) as again:
            assert again.get("ann") == 1

        async def there() -> None:
            async with await kv.connect_async("demo", zookeeper="z:1") as found:
                assert await found.get("ann") == 1
            async with pickle.loads(pickle.dumps(found)) as found:
                assert [each.name async for each in found.scan()] == ["ann"]

        asyncio.run(there())
    session.close()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_read_that_an_actor_left_behind_when_it_closed_has_changed_nothing() -> None:
    """It raised KvUnknownFate, as only a write may."""
    errand, job = GetErrand(b""), GetJob(b"ann")
    errand.failed([job], FailInfo(FailCode.UNKNOWN_FATE, "the actor is closing: ask another one"), "127.0.0.1:1")
    with pytest.raises(KvNotReady, match="the actor is closing"):
        job.check("reading item", 1.0)


# ---- the log


NAME, OTHER = b"ann", b"bob"
KEY = ItemKey(0, fnv1a_32(NAME), NAME)
OF_A_MAP = ItemKey(fnv1a_32(b"users"), fnv1a_32(NAME), NAME)
RECORDS: list[Record] = [
    BARRIER,
    Set(KEY, ValueType.TEXT, b"one"),
    Set(OF_A_MAP, ValueType.TEXT, b"of a map", map_name=b"users"),
    Set(ItemKey(0, fnv1a_32(OTHER), OTHER), ValueType.TEXT, b"of another name"),
    Touch(KEY, 99),
    Expired(((OF_A_MAP, 2), (KEY, 4))),
    Several((Delete(KEY), Set(ItemKey(0, fnv1a_32(b"anna"), b"anna"), ValueType.TEXT, b"with it"))),
]
EVENTS = [
    ItemSet("ann", "one", 1, 0, 0),
    ItemTouched("ann", 4, 0, 99),
    ItemExpired("ann", 4, 0),
    ItemDeleted("ann", 6, 0),
    ItemSet("anna", "with it", 6, 0, 0),
]


def append_all(place: LogPlace) -> None:
    with place.log() as log:
        for record in RECORDS:
            log.append(0, encode_record(record), header_of(record)).result(10)


def test_watching(place: LogPlace) -> None:
    with KvClient(place) as items:
        with items.watch("an") as events:
            append_all(place)
            assert [next(events) for _ in EVENTS] == EVENTS
        with items.watch(start="earliest", map="users") as events:
            assert [next(events), next(events)] == [ItemSet("ann", "of a map", 2, 0, 0), ItemExpired("ann", 2, 0)]
        with items.watch(start={0: 4, 1: 0}) as events:
            assert next(events) == EVENTS[1]
            timer, versions = threading.Timer(0.1, events.stop), list[int]()  # ends who waits
            for event in events:
                versions.append(event.version)
                if len(versions) == 3:  # all there are
                    timer.start()
            assert versions == [4, 6, 6]
        with pytest.raises(InvalidInput, match="start is"):
            items.watch(start="now")  # type: ignore[arg-type]


def test_what_is_dropped_and_not_closed_says_so(place: LogPlace) -> None:
    """As a file does; and what was closed does not."""
    with KvClient(place) as items:
        watch = items.watch()
        with pytest.warns(ResourceWarning, match="unclosed watch of keys and values: "):
            del watch
        items.watch().stop()
    client = KvClient(place).open()
    io, core = client._shell.io, client._shell._core
    assert core is not None
    engine = core._running
    assert engine is not None
    del core, client
    with pytest.warns(ResourceWarning, match="unclosed client of keys and values: "):
        gc.collect()
    io.stop(engine.stop())


def test_a_watch_of_a_map_tells_nothing_of_another_one_with_its_hash(place: LogPlace) -> None:
    """What is set says of which map it is, what becomes of it later does not."""
    map_hash = fnv1a_32(b"costarring")
    assert map_hash == fnv1a_32(b"liquid")

    def item(name: bytes) -> ItemKey:
        return ItemKey(map_hash, fnv1a_32(name), name)

    def set_by(map_name: bytes, name: bytes) -> Set:
        return Set(item(name), ValueType.TEXT, map_name, map_name=map_name)

    written: list[Record] = [
        set_by(b"liquid", b"a"),
        set_by(b"costarring", b"b"),
        Touch(item(b"a"), 99),
        Several((Touch(item(b"b"), 99), set_by(b"liquid", b"c"))),
        Expired(((item(b"a"), 2), (item(b"b"), 3))),
        Delete(item(b"c")),
        set_by(b"costarring", b"c"),
        Delete(item(b"c")),
        set_by(b"", b"a"),  # a client of the document says no map's name: both have it
    ]
    with place.log() as log:
        for record in written:
            log.append(0, encode_record(record), header_of(record)).result(10)
    expected = [
        ItemSet("b", "costarring", 1, 0, 0),
        ItemTouched("b", 3, 0, 99),
        ItemExpired("b", 3, 0),
        ItemSet("c", "costarring", 6, 0, 0),
        ItemDeleted("c", 7, 0),
        ItemSet("a", "", 8, 0, 0),
    ]
    with KvClient(place) as items, items.watch(start="earliest", map="costarring") as events:
        assert [next(events) for _ in expected] == expected


def test_a_watch_goes_on_behind_what_cannot_be_decoded(place: LogPlace) -> None:
    """Also where it was written together with others, and where a transaction is none of the space."""
    names = (b"a", b"b", b"c", b"d")
    bad = [Set(ItemKey(0, fnv1a_32(name), name), ValueType.CODED, b"{") for name in names]
    good = [Set(ItemKey(0, fnv1a_32(name), name), ValueType.TEXT, name) for name in names]
    written: list[Record] = [bad[0], Several((good[0], bad[1], good[1])), good[2]]
    with place.log() as log:
        for record in written[:2]:
            log.append(0, encode_record(record), header_of(record)).result(10)
        log.append(0, b"no record").result(10)
        log.append(0, encode_record(written[2]), header_of(written[2])).result(10)
    there: list[Any] = [DecodingFailed, ItemSet("a", "a", 1, 0, 0), DecodingFailed, ItemSet("b", "b", 1, 0, 0)]
    there += [WireError, ItemSet("c", "c", 3, 0, 0)]

    def in_a_thread() -> Iterator[Any]:
        with KvClient(place, codec=JsonCodec()) as items, items.watch(start="earliest") as events:
            for _ in there:
                try:
                    yield next(events)
                except (DecodingFailed, WireError) as error:
                    yield type(error)

    async def on_a_loop() -> AsyncIterator[Any]:
        async with AsyncKvClient(place, codec=JsonCodec()) as items, items.watch(start="earliest") as events:
            for _ in there:
                try:
                    yield await anext(events)
                except (DecodingFailed, WireError) as error:
                    yield type(error)

    async def all_on_a_loop() -> list[Any]:
        return [each async for each in on_a_loop()]

    assert list(in_a_thread()) == there
    assert asyncio.run(all_on_a_loop()) == there


def test_a_watch_goes_on_after_who_asked_it_was_interrupted(place: LogPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its iteration ended without a word: Ctrl-C had ended a generator inside of it."""

    def interrupted(items: object, timeout: float | None = None) -> Any:
        raise KeyboardInterrupt

    with KvClient(place) as items, items.watch("an") as events:
        with monkeypatch.context() as patched:
            patched.setattr(followers, "item_of", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(events)
        append_all(place)
        assert [next(events) for _ in EVENTS] == EVENTS


@pytest.mark.parametrize(("where", "call"), [("decode_record", 2), ("value_of", 1)])
def test_who_is_interrupted_while_an_event_is_made_has_taken_nothing(
    where: str, call: int, place: LogPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, as in a codec that takes its time: the event, or all of its transaction, never came."""
    makes, calls = getattr(watching, where), itertools.count(1)

    def interrupted_once(*arguments: Any) -> Any:
        if next(calls) == call:
            raise KeyboardInterrupt
        return makes(*arguments)

    append_all(place)
    with KvClient(place) as items, items.watch("an", start="earliest") as events:
        monkeypatch.setattr(watching, where, interrupted_once)
        with pytest.raises(KeyboardInterrupt):
            next(events)
        for event in EVENTS:
            assert next(events) == event


def test_a_watch_ends_with_its_client(place: LogPlace) -> None:
    """Whoever waited for an event waited for ever, and its connection was never closed."""
    items = KvClient(place)
    events = items.watch()
    timer = threading.Timer(0.1, items.close)
    timer.start()
    with pytest.raises(ClientClosed):
        next(events)
    with pytest.raises(ClientClosed):
        items.watch()
    events.stop()


def test_no_watch_begins_while_those_of_a_client_are_closed() -> None:
    watches = LogsOfWatches()
    other, begun = cast(WaltzClient, Mock()), cast(WaltzClient, Mock())

    def close() -> None:
        with pytest.raises(ClientClosed):
            watches.add(other)

    cast(Mock, begun).close.side_effect = close
    watches.add(begun)
    watches.close()
    assert [cast(Mock, each).close.call_count for each in (begun, other)] == [1, 1]


def test_watches_that_cannot_be_closed_here_leave_their_client_open() -> None:
    watches = LogsOfWatches()
    begun, other = cast(WaltzClient, Mock()), cast(WaltzClient, Mock())
    cast(Mock, begun).close.side_effect = InvalidInput("it would wait for itself")
    watches.add(begun)
    with pytest.raises(InvalidInput):
        watches.close()
    assert watches.add(other) is other


def test_a_watch_on_a_loop_ends_with_its_client(place: LogPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that begins just then."""
    connect = place.log_async

    async def run() -> None:
        closed = asyncio.Event()

        async def slow() -> AsyncWaltzClient:
            await closed.wait()
            return await connect()

        async with AsyncKvClient(place) as items:
            watch = items.watch()
            await watch.begin()
            waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(anext(watch))]
            monkeypatch.setattr(place, "log_async", slow)
            waiting.append(asyncio.ensure_future(items.watch().begin()))
            await asyncio.sleep(0)  # it is under way
        closed.set()
        for each in (*waiting, asyncio.ensure_future(anext(watch))):
            with pytest.raises(ClientClosed):
                await asyncio.wait_for(each, 10)

    asyncio.run(run())


def test_watching_on_a_loop(place: LogPlace) -> None:
    async def run() -> None:
        async with AsyncKvClient(place) as items:
            async with items.watch("an") as events:
                await asyncio.to_thread(append_all, place)
                assert [await anext(events) for _ in EVENTS] == EVENTS
            found: AsyncIterator[object] = items.watch("an", start="earliest")
            assert await anext(found) == EVENTS[0]
            await found.stop()  # type: ignore[attr-defined]

    asyncio.run(run())


def test_a_watch_on_a_loop_begins_once_and_not_after_its_stop(place: LogPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks that asked first had a connection each, of which one was closed only with the client; one that was
    stopped before it had begun began all the same."""
    connect, made = place.log_async, list[AsyncWaltzClient]()

    async def run() -> None:
        go_on = asyncio.Event()

        async def slow() -> AsyncWaltzClient:
            await go_on.wait()
            made.append(await connect())
            return made[-1]

        monkeypatch.setattr(place, "log_async", slow)
        async with AsyncKvClient(place) as items:
            watch, stopped, late = items.watch(), items.watch(), items.watch()
            beginning = [asyncio.ensure_future(watch.begin()) for _ in range(2)]
            asked = asyncio.ensure_future(anext(stopped))
            await asyncio.sleep(0)  # they are under way
            await stopped.stop()
            go_on.set()
            await asyncio.gather(*beginning)
            with pytest.raises(StopAsyncIteration):
                await asyncio.wait_for(asked, 10)
            assert len(made) == 2
            await late.stop()
            async for _ in late:
                raise AssertionError("it was stopped")
            assert len(made) == 2
            await watch.stop()
            assert not items._engine().watching

    asyncio.run(run())


def test_a_watch_that_was_cancelled_while_it_began_is_begun_by_the_next_who_asks(
    place: LogPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        at_a_mark, mark = asyncio.Event(), AsyncWaltzClient.server_high_water_mark

        async def never(self: AsyncWaltzClient, partition_id: int) -> int:
            at_a_mark.set()
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

        async with AsyncKvClient(place) as items:
            async with items.watch("an") as events:
                pass
            events = items.watch("an")
            monkeypatch.setattr(AsyncWaltzClient, "server_high_water_mark", never)
            asked = asyncio.ensure_future(anext(events))
            await asyncio.wait_for(at_a_mark.wait(), 10)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            monkeypatch.setattr(AsyncWaltzClient, "server_high_water_mark", mark)
            await events.begin()
            assert len(items._engine().watching) == 1
            await asyncio.to_thread(append_all, place)
            assert [await anext(events) for _ in EVENTS] == EVENTS
            await events.stop()

    asyncio.run(run())


def test_a_watch_that_is_stopped_in_the_midst_of_a_transaction_gives_no_more_of_it(place: LogPlace) -> None:
    together = next(number for number, record in enumerate(RECORDS) if isinstance(record, Several))

    async def on_a_loop() -> None:
        async with AsyncKvClient(place) as items, items.watch("an", start="earliest") as events:
            while (await anext(events)).version != together:
                pass
            await events.stop()
            assert [event async for event in events] == []

    append_all(place)
    with KvClient(place) as items, items.watch("an", start="earliest") as events:
        while next(events).version != together:
            pass
        events.stop()
        assert [*events] == []
    asyncio.run(on_a_loop())


def test_who_is_cancelled_while_he_asks_a_watch_has_taken_nothing(place: LogPlace) -> None:
    """As by the time-out of ``asyncio.wait_for``."""

    async def run() -> None:
        async with AsyncKvClient(place) as items, items.watch("an") as events:
            for turns in range(6):
                asking = asyncio.ensure_future(anext(events))
                for _ in range(turns):
                    await asyncio.sleep(0)
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking
            await asyncio.to_thread(append_all, place)
            assert [await anext(events) for _ in EVENTS] == EVENTS

    asyncio.run(run())


# ---- TLS


def test_over_tls_to_ports_whose_certificate_is_trusted(tmp_path: Path) -> None:
    own, other = made(tmp_path / "own"), made(tmp_path / "other")
    with FakeKvCluster(1, tls=server_context(own.path, own.key)) as cluster:
        with KvClient(cluster.place(), KvClientConfig(tls=True, tls_authority=own.path)) as items:
            items.set("colour", "red")
            assert items.get("colour") == "red"
        for wrong in (KvClientConfig(tls=True, tls_authority=other.path, timeout_s=0.5), KvClientConfig(timeout_s=0.5)):
            with KvClient(cluster.place(), wrong) as items, pytest.raises(KvNotReady):
                items.get("colour")
    with pytest.raises(ConfigError, match="tls is off"):
        KvClientConfig(tls_authority="/a.pem")
