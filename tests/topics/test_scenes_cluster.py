"""What topics promise when processes die, hang, and come back: on a real Ray. The tests build on each other."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests.topics.foreign_client import ForeignClient, ForeignReply, payloads_of, text
from tests.topics.members import brokers_in
from tests.topics.real_scenes import OffsetWatch, RealTopics, RealWays, run, until
from tests.topics.scenes import SceneMember
from tests.topics.test_cluster import PRODUCER
from waltz_ray.actors.supervision import kv_name, server_name, topic_name
from waltz_ray.bring_up import bring_up
from waltz_ray.cli import main
from waltz_ray.config import ClusterConfig, TopicConfig
from waltz_ray.connecting import connect
from waltz_ray.finding import cluster_file
from waltz_ray.spaces import Spaces
from waltz_ray.take_down import take_down, take_down_in
from waltz_ray.topics.records import TopicMessage, decode_topic_record, is_message

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

CONFIG = TopicConfig(actors=2, client_ms=4_000, balance_ms=200, hold_ms=50)
NAME = "topicscenes"


@pytest.fixture(scope="module")
def topics(ray_head: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealTopics]:
    directory = tmp_path_factory.mktemp(NAME)
    try:
        running = bring_up(ClusterConfig(NAME, str(directory), 1, 1, 1, topics=CONFIG), ray_head, deadline_s=200.0)
        found = RealTopics(NAME, running.zookeeper)
        with Spaces(NAME, zookeeper=running.zookeeper) as spaces:
            spaces.create("orders", 2, "topic")
            spaces.create("short", 1, "topic", {"retention_bytes": 100_000})
        yield found
    finally:
        known = cluster_file.read(directory)
        if known is not None:
            take_down(known)


def messages(topics: RealTopics, topic: str = "orders", partition: int = 0) -> dict[int, bytes]:
    """Offset -> payload."""
    with connect(topics.name, zookeeper=topics.zookeeper, space=topic) as log:
        there = [each for each in log.feed(partition) if is_message(each.data)]
    found = {each.transaction_id: decode_topic_record(each.data) for each in there}
    return {at: each.payload for at, each in found.items() if isinstance(each, TopicMessage)}


async def brokers(ways: RealWays) -> dict[int, int]:
    return brokers_in((await (await ways.the_master()).ask(1, PRODUCER)).texts(5))


async def broker_of(ways: RealWays, slot: int) -> ForeignClient:
    """The connection to who has the slot, once the master knows somebody: just after a kill it may be nobody's."""
    while (number := (await brokers(ways)).get(slot)) is None:
        await asyncio.sleep(0.02)  # a client asks again soon
    return await ways.connection(number)


async def sent(ways: RealWays, *datas: bytes, slot: int = 1, topic: str = "orders") -> list[int]:
    """Their offsets. A slot that is being moved (201) has taken nothing, and says to ask again: it goes back to an
    actor that was killed as soon as that is there again, at any time after."""
    offsets = []
    broker = await broker_of(ways, slot)
    for data in datas:
        while (reply := await broker.produce(topic, data)).code == 201:
            await asyncio.sleep(0.02)  # a client asks again soon
            broker = await broker_of(ways, slot)
        assert reply.code == 200, reply.fields
        offsets.append(reply.number(5))
    return offsets


async def consumed(member: SceneMember, count: int) -> list[bytes]:
    """Until it has so many."""
    while len(member.got) < count:
        await member.beat()
        await member.consume()
        await asyncio.sleep(0.01)  # polling interval, not synchronisation
    return member.got


def test_t12_a_slots_actor_is_killed_in_the_middle_of_sends(topics: RealTopics) -> None:
    topics.settle()
    leader = topics.leader()
    assert leader is not None
    acknowledged: dict[int, dict[int, bytes]] = {1: {}, 2: {}}

    async def work(ways: RealWays) -> None:
        master = await ways.the_master()
        registered = await master.ask(1, PRODUCER)
        ports, stopping = brokers_in(registered.texts(5)), asyncio.Event()
        checksums = [registered.number(4)]

        async def sends(slot: int) -> None:
            number = 0
            while not stopping.is_set():
                payload = b"%d of %d" % (number, slot)
                number += 1
                try:
                    reply = await (await ways.connection(ports[slot])).produce("orders", payload)
                except ConnectionError:
                    known = checksums[-1]
                    beat = await master.ask(2, {1: b"producer", 2: known, 3: b"h", 4: b"orders"})
                    if beat.number(4) != known:
                        checksums.append(beat.number(4))
                        ports.update(brokers_in(beat.texts(6)))
                    await asyncio.sleep(0.02)  # a client asks again soon
                    continue
                if reply.code == 200:
                    acknowledged[slot][reply.number(5)] = payload

        sending = [asyncio.ensure_future(sends(slot)) for slot in (1, 2)]

        async def until_sent(more: int) -> None:
            before = {slot: len(each) for slot, each in acknowledged.items()}
            while any(len(acknowledged[slot]) < before[slot] + more for slot in before):
                await asyncio.sleep(0.02)  # polling interval, not synchronisation

        await until_sent(100)
        before = dict(ports)
        await asyncio.to_thread(topics.send_signal, topic_name(1 - leader), signal.SIGKILL)
        await until_sent(100)
        stopping.set()
        await asyncio.gather(*sending)
        assert len(checksums) > 1
        assert [slot for slot in ports if ports[slot] != before[slot]] != []

    run(topics, work)
    for slot, told in acknowledged.items():
        there = messages(topics, partition=slot - 1)
        assert {at: there.get(at) for at in told} == told, "at the offsets that were told"
        assert len(set(there.values())) == len(there), "once"


def test_t33_members_go_on_when_their_master_is_killed(topics: RealTopics) -> None:
    """And its own slot is somebody's again within two periods."""
    topics.settle()
    leader = topics.leader()
    assert leader is not None

    async def work(ways: RealWays) -> None:
        members = [SceneMember(ways, name, "calm") for name in ("one", "two")]
        period_s, unowned, since = CONFIG.client_ms / 1000, 0.0, 0.0

        async def until_shared() -> None:
            nonlocal unowned, since
            while True:
                for each in members:
                    await each.beat()
                    await each.consume()
                owned = set().union(*(each.partitions for each in members))
                if len(owned) == 2:
                    since = 0.0
                    if max(len(each.has) for each in members) == 1 and all(each.registered for each in members[:2]):
                        return
                else:
                    since = since or time.monotonic()
                    unowned = max(unowned, time.monotonic() - since)
                await asyncio.sleep(0.02)  # polling interval, not synchronisation

        await until_shared()
        unowned = 0.0
        last = max(number for each in members for number in each.orders)
        before = [len(each.orders) for each in members]
        await asyncio.to_thread(topics.send_signal, topic_name(leader), signal.SIGKILL)
        while not any(len(each.orders) > count for each, count in zip(members, before, strict=True)):
            await until_shared()
        await until_shared()
        assert unowned < 2 * period_s, unowned
        after = [each.orders[count:] for each, count in zip(members, before, strict=True)]
        assert min(number for numbers in after for number in numbers) > last
        await sent(ways, b"goes on", slot=1)
        await sent(ways, b"goes on", slot=2)
        while not all(b"goes on" in each.got for each in members):
            await until_shared()

    run(topics, work)


def test_a_stopped_actor_appends_and_confirms_nothing_when_it_wakes_up(
    topics: RealTopics, capsys: pytest.CaptureFixture[str]
) -> None:
    topics.settle()
    leader = topics.leader()
    assert leader is not None
    zombie = topic_name(1 - leader)
    [slot] = until(lambda: topics.status(zombie), "it answers").slots

    async def work(ways: RealWays) -> None:
        await asyncio.to_thread(topics.said, capsys, "topic", "reset", "zombies", "orders", "--to", "latest", "--yes")
        await sent(ways, b"one", b"two", slot=slot)
        broker = await broker_of(ways, slot)
        assert (await broker.register("zombies", "orders", "asleep")).code == 200
        assert payloads_of(await broker.pull("zombies", "orders", "asleep")) == [b"one", b"two"]
        pid = await asyncio.to_thread(topics.send_signal, zombie, signal.SIGSTOP)
        try:
            late: dict[int, object] = {1: b"foreign", 2: b"orders", 3: 0, 4: b"of the zombie", 5: 0, 6: -1, 7: 0}
            _, appending = broker.send(13, late, timeout_ms=60_000)
            fields: dict[int, object] = {1: b"asleep", 2: b"orders", 3: 0, 4: b"zombies", 5: 1}
            _, confirming = broker.send(18, fields, timeout_ms=60_000)
            other = topic_name(leader)

            def taken() -> bool:
                said = topics.status(other)
                return said is not None and slot in said.slots and not said.unserved

            await asyncio.to_thread(until, taken, "the other one has its slot")
            member = SceneMember(ways, "awake", "zombies")
            assert await consumed(member, 2) == [b"one", b"two"], "nothing was confirmed"
            await sent(ways, b"three", slot=slot)
            assert (await consumed(member, 3))[-1] == b"three"
            before = await asyncio.to_thread(topics.offsets, "zombies")
        finally:
            os.kill(pid, signal.SIGCONT)
        for method, answer in ((13, appending), (18, confirming)):
            try:
                reply: ForeignReply = broker._answer(await asyncio.wait_for(answer, 30), method)
                assert reply.code != 200, reply.fields
            except ConnectionError:
                pass  # it has closed the port: nothing is said
        await asyncio.to_thread(topics.settle)
        assert await asyncio.to_thread(topics.offsets, "zombies") == before
        assert b"of the zombie" not in (await asyncio.to_thread(messages, topics, "orders", slot - 1)).values()

    run(topics, work)


def test_t29_offsets_are_set_while_members_consume_and_survive_kills(
    topics: RealTopics, capsys: pytest.CaptureFixture[str]
) -> None:
    topics.settle()

    async def work(ways: RealWays) -> None:
        await asyncio.to_thread(topics.said, capsys, "topic", "reset", "movers", "orders", "--to", "latest", "--yes")
        member = SceneMember(ways, "mover", "movers")
        numbers = await sent(ways, *(b"%d" % number for number in range(10)))
        assert await consumed(member, 10) == [b"%d" % number for number in range(10)]

        async def reset(to: str) -> None:
            words = ("topic", "reset", "movers", "orders", "--to", to, "--partition", "0", "--yes")
            await asyncio.to_thread(topics.said, capsys, *words)
            member.got.clear()

        await reset(str(numbers[5]))
        assert await consumed(member, 5) == [b"%d" % number for number in range(5, 10)]
        await reset("earliest")
        everything = list((await asyncio.to_thread(messages, topics)).values())
        assert await consumed(member, len(everything)) == everything
        await sent(ways, b"nobody's")
        await reset("latest")
        await sent(ways, b"after latest")
        assert await consumed(member, 1) == [b"after latest"]
        begun = time.time()
        await asyncio.to_thread(until, lambda: time.time() > begun + 2.5, "times differ")
        moment = datetime.fromtimestamp(time.time(), timezone.utc).isoformat()
        await asyncio.to_thread(until, lambda: time.time() > begun + 4, "times differ")
        await sent(ways, b"by time")
        assert (await consumed(member, 2))[-1] == b"by time"
        await reset(moment)
        assert await consumed(member, 1) == [b"by time"]

        async with OffsetWatch(topics, "movers") as watch:
            for number, victim in enumerate((kv_name(0), server_name(0), topic_name(0), topic_name(1))):
                member.got.clear()
                await sent(ways, b"before %d" % number)
                await consumed(member, 1)
                await asyncio.to_thread(topics.send_signal, victim, signal.SIGKILL)
                await asyncio.to_thread(topics.settle)
                await sent(ways, b"after %d" % number)
                assert await consumed(member, 2) == [b"before %d" % number, b"after %d" % number]
        assert len(watch.seen) > 10
        assert watch.went_back() == []

    run(topics, work, 240.0)


def test_a_topic_that_is_trimmed_loses_its_slow_groups_messages_and_says_so(
    topics: RealTopics, capsys: pytest.CaptureFixture[str]
) -> None:
    topics.settle()

    datas = [b"%04d" % number + bytes(20_000) for number in range(60)]

    async def falls_behind(ways: RealWays) -> None:
        await sent(ways, b"first", topic="short")
        assert await consumed(SceneMember(ways, "slow", "slow", {4: text("short")}), 1) == [b"first"]
        await sent(ways, *datas, topic="short")

    run(topics, falls_behind)
    at = topics.offsets("slow")["short", 0]
    until(lambda: min(messages(topics, "short")) > at, "it is trimmed")
    row = topics.lag(capsys, "slow")["short", 0]
    assert (row["lost"] > 0, row["lag"] < 60, row["offset"]) == (True, True, at)
    got: list[bytes] = []

    async def goes_on(ways: RealWays) -> None:
        member = SceneMember(ways, "slow", "slow", {4: text("short")})
        while not got or got[-1] != datas[-1]:
            got[:] = await consumed(member, len(got) + 1)

    run(topics, goes_on)
    assert got == datas[-len(got) :], "none is left out from the first one on"
    after = topics.lag(capsys, "slow")["short", 0]
    assert after["lag"] == 0
    assert after["lost"] >= 60 - len(got) > 0


def test_groups_go_on_at_their_offsets_in_a_restored_cluster(
    topics: RealTopics, ray_head: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topics.settle()
    into, backup = str(tmp_path / "again"), str(tmp_path / "backup")

    async def before(ways: RealWays) -> None:
        member = SceneMember(ways, "kept", "kept")
        await asyncio.to_thread(topics.said, capsys, "topic", "reset", "kept", "orders", "--to", "latest", "--yes")
        await sent(ways, b"consumed")
        assert await consumed(member, 1) == [b"consumed"]
        await sent(ways, b"not yet")

    run(topics, before)
    kept = topics.offsets("kept")
    topics.said(capsys, "backup", backup)
    up = ["up", "--dir", into, "--address", ray_head, "--zookeeper", topics.zookeeper, "--servers", "1"]
    for words in (["restore", backup, "--into", into, "--name", "scenesagain"], [*up, "--topics", "2"]):
        with pytest.raises(SystemExit) as leaving:
            main([*words, "--json"])
        assert leaving.value.code == 0, capsys.readouterr().err
    again = RealTopics("scenesagain", topics.zookeeper)
    try:
        again.settle()
        assert again.offsets("kept") == kept
        capsys.readouterr()

        async def after(ways: RealWays) -> None:
            assert await consumed(SceneMember(ways, "kept", "kept"), 1) == [b"not yet"]

        run(again, after)
        assert {row["lag"] for row in again.lag(capsys, "kept").values()} == {0}
    finally:
        take_down_in(Path(into))
