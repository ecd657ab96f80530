"""Topics as a whole: real processes on a real Ray, ZooKeeper, files, and clients written from the wire.

The tests build on each other, in order: a cluster costs many seconds to start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.topics.foreign_client import Fields, ForeignClient, ForeignFault, text
from tests.topics.members import Member, brokers_in
from waltz_ray.actors.supervision import ask, topic_name
from waltz_ray.bring_up import bring_up, cluster_status, missing, take_down
from waltz_ray.cli import main
from waltz_ray.config import ClusterConfig, TopicConfig
from waltz_ray.errors import ClusterNotFound
from waltz_ray.finding import cluster_file
from waltz_ray.runtime.findings import what_does_not_serve
from waltz_ray.runtime.status import TopicActorStatus
from waltz_ray.spaces import Spaces

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
    assert "commands goes on at orders 0/0" in said("reset", "commands", "orders", "--to", "0")
    again = said("consume", "orders", "--group", "commands", "--type", "typed", "--limit", "2").splitlines()
    assert sorted(again) == ["and again", "by hand"]
    assert said("reset", "commands", "orders", "--to", "latest").count("goes on at") == 4
    assert {row["lag"] for row in json.loads(said("lag", "commands", "--json"))} == {0}
    said("reset", "commands", "orders", "--to", "earliest", "--partition", "2")
    said("reset", "commands", "orders", "--to", "1h")
    assert "has partitions 0 to 3" in refused("reset", "commands", "orders", "--to", "0", "--partition", "4")
    assert "of kind kv, not topic" in refused("describe", "topic-offsets")
    assert said("access") == "{}\n"
    wanted = tmp_path / "access.json"
    wanted.write_text('{"authenticate": true, "users": {"ann": "x"}, "rights": []}')
    assert said("access", str(wanted)) == "access holds from now on\n"
    assert "(401)" in refused("produce", "orders", "x") or "(401)" in refused("produce", "orders", "x")
    assert "(403)" in refused("produce", "orders", "x", "--user", "ann", "--password", "x")
    wanted.write_text("{}")
    said("access", str(wanted))
    wanted.write_text('{"default": 1}')
    assert "the flow control rules" in refused("flow", str(wanted))
