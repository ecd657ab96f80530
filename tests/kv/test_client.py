"""What both key/value clients have to keep, over actors that move, split, die, and lose answers."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.kv.any_client import AsyncKvThere
from tests.kv.fake_cluster import FakeKvCluster
from waltz_ray.client.codecs import JsonCodec
from waltz_ray.errors import (
    ClientClosed,
    DecodingFailed,
    InvalidInput,
    KvConflict,
    KvLockLost,
    KvLockTaken,
    KvNotReady,
    KvNotReplicated,
    KvUnknownFate,
)
from waltz_ray.kv.client import items, locks
from waltz_ray.kv.client.client import KvClient
from waltz_ray.kv.client.connections import KvConnections
from waltz_ray.kv.client.engine import KvEngine
from waltz_ray.kv.client.link import KvLink
from waltz_ray.kv.client.settings import KvClientConfig
from waltz_ray.kv.messages import ABSENT, FailCode, GetMany, LockNative, Opcode, Put, Renew
from waltz_ray.kv.routing import fnv1a_32
from waltz_ray.runtime.boot_clock import boot_s

MakeKv = Callable[..., Any]
NAMES = [f"name-{n:03}" for n in range(200)]


@pytest.fixture
def cluster() -> Iterator[FakeKvCluster]:
    with FakeKvCluster() as found:
        yield found


@pytest.fixture(params=["threads", "loop"])
def make(request: pytest.FixtureRequest, cluster: FakeKvCluster) -> Iterator[MakeKv]:
    made: list[Any] = []

    def client(at: FakeKvCluster = cluster, only: int | None = None, timeout_s: float = 10.0, **more: Any) -> Any:
        kind: Any = KvClient if request.param == "threads" else AsyncKvThere
        config = KvClientConfig(timeout_s, more.get("outstanding_bytes", 1 << 20))
        made.append(kind(at.place(only), config, more.get("codec")))
        return made[-1]

    yield client
    for each in made:
        each.close()


@pytest.fixture
def kv(make: MakeKv) -> Any:
    return make()


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds, the first of it, that have passed for clients beyond those of the clock."""
    now, more = KvEngine.now, [0.0]
    monkeypatch.setattr(KvEngine, "now", lambda engine: now(engine) + more[0])
    monkeypatch.setattr(locks, "boot_s", lambda: boot_s() + more[0])
    return more


def happened(cluster: FakeKvCluster) -> set[int]:
    """How often each write has happened."""
    return set(cluster.state.done.values())


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# ---- items


@pytest.mark.parametrize("value", [b"", b"\0\xff", "", "käse", 0, -(2**63), 2**63 - 1])
def test_a_value_is_read_as_it_was_written(kv: Any, value: Any) -> None:
    version = kv.set("ann", value)
    entry = kv.get_item(b"ann")
    assert (entry.value, type(entry.value), entry.version, entry.expires) == (value, type(value), version, None)


@pytest.mark.parametrize("value", [None, 1.5, True, 2**63, {"a": 1}])
def test_what_no_plain_value_is_needs_a_codec(kv: Any, make: MakeKv, value: Any) -> None:
    with pytest.raises(InvalidInput, match="codec"):
        kv.set("ann", value)
    coded = make(codec=JsonCodec())
    if value != 2**63:
        coded.set("ann", value)
        assert coded.get("ann") == value
        with pytest.raises(InvalidInput, match="was written with a codec"):
            kv.get("ann")


def test_a_value_that_cannot_be_decoded_says_where_it_is(cluster: FakeKvCluster, make: MakeKv) -> None:
    kv = make(codec=JsonCodec())
    kv.set("ann", [1])
    cluster.state.items[b"", b"ann"].data = b"{"
    with pytest.raises(DecodingFailed, match="cannot be decoded: item 'ann': ") as raised:
        kv.get("ann")
    assert raised.value.partition_id == fnv1a_32(b"ann") & 15


def test_a_scan_gives_what_is_before_and_behind_a_value_that_cannot_be_read(
    cluster: FakeKvCluster, make: MakeKv
) -> None:
    kv = make(codec=JsonCodec())
    kv.set_many({name: [name] for name in ("ann", "bob", "cid")})
    cluster.state.items[b"", b"bob"].data = b"{"
    entries = iter(kv.scan())
    assert next(entries).name == "ann"
    with pytest.raises(DecodingFailed, match="item 'bob': "):
        next(entries)
    assert [entry.name for entry in kv.scan(after="bob")] == ["cid"]


@pytest.mark.parametrize("name", ["", "x" * 481, 7, None, "\ud800"])
def test_names_that_cannot_be(kv: Any, name: Any) -> None:
    if name == "":
        kv.set(name, b"x")  # the empty name is one
        assert kv.get(name) == b"x"
    else:
        with pytest.raises(InvalidInput):
            kv.set(name, b"x")


def test_many_of_which_the_first_has_neither_a_name_nor_a_value(kv: Any) -> None:
    assert [*kv.set_many({"": b"", "a": 1})] == ["", "a"]
    assert kv.get_many(["", "a"]) == {"": b"", "a": 1}


def test_many_are_read_and_written_at_once(cluster: FakeKvCluster, kv: Any) -> None:
    until(lambda: kv.statistics()["known_buckets"] == 16)
    versions = kv.set_many({name: name.upper() for name in NAMES})
    assert sorted(versions.values()) == list(range(1, 201))
    assert kv.get_many([*NAMES, "missing"]) == {name: name.upper() for name in NAMES}
    assert kv.get_many([b"name-007", "name-007"]) == {b"name-007": "NAME-007", "name-007": "NAME-007"}
    assert kv.set_many({}) == kv.get_many([]) == {}
    commands = [command for actor in cluster.actors for command in actor.seen]
    assert sum(isinstance(command, Put) for command in commands) == 3  # one for each actor
    with pytest.raises(InvalidInput, match="twice"):
        kv.set_many({"a": 1, b"a": 2})


def test_what_was_set_is_told_of_what_was_given(kv: Any) -> None:
    """Whoever gave it may change it meanwhile: another name was said to be set, or it was a ValueError."""

    class Given(dict[str, int]):
        """Another task, or thread, changes it as soon as it has been read."""

        def items(self) -> Any:
            found = [*super().items()]
            self.clear()
            self["never given"] = 3
            return found

    assert [*kv.set_many(Given(a=1, b=2))] == ["a", "b"]
    assert kv.get_many(["a", "b", "never given"]) == {"a": 1, "b": 2}


def test_names_may_come_from_a_scan(cluster: FakeKvCluster) -> None:
    """They were gone through on the thread that brings its pages."""
    with KvClient(cluster.place()) as items:
        items.set_many({"a": 1, "b": 2, "other": 3})
        assert items.get_many(entry.name for entry in items.scan("") if len(entry.name) == 1) == {"a": 1, "b": 2}


def test_a_codec_that_exits_ends_no_other_client(cluster: FakeKvCluster, caplog: pytest.LogCaptureFixture) -> None:
    """It is called on the thread of all clients of the process."""

    class Exits(JsonCodec):
        def encode(self, value: Any) -> bytes:
            raise SystemExit(3)

    with KvClient(cluster.place()) as other, KvClient(cluster.place(), codec=Exits()) as items:
        other.set("ann", 1)
        for _ in range(2):
            with pytest.raises(SystemExit):
                items.set("ann", {})
        assert other.get("ann") == items.get("ann") == 1
    assert "SystemExit" in caplog.text


def test_deleting_and_expiring(kv: Any) -> None:
    assert kv.delete("ann") is False
    assert kv.expire("ann", 5) is False
    kv.set("ann", 1)
    assert kv.expire("ann", 60) is True
    assert 50 < kv.get_item("ann").expires <= 60
    assert kv.expire("ann", None) is True
    assert kv.get_item("ann").expires is None
    assert kv.delete("ann") is True
    assert kv.get("ann", "gone") == "gone"
    kv.set("bob", 1, expires=0.05)
    time.sleep(0.08)
    assert kv.get("bob") is None
    for bad in (0, -1, True, "1"):
        with pytest.raises(InvalidInput, match="expires"):
            kv.set("bob", 1, expires=bad)


def test_expected_versions(kv: Any) -> None:
    first = kv.set("ann", 1, expected=ABSENT)
    with pytest.raises(KvConflict, match=f"to be at version absent, but it is at {first}"):
        kv.set("ann", 2, expected=ABSENT)
    second = kv.cas("ann", 2, first)
    assert second > first
    assert kv.cas("ann", 3, first) is None
    with pytest.raises(KvConflict):
        kv.delete("ann", expected=first)
    assert kv.delete("ann", expected=second) is True
    with pytest.raises(KvConflict, match="there is none"):
        kv.set("ann", 4, expected=second)
    assert kv.get("ann") is None
    for bad in (-1, ABSENT - 1, "1", True):
        with pytest.raises(InvalidInput, match="expected"):
            kv.set("ann", 1, expected=bad)


@pytest.mark.parametrize(
    "wrong", [None, 1, 1.5, b"ann", "ann", object(), "x" * 100_000], ids=lambda wrong: repr(wrong)[:20]
)
def test_what_is_not_several_is_refused_at_once(kv: Any, wrong: Any) -> None:
    kv.set("n", 1)
    for call in (kv.get_many, kv.set_many, lambda amount: kv.add("n", amount if amount != 1 else 1.5)):
        with pytest.raises(InvalidInput) as caught:
            call(wrong)
        assert len(str(caught.value)) < 300
    assert kv.get("n") == 1


def test_who_compares_says_with_what(kv: Any) -> None:
    """None is what ``set`` takes for whatever is there: who has read that an item is not there, and hands on that None,
    would overwrite what has come since."""
    kv.set("ann", 1)
    with pytest.raises(InvalidInput, match="or ABSENT, not None"):
        kv.cas("ann", 2, None)
    assert kv.get("ann") == 1


def test_updates_of_many_at_once_are_all_in_it(make: MakeKv, kv: Any) -> None:
    clients = [make() for _ in range(3)]
    threads = [threading.Thread(target=lambda c=c: [c.add("n") for _ in range(20)]) for c in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kv.get("n") == 60
    kv.set("s", "x", expires=60)
    assert kv.update("s", lambda value: value + "y") == "xy"
    assert 50 < kv.get_item("s").expires <= 60  # it keeps what is left of its life
    with pytest.raises(InvalidInput, match="is no integer but str"):
        kv.add("s")
    with pytest.raises(ZeroDivisionError):
        kv.update("n", lambda value: 1 // 0)


def test_what_is_updated_does_not_live_longer_for_it(kv: Any, passed: list[float]) -> None:
    """The time that the function takes is a part of its life."""

    def slow(value: int) -> int:
        passed[0] += 50
        return value + 1

    kv.set("s", 0, expires=60)
    assert kv.update("s", slow, timeout=300) == 1
    assert 5 < kv.get_item("s").expires <= 10
    assert kv.update("s", slow, expires=60, timeout=300) == 2
    assert 50 < kv.get_item("s").expires <= 60
    kv.set("s", 0, expires=60)
    slow_twice = iter((80, 0))  # the first time it is over by the time when it would be written

    def sometimes_slow(value: int) -> int:
        passed[0] += next(slow_twice)
        return value + 1

    assert kv.update("s", sometimes_slow, timeout=300) == 1
    assert next(slow_twice, None) is None
    assert kv.get_item("s").expires <= 60


def test_what_an_update_waits_for_its_read_is_no_part_of_what_was_left_then(
    cluster: FakeKvCluster, kv: Any, passed: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    news = KvConnections.news

    async def long(connections: KvConnections, until_s: float) -> None:
        await news(connections, until_s)
        passed[0] += 40

    kv.set("s", 0, expires=60)
    cluster.actors[cluster.owner(b"s")].faults.append(FailCode.NOT_READY)
    monkeypatch.setattr(KvConnections, "news", long)
    assert kv.add("s", 1, timeout=300) == 1
    assert passed[0] >= 40
    assert 50 < kv.get_item("s").expires <= 60


def test_a_map_has_names_of_its_own(kv: Any) -> None:
    users, other = kv.map("users"), kv.map(b"other")
    users.set("ann", 1)
    other.set("ann", 2)
    kv.set("ann", 3)
    assert (users.get("ann"), other.get("ann"), kv.get("ann")) == (1, 2, 3)
    assert [found.name for found in users.scan()] == ["ann"]
    assert users.name == "users"
    with pytest.raises(InvalidInput, match="map's name"):
        kv.map("x" * 256)


def test_fullwait_tells_that_it_is_committed_without_a_copy(kv: Any) -> None:
    kv.set("ann", b"both", fullwait=True)
    with pytest.raises(KvNotReplicated, match="is committed") as raised:
        kv.set("ann", b"alone", fullwait=True)
    assert kv.get_item("ann") == (b"alone", raised.value.version, None)


# ---- scans


def test_a_scan_has_everything_in_order(kv: Any) -> None:
    kv.set_many({name: n for n, name in enumerate(NAMES)})
    kv.set_many({"other": 1, b"\xff\xfe": 2})
    assert [(found.name, found.value) for found in kv.scan("name-")] == [(name, n) for n, name in enumerate(NAMES)]
    assert [found.name for found in kv.scan()] == [*NAMES, "other", b"\xff\xfe"]
    assert [found.name for found in kv.scan("name-", after="name-010", limit=3)] == ["name-011", "name-012", "name-013"]
    assert list(kv.scan("name-", limit=0)) == list(kv.scan("nobody")) == []
    assert (kv.count(), kv.count("name-1")) == (202, 100)


def test_items_are_counted_whatever_their_values(cluster: FakeKvCluster, kv: Any) -> None:
    """Also by a client that has not the codec that they were written with."""
    with KvClient(cluster.place(), codec=JsonCodec()) as other:
        other.set("name-1", {"a": 1})
    kv.set("name-2", 2)
    assert kv.count("name-") == 2


def test_a_scan_goes_on_while_buckets_move(cluster: FakeKvCluster, kv: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece is small, and between two of them everything moves, silently or not, and splits."""
    monkeypatch.setattr("waltz_ray.kv.client.items.PAGE", 2)
    kv.set_many({name: n for n, name in enumerate(NAMES)})
    found = []
    for number, entry in enumerate(kv.scan()):
        found.append(entry.name)
        if number % 20 == 0:
            cluster.move_all(number // 20 % 3, told=number % 40 == 0)
        if number == 100:
            cluster.split(told=False)
    assert found == NAMES


def test_who_has_been_silent_for_long_is_left_when_another_has_his_buckets(
    cluster: FakeKvCluster, make: MakeKv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover is not longer by the time that one who is just busy is given."""
    monkeypatch.setattr("waltz_ray.kv.client.link._SILENCE_S", 60.0)  # longer than a call, as what follows
    monkeypatch.setattr("waltz_ray.kv.client.link._DOUBTED_S", 60.0)
    doubt = KvLink.doubt

    def doubted_late(link: KvLink) -> None:
        link._silent_since_s -= 60.0
        doubt(link)

    monkeypatch.setattr(KvLink, "doubt", doubted_late)
    kv = make()
    kv.set("ann", 1)
    owner, bucket = cluster.owner(b"ann"), fnv1a_32(b"ann") & 15
    cluster.actors[owner].pause()
    timer = threading.Timer(0.1, cluster.move, (bucket, (owner + 1) % 3))
    timer.start()
    version = kv.set("ann", 2)
    assert kv.get_item("ann") == (2, version, None)
    timer.join()
    cluster.actors[owner].wake()


def test_a_scan_is_not_whole_without_a_bucket(cluster: FakeKvCluster, kv: Any) -> None:
    kv.set_many(dict.fromkeys(NAMES, 1))
    cluster.move(5, -1)
    with pytest.raises(KvNotReady, match=r"partition 5 could not be scanned within 0\.3 s"):
        list(kv.scan(timeout=0.3))


# ---- where things are


@pytest.mark.parametrize("dialect", ["doc", "2012"])
def test_one_address_is_enough(dialect: str, make: MakeKv) -> None:
    """O08, O24: of the others, and of what they have, a client hears from the one that it knows."""
    with FakeKvCluster(dialect=dialect) as cluster:
        kv = make(cluster, only=1)
        kv.set_many({name: name for name in NAMES})
        assert len(kv.get_many(NAMES)) == 200
        until(lambda: kv.statistics()["known_buckets"] == 16)
        assert (kv.statistics()["connected"], kv.statistics()["buckets"]) == (3, 16)
        kv.close()


@pytest.mark.parametrize("told", [True, False])
def test_buckets_move(cluster: FakeKvCluster, kv: Any, told: bool) -> None:
    """O12, O46: announced or not, an item is found where it is."""
    kv.set_many({name: name for name in NAMES})
    for actor in (2, 0, 1):
        cluster.move_all(actor, told)
        assert kv.get("name-001") == "name-001"
        kv.set("name-002", actor)
        assert kv.get_many(NAMES[:2]) == {name: name for name in NAMES[:2]}
        assert kv.get("name-002") == actor
        kv.set("name-002", "name-002")
    assert kv.get_many(NAMES) == {name: name for name in NAMES}
    assert happened(cluster) == {1}


@pytest.mark.parametrize("told", [True, False])
def test_buckets_split(cluster: FakeKvCluster, kv: Any, told: bool) -> None:
    """O14, O16, O17: with the old mask, with the new one, and with the one after that."""
    kv.set_many({name: name for name in NAMES})
    for _ in range(2):
        cluster.split(told)
        assert kv.get_many(NAMES) == {name: name for name in NAMES}
        kv.set_many({name: name for name in NAMES})
        assert [found.name for found in kv.scan()] == NAMES
    assert happened(cluster) == {1}
    if told:
        assert kv.statistics()["buckets"] == 0x1000


def test_nobody_serves_a_bucket_for_a_while(cluster: FakeKvCluster, kv: Any) -> None:
    kv.set("ann", 1)
    bucket = fnv1a_32(b"ann") & 15
    cluster.move(bucket, -1)
    timer = threading.Timer(0.2, cluster.move, (bucket, 1))
    begun = time.monotonic()
    timer.start()
    assert kv.get("ann") == 1
    assert time.monotonic() - begun > 0.15
    timer.join()
    cluster.move(bucket, -1)
    for method, *given in (("get", "ann"), ("set", "ann", 2), ("add", "ann")):
        with pytest.raises(KvNotReady, match="nothing was changed"):
            getattr(kv, str(method))(*given, timeout=0.2)
    assert cluster.state.items[b"", b"ann"].version == 1


def test_who_may_only_append_hears_again_what_was_said_before_the_connection_was_ready(
    cluster: FakeKvCluster, kv: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An actor says what it has while it is greeted; a write that begins just then finds no connection with it, and
    doubts what was said. Who may read asks for the item; who may not would wait in vain."""
    for actor in cluster.actors:
        actor.may_read = False
    kv.set("ann", 1)
    greet, announced = KvLink.greet, KvConnections.announced
    said, greeted = threading.Event(), threading.Event()

    async def greet_slowly(link: KvLink, *shown: str) -> None:
        await greet(link, *shown)
        while not greeted.is_set():
            await asyncio.sleep(0.005)

    def hear(connections: KvConnections, server: str, message: Any) -> None:
        announced(connections, server, message)
        said.set()

    monkeypatch.setattr(KvLink, "greet", greet_slowly)
    monkeypatch.setattr(KvConnections, "announced", hear)
    cluster.actors[cluster.owner(b"ann")].faults.append("before")  # the connection is lost
    with ThreadPoolExecutor(1) as writer:
        written = writer.submit(kv.set, "ann", 2)
        assert said.wait(10)
        until(lambda: kv.statistics()["known_buckets"] < 16)
        greeted.set()
        assert written.result() == 2
    assert happened(cluster) == {1}


def test_who_says_not_now_is_asked_again(cluster: FakeKvCluster, kv: Any) -> None:
    """With every code that means it; who refuses for good is believed."""
    kv.set("ann", 1)
    actor = cluster.actors[cluster.owner(b"ann")]
    actor.faults.extend([FailCode.NOT_READY, FailCode.TOO_MANY, FailCode.NO_ROOM, FailCode.ELSEWHERE])
    kv.set("ann", 2)
    assert kv.get("ann") == 2
    assert happened(cluster) == {1}
    actor.faults.append(FailCode.TOO_LONG)
    with pytest.raises(InvalidInput, match="TOO_LONG"):
        kv.set("ann", 3)
    actor.faults.append(FailCode.UNKNOWN_FATE)
    kv.set("ann", 4)
    assert kv.get("ann") == 4


def test_values_that_do_not_fit_into_one_answer_come_in_several(cluster: FakeKvCluster, kv: Any) -> None:
    until(lambda: kv.statistics()["known_buckets"] == 16)
    kv.set_many(dict.fromkeys(NAMES, 1))
    for actor in cluster.actors:
        actor.seen.clear()
        actor.faults.append(FailCode.TOO_LONG)
    assert len(kv.get_many(NAMES)) == 200
    for actor in cluster.actors:
        refused, *others = [len(command.names) for command in actor.seen if isinstance(command, GetMany)]
        assert max(others) <= refused // 2
    with pytest.raises(InvalidInput, match="a value has at most 16776192 bytes"):
        kv.set("ann", bytes(16 * 1024 * 1024))


def test_it_is_not_our_actor(cluster: FakeKvCluster, make: MakeKv) -> None:
    for actor in cluster.actors:
        actor.native = False
    kv = make()
    with pytest.raises(KvNotReady, match="is no key/value actor of waltz_ray"):
        kv.get("ann", timeout=1.0)  # enough to ask one


# ---- exactly once


@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_connection_is_lost_in_the_middle_of_a_write(cluster: FakeKvCluster, kv: Any, fault: str) -> None:
    kv.set("ann", 0)
    actor = cluster.actors[cluster.owner(b"ann")]
    for n in range(1, 6):
        actor.faults.append(fault)
        version = kv.set("ann", n)
        assert kv.get_item("ann")[:2] == (n, version)
    assert kv.add("ann", 10) == 15
    actor.faults.append(fault)
    assert kv.delete("ann") is True
    assert happened(cluster) == {1}
    assert kv.statistics()["retries"] >= 6


def test_a_write_is_repeated_to_the_next_owner_under_its_number(cluster: FakeKvCluster, kv: Any) -> None:
    kv.set("ann", 1)
    first = cluster.owner(b"ann")
    cluster.actors[first].faults.append("after")
    done = threading.Thread(target=lambda: kv.set("ann", 2, expected=1))
    cluster.move(fnv1a_32(b"ann") & 15, (first + 1) % 3, told=False)
    cluster.move(fnv1a_32(b"ann") & 15, first, told=False)
    done.start()
    done.join()
    assert kv.get("ann") == 2
    assert happened(cluster) == {1}
    numbers = [(c.client, c.sequence) for actor in cluster.actors for c in actor.seen if isinstance(c, Put)]
    assert len(numbers) == 3
    assert len(set(numbers)) == 2


def test_what_was_sent_before_and_not_answered_says_so(cluster: FakeKvCluster, kv: Any) -> None:
    """Its refusal is written into the log, so that no copy of it is done later. Who was sent on was answered."""
    kv.set("ann", 1)
    kv.set_many({"ann": 2, "bob": 2})
    cluster.move(fnv1a_32(b"ann") & 15, (cluster.owner(b"ann") + 1) % 3, told=False)
    kv.set("ann", 3)
    puts = [c for actor in cluster.actors for c in actor.seen if isinstance(c, Put)]
    assert len(puts) >= 4
    assert not any(each.repeated for each in puts)
    actor = cluster.actors[cluster.owner(b"ann")]
    writes: list[Callable[[], object]] = [lambda: kv.delete("ann"), lambda: kv.set_many({"ann": 4})]
    for write in writes:
        actor.faults.append("after")
        write()
        *_, lost, again = [c for c in actor.seen if isinstance(c, Put)]
        assert (lost.sequence, lost.repeated) == (again.sequence, False)
        assert again.repeated


def test_many_at_once_through_deaths_moves_and_lost_answers(cluster: FakeKvCluster, kv: Any) -> None:
    kv.set_many(dict.fromkeys(NAMES, 0))
    ends = threading.Event()

    def trouble() -> None:
        n = 0
        while not ends.is_set():
            n += 1
            actor = cluster.actors[n % 3]
            actor.faults.extend(["after", "", "before"])
            cluster.move(n % (cluster.mask + 1), (n + 1) % 3, told=n % 2 == 0)
            if n % 10 == 0:
                actor.kill()
                actor.revive()
            if n == 25:
                cluster.split(told=False)
            time.sleep(0.01)

    thread = threading.Thread(target=trouble)
    thread.start()
    try:
        for n in range(1, 6):
            kv.set_many(dict.fromkeys(NAMES, n))
            assert kv.add("counter") == n
    finally:
        ends.set()
        thread.join()
    for actor in cluster.actors:
        actor.faults.clear()
    assert kv.get_many(NAMES) == dict.fromkeys(NAMES, 5)
    assert happened(cluster) == {1}
    assert len(cluster.state.done) == 200 * 6 + 5


def test_settled_rises_over_what_has_its_answer(cluster: FakeKvCluster, kv: Any) -> None:
    for n in range(5):
        kv.set("ann", n)
    (client,) = cluster.state.settled
    assert client
    assert cluster.state.settled[client] == 5
    assert sorted(cluster.state.done) == [(client, n) for n in range(1, 6)]


def test_a_late_copy_of_an_answered_write_does_nothing(cluster: FakeKvCluster, kv: Any) -> None:
    """As long as whoever serves it refuses what is settled: model.RequestId."""
    kv.set("ann", 0)
    actor = cluster.actors[cluster.owner(b"ann")]
    actor.faults.append("late")
    kv.set("ann", 1)
    kv.set("ann", 2)
    cluster.state.requests.clear()  # forgotten, as it is settled
    actor.repeat_late()
    assert kv.get("ann") == 2
    assert happened(cluster) == {1}


def test_a_write_whose_fate_is_open_says_so(cluster: FakeKvCluster, kv: Any) -> None:
    kv.set("ann", 1)
    bucket, actor = fnv1a_32(b"ann") & 15, cluster.actors[cluster.owner(b"ann")]
    actor.pause()
    with pytest.raises(KvUnknownFate, match="it may have happened"):
        kv.set("ann", 2, timeout=0.3)
    with pytest.raises(KvNotReady, match=r"reading item 'ann' was not done within 0\.3 s"):
        kv.get("ann", timeout=0.3)
    with pytest.raises(KvUnknownFate, match="0 of 1 items were set"):
        kv.set_many({"ann": 3}, timeout=0.3)
    cluster.move(bucket, (actor.number + 1) % 3)  # the paused one is given up, its successor has it
    assert kv.get("ann") == 1
    actor.wake()


def test_a_paused_actor_is_given_up(cluster: FakeKvCluster, kv: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps its connections; a ping that is not answered either tells."""
    monkeypatch.setattr("waltz_ray.kv.client.link._SILENCE_S", 0.1)
    kv.set("ann", 1)
    bucket, actor = fnv1a_32(b"ann") & 15, cluster.actors[cluster.owner(b"ann")]
    actor.pause()
    moved = threading.Timer(0.1, cluster.move, (bucket, (actor.number + 1) % 3))
    moved.start()
    version = kv.set("ann", 2)
    assert kv.get_item("ann") == (2, version, None)
    moved.join()
    actor.wake()
    assert kv.get("ann") == 2


def test_a_paused_actor_is_given_up_sooner_when_another_has_what_it_had(
    cluster: FakeKvCluster, kv: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a lock that is waited for nothing is heard either, but a ping is answered."""
    monkeypatch.setattr("waltz_ray.kv.client.link._SILENCE_S", 60.0)  # longer than a call
    kv.set("ann", 1)
    bucket, actor = fnv1a_32(b"ann") & 15, cluster.actors[cluster.owner(b"ann")]
    actor.pause()
    begin_s = time.monotonic()
    moved = threading.Timer(0.1, cluster.move, (bucket, (actor.number + 1) % 3))
    moved.start()
    kv.set("ann", 2)
    assert time.monotonic() - begin_s > 0.3
    moved.join()
    actor.wake()
    assert kv.get("ann") == 2


# ---- locks


def test_a_lock_is_one_holders_at_a_time(make: MakeKv, kv: Any) -> None:
    other, codes = make(), []
    with kv.lock("leader", lease=5) as lock:
        codes.append(lock.code)
        assert not lock.lost
        with pytest.raises(KvLockTaken, match=r"lock 'leader' was not free within 0\.1 s"):
            other.lock("leader", wait=0.1).acquire()
        with pytest.raises(InvalidInput, match="is had already"):
            lock.acquire()
    with other.lock("leader", wait=0) as lock:
        codes.append(lock.code)
    assert codes[0] < codes[1]
    with pytest.raises(InvalidInput, match="is not had"):
        _ = lock.code
    for bad in ({"lease": 0}, {"wait": -1}, {"lease": "1"}, {"wait": 1e9}):
        with pytest.raises(InvalidInput):
            kv.lock("leader", **bad)


def test_the_longest_wait_for_a_lock_ends_as_any_other(make: MakeKv, kv: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The actor's word that it was not free comes when the wait is over, and so within the time of the call."""
    monkeypatch.setattr(locks, "MOST_TIMEOUT_S", 1.5)
    monkeypatch.setattr(locks, "_ANSWER_S", 0.5)
    with kv.lock("leader", wait=0), pytest.raises(KvLockTaken, match=r"was not free within 1\.5 s"):
        make().lock("leader", wait=1.5).acquire()


def test_who_waits_for_a_lock_has_it_next(make: MakeKv, kv: Any) -> None:
    other, had = make(), []

    def wait() -> None:
        with other.lock("leader", wait=5):
            had.append(time.monotonic())

    with kv.lock("leader"):
        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)
        assert had == []
    thread.join()
    assert len(had) == 1


def test_a_lock_that_was_waited_for_has_a_whole_lease(
    cluster: FakeKvCluster, make: MakeKv, kv: Any, passed: list[float]
) -> None:
    """Not what is left of one that began when it was asked for."""
    seen = cluster.actors[cluster.owner(b"leader")].seen
    waits, found = make().lock("leader", lease=60, wait=200), []

    def wait() -> None:
        with waits:
            passed[0] += 50
            found.extend([waits.lost, [type(each) for each in seen].count(Renew)])

    with kv.lock("leader", lease=3600):
        thread = threading.Thread(target=wait)
        thread.start()
        until(lambda: [type(each) for each in seen].count(LockNative) == 2)
        passed[0] += 50
    thread.join()
    assert found == [False, 1]


def test_a_lock_that_was_got_before_its_answer_was_lost_is_had_no_longer_than_its_lease(
    cluster: FakeKvCluster, kv: Any, passed: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease began when the lock was got, not when it was asked for once more."""
    kv.set("leader", 1)  # connected
    actor = cluster.actors[cluster.owner(b"leader")]
    actor.faults.append("after")
    handle = actor.handle
    sent: list[int] = []

    def handle_later(writer: Any, opcode: int, message_id: int, payload: bytes) -> None:
        if opcode == Opcode.LOCK_NATIVE:
            passed[0] += 0.0 if sent else 4.0  # until the client finds that its connection is gone
            sent.append(opcode)
        handle(writer, opcode, message_id, payload)

    monkeypatch.setattr(actor, "handle", handle_later)
    with kv.lock("leader", lease=6):
        assert len(sent) == 2
        assert [type(each) for each in actor.seen].count(Renew) == 1


def test_a_lock_whose_lease_was_over_before_its_answer_came_is_waited_for_anew(
    cluster: FakeKvCluster, kv: Any, passed: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    kv.set("leader", 1)  # connected
    actor = cluster.actors[cluster.owner(b"leader")]
    handle, over = actor.handle, iter([True])

    def handle_later(writer: Any, opcode: int, message_id: int, payload: bytes) -> None:
        if opcode == Opcode.LOCK_NATIVE:
            passed[0] += 4.0  # on its way
        elif opcode == Opcode.RENEW and next(over, False):
            cluster.state.locks.clear()
        handle(writer, opcode, message_id, payload)

    monkeypatch.setattr(actor, "handle", handle_later)
    with pytest.raises(KvLockTaken), kv.lock("leader", lease=6, wait=1):
        pass
    over = iter([True])
    with kv.lock("leader", lease=6, wait=60) as lock:
        assert not lock.lost
    asked = [each for each in actor.seen if isinstance(each, LockNative)]
    assert len({each.sequence for each in asked}) == len(asked) == 3


def test_a_lease_ends_while_the_machine_sleeps(kv: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of loops stands still then, and that of the actors, on other machines, does not."""
    asleep_s = 0.0
    monkeypatch.setattr(locks, "boot_s", lambda: boot_s() + asleep_s)
    lock = kv.lock("leader", lease=3600)
    lock.acquire()
    assert not lock.lost
    asleep_s = 3601.0
    assert lock.lost
    with pytest.raises(KvLockLost, match="lease of 3600 s was not renewed in time"):
        lock.release()


def test_a_lease_is_renewed_while_it_is_had(cluster: FakeKvCluster, make: MakeKv, kv: Any) -> None:
    other = make()
    seen = cluster.actors[cluster.owner(b"leader")].seen
    with kv.lock("leader", lease=1.5) as lock:
        code = lock.code
        until(lambda: [type(each) for each in seen].count(Renew) == 4)  # a third of the lease before each
        assert not lock.lost
        with pytest.raises(KvLockTaken):
            other.lock("leader", wait=0).acquire()
        assert lock.code == code


def test_a_lock_that_was_lost_says_so(cluster: FakeKvCluster, kv: Any) -> None:
    def lose(then: Callable[[Any], None]) -> None:
        with kv.lock("leader", lease=1.5) as lock:
            cluster.state.locks.clear()
            then(lock)

    def notice(lock: Any) -> None:
        until(lambda: lock.lost)
        with pytest.raises(KvLockLost):
            lock.check()
        had.append(lock)

    def fail(lock: Any) -> None:
        raise ZeroDivisionError

    had: list[Any] = []
    with pytest.raises(KvLockLost, match="somebody else has it"):
        lose(notice)
    assert had[0].lost
    with pytest.raises(KvLockLost, match="when it was released"):
        lose(lambda lock: None)
    with pytest.raises(ZeroDivisionError):  # what has happened first is told
        lose(fail)


def test_a_lock_whose_actor_is_silent_is_lost_when_its_lease_is_over(
    cluster: FakeKvCluster, kv: Any, passed: list[float]
) -> None:
    lock = kv.lock("leader", lease=1.5)
    lock.acquire()
    until(lambda: cluster.state.version > 1)  # it was renewed
    actor = cluster.actors[cluster.owner(b"leader")]
    actor.pause()
    passed[0] += 1.5
    assert lock.lost
    actor.wake()
    with pytest.raises(KvLockLost, match=r"lease of 1\.5 s"):
        lock.release()


@pytest.mark.parametrize("fault", ["before", "after"])
def test_a_lock_survives_lost_connections_and_moves(cluster: FakeKvCluster, kv: Any, fault: str) -> None:
    kv.set("leader", 1)  # connected
    owner = cluster.owner(b"leader")
    cluster.actors[owner].faults.append(fault)
    with kv.lock("leader") as lock:
        code = lock.code
        cluster.move(fnv1a_32(b"leader") & 15, (owner + 1) % 3)
        cluster.actors[(owner + 1) % 3].faults.append(fault)
    assert cluster.state.locks == {}
    assert happened(cluster) == {1}
    with kv.lock("leader", wait=0) as lock:
        assert lock.code > code


# ---- the client


def test_what_is_closed_does_nothing_more(cluster: FakeKvCluster, kv: Any) -> None:
    kv.set("ann", 1)
    bucket = fnv1a_32(b"ann") & 15
    cluster.move(bucket, -1)
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            kv.get("ann")
        except ClientClosed as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    if isinstance(kv, KvClient):
        kv.close()
        thread.join()
        for call in (lambda: kv.get("ann"), kv.open, kv.statistics, kv.routes, lambda: kv.lock("ann")):
            with pytest.raises(ClientClosed):
                call()
    else:
        kv._call(kv._there.close, (), {})
        thread.join()
        with pytest.raises(ClientClosed):
            kv.get("ann")
    assert [type(error) for error in raised] == [ClientClosed]


def test_no_more_than_so_much_is_outstanding(cluster: FakeKvCluster, make: MakeKv) -> None:
    """Who finds no room waits for it, and gives up without having sent anything."""
    kv = make(outstanding_bytes=64 * 1024)
    bucket, big = fnv1a_32(b"ann") & 15, b"x" * 60_000
    cluster.move(bucket, -1)
    thread = threading.Thread(target=kv.set, args=("ann", big))
    thread.start()
    until(lambda: kv.statistics()["retries"] > 3)
    with pytest.raises(KvNotReady, match="outstanding_bytes"):
        kv.set("bob", big, timeout=0.2)
    cluster.move(bucket, 0)
    thread.join()
    kv.set("bob", big)
    assert happened(cluster) == {1}


def test_what_finds_no_room_for_its_rest_says_how_many_were_set(
    cluster: FakeKvCluster, make: MakeKv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many are written some at a time: another call may have the room in between."""
    monkeypatch.setattr(items, "_CHUNK_ENTRIES", 2)
    kv, big = make(outstanding_bytes=64 * 1024), b"x" * 60_000
    kv.set("ann", 1)
    engine = (kv._shell.core() if isinstance(kv, KvClient) else kv._there)._started_engine()
    first, second, other = [fnv1a_32(name) & 15 for name in (b"a", b"b", b"somebody")]
    assert other not in (first, second)
    cluster.move(first, -1)
    cluster.move(other, -1)
    raised: list[KvUnknownFate | KvNotReady] = []

    def set_many() -> None:
        try:
            kv.set_many({"a": big, "b": 2, "c": big, "d": 4}, timeout=2)
        except (KvUnknownFate, KvNotReady) as error:
            raised.append(error)

    def set_other() -> None:
        kv.set("somebody", big)

    threads = [threading.Thread(target=set_many), threading.Thread(target=set_other)]
    threads[0].start()
    until(lambda: engine.room._taken > 60_000)
    threads[1].start()
    until(lambda: len(engine.room._line) == 1)
    cluster.move(first, 0)
    threads[0].join()
    assert [type(error) for error in raised] == [KvUnknownFate]
    assert str(raised[0]).startswith("2 of 4 items were set; of the others: no room within")
    cluster.move(other, 0)
    threads[1].join()
    assert kv.get_many(["a", "b", "c", "d"]) == {"a": big, "b": 2}


def test_timeouts_that_cannot_be(kv: Any) -> None:
    for bad in (0, -1, 301, "1", True):
        with pytest.raises(InvalidInput, match="timeout"):
            kv.get("ann", timeout=bad)


def test_it_pickles_as_its_address(cluster: FakeKvCluster) -> None:
    with KvClient(cluster.place(), codec=JsonCodec()) as kv:
        kv.map("m").set("ann", {"a": 1})
        again = pickle.loads(pickle.dumps(kv))
        with again:
            assert again.map("m").get("ann") == {"a": 1}
            again.set("bob", 1)
        assert len(cluster.state.settled) == 2  # two clients, with numbers of their own
