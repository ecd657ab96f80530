"""Topics as a whole: real processes on a real Ray, ZooKeeper, files, and clients written from the wire.

The tests build on each other, in order: a cluster costs many seconds to start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from waltz_spark.offset_log import OffsetLog, StreamOf

from tests.topics.foreign_client import Fields, ForeignClient, ForeignFault, text
from tests.topics.members import Member, brokers_in
from waltz_ray import kv, topics
from waltz_ray.actors.supervision import ask, topic_name
from waltz_ray.bring_up import bring_up
from waltz_ray.cli import main
from waltz_ray.config import ClusterConfig, TopicConfig
from waltz_ray.coordination.cluster_store import ClusterStore
from waltz_ray.coordination.zookeeper import KazooZooKeeper
from waltz_ray.errors import ClusterNotFound
from waltz_ray.finding import cluster_file
from waltz_ray.protocol.spaces import OFFSETS_SPACE
from waltz_ray.readiness import cluster_status, missing
from waltz_ray.runtime.findings import what_does_not_serve
from waltz_ray.runtime.status import TopicActorStatus
from waltz_ray.spaces import Spaces
from waltz_ray.take_down import take_down
from waltz_ray.topics.client.positions import positions

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

NAME = "topicsreal"
CONFIG = TopicConfig(actors=2, client_ms=4_000, balance_ms=200, hold_ms=50)
PRODUCER: Fields = {1: text("producer"), 2: text("orders"), 3: -1, 4: text("127.0.0.1")}


@dataclass
class Place:
    zookeeper: str
    produced: list[bytes] = field(default_factory=list)


def until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)  # polling interval, not synchronisation
    return found


def status(actor: int) -> TopicActorStatus | None:
    with contextlib.suppress(ClusterNotFound):
        found: TopicActorStatus = ask(NAME, topic_name(actor), "status", 3.0)
        return found
    return None


def served() -> bool:
    view = cluster_status(NAME)
    shared = all(len(each.slots) == 2 for each in view.topics.values())  # of four: nothing will move
    return shared and not missing(view, 1, 2) and any(each.leads for each in view.topics.values())


@pytest.fixture(scope="module")
def place(ray_head: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp(NAME)
    try:
        running = bring_up(ClusterConfig(NAME, str(directory), 1, 1, 1, topics=CONFIG), ray_head, deadline_s=200.0)
        assert (running.kv, running.topics) == (1, 2)
        yield Place(running.zookeeper)
    finally:
        known = cluster_file.read(directory)
        if known is not None:
            take_down(known)


class Clients:
    def __init__(self) -> None:
        self.open: list[ForeignClient] = []

    async def client(self, port: int) -> ForeignClient:
        found = await ForeignClient.open(port)
        self.open.append(found)
        return found

    async def master(self) -> ForeignClient:
        """Whichever does not say that it is a standby."""
        for actor in (0, 1):
            said = await asyncio.to_thread(status, actor)
            if said is None or said.master is None:
                continue
            found = await self.client(said.master.port)
            with contextlib.suppress(ForeignFault):
                await found.ask(3, {1: text("nobody")})
                return found
        raise AssertionError("there is no master")


@asynccontextmanager
async def clients() -> AsyncIterator[Clients]:
    found = Clients()
    try:
        yield found
    finally:
        for each in found.open:
            await each.close()


def run(work: Callable[[Clients], Coroutine[Any, Any, None]]) -> None:
    async def running() -> None:
        async with clients() as found:
            await work(found)

    asyncio.run(running())


async def produce(found: Clients, place: Place, datas: list[bytes]) -> None:
    brokers = brokers_in((await (await found.master()).ask(1, PRODUCER)).texts(5))
    there = [await found.client(port) for port in brokers.values()]
    for number, data in enumerate(datas):
        assert (await there[number % len(there)].produce("orders", data, "aaa")).code == 200
    place.produced += datas


def test_a_topic_is_made_and_served(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    with Spaces(NAME, zookeeper=place.zookeeper) as spaces:
        spaces.create("orders", 4, "topic")
    until(served, "all slots are served")
    view = cluster_status(NAME)
    assert sorted(slot for actor in view.topics.values() for slot in actor.slots) == [1, 2, 3, 4]
    assert view.unserved_slots(next(each for each in view.spaces if each.name == "orders")) == 0
    assert [each for each in what_does_not_serve(view) if "topic" in each.about] == []
    with pytest.raises(SystemExit):
        main(["status", "--cluster", NAME, "--json"])
    shown = json.loads(capsys.readouterr().out)["topics"]
    assert {each["state"] for each in shown.values()} == {"SERVING"}
    assert [each["leads"] for each in shown.values()].count(True) == 1


def test_messages_reach_a_group_that_shares_them(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    async def work(found: Clients) -> None:
        await produce(found, place, [b"%d" % number for number in range(40)])
        master = await found.master()
        members = [Member(found.client, "one"), Member(found.client, "two")]
        for each in members:
            await each.join(master)
        deadline = time.monotonic() + 30
        while [len(each.has) for each in members] != [2, 2]:  # who is alone for a moment could consume all of it
            assert time.monotonic() < deadline
            for each in members:
                assert await each.beat() == 200
        while sum(len(each.got) for each in members) < 40:
            assert time.monotonic() < deadline
            for each in members:
                assert await each.beat() == 200
                await each.consume()
        assert sorted(members[0].got + members[1].got) == sorted(place.produced)
        assert len(members[0].has) == len(members[1].has) == 2
        with pytest.raises(SystemExit):
            main(["topic", "groups", "--cluster", NAME, "--json"])
        [group] = json.loads(capsys.readouterr().out)
        assert {each["owner"] for each in group["partitions"]} == {"one", "two"}
        for each in members:
            for broker in each.has.values():
                assert (await broker.confirm("g", "orders", each.name)).code == 200

    run(work)


def test_an_actor_that_is_killed_loses_nothing_and_its_slots_are_soon_served(place: Place) -> None:
    """The master of all: another one leads, with a higher epoch."""
    leader = until(lambda: next((a for a in (0, 1) if (s := status(a)) and s.leads), None) is not None, "a leader")
    assert leader
    actor = next(each for each in (0, 1) if (said := status(each)) and said.leads)
    before = status(actor)
    assert before is not None
    assert before.pid is not None
    os.kill(before.pid, signal.SIGKILL)
    begun = time.monotonic()

    def moved() -> bool:
        other = status(1 - actor)
        return other is not None and set(other.slots) >= set(before.slots) and not other.unserved

    until(moved, "its slots are served by the other one", 30)
    assert time.monotonic() - begun < 20
    until(served, "it is back, and somebody leads")

    async def work(found: Clients) -> None:
        await produce(found, place, [b"after %d" % number for number in range(20)])
        member = Member(found.client, "three")
        await member.join(await found.master())
        deadline = time.monotonic() + 60
        while len(member.got) < 20:
            assert time.monotonic() < deadline, (member.has.keys(), member.got)
            assert await member.beat() == 200
            await member.consume()
        assert sorted(member.got) == sorted(place.produced[40:]), "what was confirmed does not come again"

    run(work)


def key_of(place: Place) -> str:
    with contextlib.closing(KazooZooKeeper(place.zookeeper)) as zookeeper:
        return str(ClusterStore(zookeeper, NAME).info().cluster_key)


def test_the_commands(place: Place, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def said(*words: str) -> str:
        with pytest.raises(SystemExit) as leaving:
            main(["topic", *words, "--cluster", NAME, "--zookeeper", place.zookeeper])
        shown = capsys.readouterr()
        assert leaving.value.code == 0, shown.err
        return shown.out

    def refused(*words: str) -> str:
        with pytest.raises(SystemExit) as leaving:
            main(["topic", *words, "--cluster", NAME, "--zookeeper", place.zookeeper])
        assert leaving.value.code == 1
        return capsys.readouterr().err

    until(served, "all slots are served")
    sent = said("produce", "orders", "by hand", "and again", "--type", "typed").split()
    assert [each.split("/")[0] for each in sent] == ["0", "1"]
    got = said("consume", "orders", "--group", "commands", "--type", "typed", "--limit", "2").splitlines()
    assert sorted(got) == ["and again", "by hand"]
    rows = json.loads(said("describe", "orders", "--json"))
    assert [row["slot"] for row in rows] == [1, 2, 3, 4]
    assert all(row["address"] and row["end"] > 0 for row in rows)
    behind = {row["partition"]: row["lag"] for row in json.loads(said("lag", "commands", "--json"))}
    assert behind.keys() == {0, 1, 2, 3}
    assert "commands goes on at orders 0/0" in said("reset", "commands", "orders", "--to", "0", "--yes")
    again = said("consume", "orders", "--group", "commands", "--type", "typed", "--limit", "2").splitlines()
    assert sorted(again) == ["and again", "by hand"]
    assert said("reset", "commands", "orders", "--to", "latest", "--yes").count("goes on at") == 4
    assert {row["lag"] for row in json.loads(said("lag", "commands", "--json"))} == {0}
    checkpoint, key = tmp_path / "to-parquet", key_of(place)
    ends = {row["partition"]: row["end"] for row in rows}
    of = StreamOf(f"{NAME}/orders", key, 4, (0, 1, 2, 3))
    OffsetLog(checkpoint, of, lambda stream_id: {**ends, 2: 0}).close()
    beside = json.loads(said("lag", "commands", "--stream", str(checkpoint), "--json"))
    assert [(row["partition"], row["group"]) for row in beside] == [
        (number, who) for number in range(4) for who in ("commands", f"stream {checkpoint}")
    ]
    assert [row["partition"] for row in beside if row["lag"]] == [2]
    OffsetLog(tmp_path / "other", of._replace(cluster_key="another"), lambda stream_id: ends).close()
    assert "another cluster" in refused("lag", "--stream", str(tmp_path / "other"))
    assert "is not the checkpoint of a stream" in refused("lag", "--stream", str(tmp_path))
    said("reset", "commands", "orders", "--to", "earliest", "--partition", "2", "--yes")
    said("reset", "commands", "orders", "--to", "1h", "--yes")
    assert "has partitions 0 to 3" in refused("reset", "commands", "orders", "--to", "0", "--partition", "4")
    assert "of kind kv, not topic" in refused("describe", "topic-offsets")
    assert said("access") == "{}\n"
    wanted = tmp_path / "access.json"
    wanted.write_text('{"authenticate": true, "users": {"ann": "x"}, "rights": []}')
    assert said("access", str(wanted)) == "access holds from now on\n"
    assert "401" in refused("produce", "orders", "x")
    assert "403" in refused("produce", "orders", "x", "--user", "ann", "--password", "x")
    wanted.write_text("{}")
    said("access", str(wanted))
    wanted.write_text('{"default": 1}')
    assert "the flow control rules" in refused("flow", str(wanted))


# ---- the native client


def killed(actor: Callable[[], int | None]) -> None:
    pid = until(actor, "the process is known")
    os.kill(pid, signal.SIGKILL)


def leader_pid() -> int | None:
    return next((said.pid for each in (0, 1) if (said := status(each)) and said.leads), None)


def of_group(place: Place, topic: str, group: str) -> dict[int, int]:
    """Where it is, by partition."""
    with kv.connect(NAME, OFFSETS_SPACE, zookeeper=place.zookeeper) as items:
        return {each.partition: item.offset for each, item in positions(items, group, topic).items()}


def test_t48_each_message_once_and_in_order_through_killed_servers_and_masters(place: Place) -> None:
    with Spaces(NAME, zookeeper=place.zookeeper) as spaces:
        spaces.create("once", 2, "topic")
    server = until(lambda: cluster_status(NAME).servers[0].pid, "the log's server")
    with topics.connect(NAME, zookeeper=place.zookeeper) as client, client.producer() as producer:
        sent = [producer.send("once", b"0", partition=p).offset for p in (0, 1)]
        futures = []
        for n in range(1, 1000):
            futures.append((n % 2, producer.send_nowait("once", b"%d" % n, partition=n % 2)))
            if n == 300:
                os.kill(server, signal.SIGKILL)
            if n == 600:
                killed(leader_pid)
            time.sleep(0.001)  # the pace of the messages
        producer.flush(100)
        for partition in (0, 1):
            offsets = [sent[partition], *(done.result() for at, done in futures if at == partition)]
            assert offsets == sorted(offsets), "in the order of the calls"
        found = Counter[bytes]()
        with client.consumer("once", "once") as consumer:
            deadline = time.monotonic() + 90
            while len(found) < 1000:
                assert time.monotonic() < deadline, len(found)
                batch = consumer.pull(timeout=5.0)
                for message in batch or ():
                    found[message.data] += 1
                if batch is not None:
                    consumer.confirm(batch)
        assert found == {b"%d" % n: 1 + (n == 0) for n in range(1000)}, "each once; 0 went to both partitions"
    until(served, "all slots are served")


MEMBER = """
import sys
from waltz_ray import topics
from waltz_ray.errors import TopicRefused

name, zookeeper, confirm = sys.argv[1:4]
with topics.connect(name, zookeeper=zookeeper) as client, client.consumer("stopped", "stopped") as consumer:
    batch = consumer.pull(5)
    print(*(m.data.decode() for m in batch), flush=True)
    sys.stdin.readline()
    try:
        consumer.confirm(batch)
        print("confirmed", flush=True)
    except TopicRefused as error:
        print("refused", error.code, flush=True)
    sys.stdin.readline()
"""


@contextmanager
def a_member(place: Place) -> Iterator[subprocess.Popen[str]]:
    """A consumer in a process of its own, which has pulled a batch; a line of its input has it confirm that."""
    command = [sys.executable, "-c", MEMBER, NAME, place.zookeeper, ""]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_of_a_killed_member_exactly_what_was_not_confirmed_comes_again_and_a_stopped_one_is_refused(
    place: Place,
) -> None:
    with Spaces(NAME, zookeeper=place.zookeeper) as spaces:
        spaces.create("stopped", 1, "topic")
    with topics.connect(NAME, zookeeper=place.zookeeper) as client:
        with client.producer() as producer:
            producer.send_many("stopped", [b"%d" % n for n in range(10)])
        with a_member(place) as first:
            had = line(first).split()
            assert had[0] == "0"
            first.kill()  # between pull and confirm
        with a_member(place) as second:
            assert line(second).split() == had, "exactly that batch again"
            os.kill(second.pid, signal.SIGSTOP)  # longer than its lease
            with client.consumer("stopped", "stopped") as other:
                batch = other.pull(5, timeout=60)
                assert batch is not None
                assert [m.data.decode() for m in batch] == had, "who was stopped has lost it"
                other.confirm(batch)
                moved = of_group(place, "stopped", "stopped")
                os.kill(second.pid, signal.SIGCONT)
                assert second.stdin is not None
                second.stdin.write("confirm\n")
                second.stdin.flush()
                assert line(second).startswith("refused"), "a zombie confirms nothing"
                assert of_group(place, "stopped", "stopped") == moved
