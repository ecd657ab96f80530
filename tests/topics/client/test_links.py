"""Links of the native client: masters, slots, connections that break, answers that are lost."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.net.cutting_proxy import CuttingProxy
from tests.topics.client.pulling import LIMIT_S, pulled, run
from tests.topics.client.world import FAST, MemoryPlace, topic_world
from waltz_ray import compat
from waltz_ray.errors import PartitionNotReady, TopicRefused, TopicUnknownFate, WireError
from waltz_ray.net.connector import connect
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.topics import AsyncTopicClient, TopicClientConfig
from waltz_ray.topics.client import consumer as consumer_module
from waltz_ray.topics.client import links as links_module
from waltz_ray.topics.client.links import TopicLink, TopicLinks
from waltz_ray.topics.client.masters import Masters
from waltz_ray.topics.codes import RpcMethod, TopicCode
from waltz_ray.topics.framing import TopicFrame, TopicFramer, encode_frame
from waltz_ray.topics.messages_consumer import CloseRequestC2M, CloseResponseM2C, ProgressRequestC2B
from waltz_ray.topics.messages_producer import CloseResponseM2P
from waltz_ray.topics.rpc import FaultName, RpcAnswer, RpcFault, encode_reply
from waltz_ray.topics.wire import TopicRequest, TopicResponse, encode_response


def test_t48_t49_a_master_that_is_none_or_is_not_there_is_passed_over() -> None:
    """Dead addresses before the living one; after some failures they are not even tried (shielded)."""

    async def scene() -> None:
        async with topic_world(actors=2) as world:
            from waltz_ray.protocol.ids import Endpoint

            place = MemoryPlace(world.cluster, [Endpoint("127.0.0.1", 1), Endpoint("127.0.0.1", 2)])
            from waltz_ray.topics import AsyncTopicClient

            async with AsyncTopicClient(place, FAST) as client:
                producer = client.producer()
                assert (await producer.send("orders", b"x")).offset >= 0

    run(scene())


def test_t48_t52_connections_are_shared_recycled_and_opened_again() -> None:
    async def scene() -> None:
        config = TopicClientConfig(heartbeat_s=3600, idle_s=0.2)
        async with topic_world() as world, world.client(config) as client:
            first, second = client.producer(), client.producer()
            await first.send("orders", b"x")
            await second.send("orders", b"x")
            assert client.connections == 1
            own = client.producer(shared=False)
            await own.send("orders", b"x")
            assert client.connections == 2
            await world.until(lambda: client.connections == 0)
            await world.cluster.create("bills", 1)
            await world.cluster.until(world.cluster.settled)
            await first.send("bills", b"y")
            assert client.connections == 1

    run(scene())


def test_a_connection_that_was_forgotten_in_between_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a proxy, which goes on to take what it is sent: TCP never says so."""
    between: dict[Endpoint, CuttingProxy] = {}

    async def through(make: Callable[[], TopicLink], host: str, port: int, *limits: Any) -> TopicLink:
        target = Endpoint(host, port)
        if target not in between:
            between[target] = CuttingProxy(target)
        return await connect(make, *between[target].endpoint, *limits)

    monkeypatch.setattr(links_module, "connect", through)

    async def scene() -> None:
        async with topic_world() as world, world.client(replace(FAST, timeout_s=0.5)) as client:
            producer = client.producer()
            async with client.consumer("g", ["orders"]) as consumer:
                await producer.send("orders", b"before", partition=0)
                (batch,) = await pulled(consumer, 1)
                for link in between.values():
                    link.forget()
                async with compat.timeout(LIMIT_S):
                    await consumer.confirm(batch)
                await world.confirmed("g", 0, 2)
                await world.cluster.create("bills", 1)
                await world.cluster.until(world.cluster.settled)
                async with compat.timeout(LIMIT_S):
                    await producer.send("bills", b"after")  # which its master is asked about first

    try:
        run(scene())
    finally:
        for link in between.values():
            link.close()


def test_an_answer_to_what_was_not_asked_is_an_error_of_that_request() -> None:
    """Whoever has the address by now, a consumer asks again; it was a failed assertion, with which a consumer ended."""

    async def scene() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            framer, frames = TopicFramer(), list[TopicFrame]()
            while not frames:
                frames += framer.feed(await reader.read(1 << 16))
            method, data = encode_response(CloseResponseM2P(True, TopicCode.OK, ""))
            writer.write(encode_frame(frames[0][0], encode_reply(RpcAnswer(method, data))))
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        links = TopicLinks(LIMIT_S, LIMIT_S)
        out = CloseRequestC2M("g_127.0.0.1-1-1-1-Pull-waltz", "g", None)
        with pytest.raises(WireError, match="of method 3, what was asked is of 6"):
            await links.ask(Endpoint("127.0.0.1", server.sockets[0].getsockname()[1]), out)
        await links.close()
        server.close()
        await server.wait_closed()

    run(scene())


def test_t48_another_clusters_actor_at_a_known_address_is_not_spoken_with() -> None:
    """Addresses are used again: there its topics, groups and slots may have the same names."""

    async def scene() -> None:
        async with topic_world() as world, topic_world() as other:
            (actor,) = other.cluster.servers.values()
            assert actor.endpoint is not None
            place = MemoryPlace(world.cluster, [actor.endpoint])
            async with AsyncTopicClient(place, FAST) as client, client.consumer("g", "orders") as consumer:
                await client.producer().send("orders", b"x")
                await pulled(consumer, 1)
                assert actor.groups() == []
                assert actor._gateway.counts.requests == 0

    run(scene())


def test_who_does_not_know_which_cluster_is_meant_is_asked_all_the_same() -> None:
    """An actor from before that was asked."""

    async def scene() -> None:
        async with topic_world() as world, world.client() as client:
            (actor,) = world.cluster.servers.values()
            shared = actor._gateway._shared
            shared.methods -= {RpcMethod.CLUSTER_MEANT}
            await client.producer().send("orders", b"x")
            assert actor._gateway.counts.unknown == 1

    run(scene())


def test_masters_that_hang_are_waited_for_no_longer_than_was_said() -> None:
    """As by who leaves: a second each, and not the time of any request."""

    async def scene() -> None:
        come = asyncio.Event()

        async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            come.set()
            await reader.read()
            writer.close()

        server = await asyncio.start_server(hang, "127.0.0.1", 0)
        links = TopicLinks(60.0, 60.0, None, "a key")  # so that it hangs while it is greeted
        masters = Masters(links, lambda: [Endpoint("127.0.0.1", server.sockets[0].getsockname()[1])])
        out = CloseRequestC2M("g_127.0.0.1-1-1-1-Pull-waltz", "g", None)
        with pytest.raises(PartitionNotReady, match=r"has not answered within 0\.5 s"):
            await asyncio.wait_for(masters.ask(lambda: out, 0.5), LIMIT_S)
        assert come.is_set()
        await links.close()
        server.close()
        await server.wait_closed()

    run(scene())


def test_a_confirm_whose_answer_is_lost_with_the_partition_is_not_told_as_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The group may be behind it: who undid his work would never see the batch again."""

    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            await client.producer().send("orders", b"x")
            async with client.consumer("g", "orders") as consumer:
                (batch,) = await pulled(consumer, 1)
                (subscription,) = consumer._held
                ask = consumer._ask_slot

                async def lost(endpoint: Endpoint, request: TopicRequest) -> TopicResponse | RpcFault:
                    answer = await ask(endpoint, request)
                    if isinstance(request, ProgressRequestC2B):
                        raise ConnectionResetError("its answer is lost")
                    return answer

                monkeypatch.setattr(consumer._held[subscription], "_ask", lost)
                confirming = asyncio.create_task(consumer.confirm(batch))
                await world.confirmed("g", 0, batch.end)
                await consumer._held[subscription].stop()
                for again in (confirming, consumer.confirm(batch)):
                    with pytest.raises(TopicUnknownFate, match="was lost before a confirm had its answer"):
                        await again
                consumer._forget(subscription)
                with pytest.raises(TopicUnknownFate):
                    await consumer.confirm(batch)

    run(scene())


def test_a_confirm_that_was_never_sent_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with topic_world(partitions=1) as world, world.client() as client:
            await client.producer().send("orders", b"x")
            async with client.consumer("g", "orders") as consumer:
                (batch,) = await pulled(consumer, 1)
                (held,) = consumer._held.values()
                tried = asyncio.Event()

                async def unreachable(endpoint: Endpoint, request: TopicRequest) -> TopicResponse | RpcFault:
                    if isinstance(request, ProgressRequestC2B) and request.offset >= 0:
                        tried.set()
                    raise ConnectionRefusedError("no connection")

                monkeypatch.setattr(held, "_ask", unreachable)
                confirming = asyncio.create_task(consumer.confirm(batch))
                await tried.wait()
                await held.stop()
                with pytest.raises(TopicRefused, match="the partition was given back"):
                    await confirming

    run(scene())


def test_t49_a_master_whose_link_was_bad_is_asked_again_if_no_other_one_leads() -> None:
    """The other one says that it does not lead: who asks would be without a master for half an hour."""
    out = CloseRequestC2M("g_127.0.0.1-1-1-1-Pull-waltz", "g", None)
    leader, standby = Endpoint("a", 1), Endpoint("b", 2)
    known, asked = [leader, standby], list[Endpoint]()

    class Links(TopicLinks):
        cut = True

        async def ask(
            self, endpoint: Endpoint, request: TopicRequest, timeout_s: float | None = None
        ) -> TopicResponse | RpcFault:
            asked.append(endpoint)
            if endpoint == standby:
                return FaultName.STANDBY.fault("it does not lead")
            if self.cut:
                raise ConnectionRefusedError("it is cut off")
            return CloseResponseM2C(True, TopicCode.OK, "")

    async def scene() -> None:
        links = Links(1.0, 1.0)
        masters = Masters(links, lambda: known)
        while asked.count(leader) < 6:
            with pytest.raises(PartitionNotReady):
                await masters.ask(lambda: out, -1.0)
        links.cut = False
        asked.clear()
        assert await masters.ask(lambda: out, -1.0) == CloseResponseM2C(True, TopicCode.OK, "")
        assert asked == [standby, leader], "the others come first"
        known.clear()
        with pytest.raises(PartitionNotReady, match="no topic actor is registered"):
            await masters.ask(lambda: out, -1.0)

    run(scene())


def test_clients_of_processes_with_the_same_number_are_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of two containers that have begun in the same millisecond: they would be one member, and consume the same."""

    async def scene() -> None:
        async with topic_world(partitions=2) as world, world.client() as client:
            monkeypatch.setattr(consumer_module, "time", SimpleNamespace(time_ns=lambda: 7))
            monkeypatch.setattr(consumer_module, "_COUNTS", itertools.repeat(1))
            async with client.consumer("g", "orders") as one, client.consumer("g", "orders") as two:
                await world.until(lambda: len(one.partitions) == len(two.partitions) == 1)

    run(scene())


def test_t48_a_member_goes_on_when_its_slot_and_its_master_move() -> None:
    async def scene() -> None:
        async with topic_world(actors=2, partitions=4) as world, world.client() as client:
            producer = client.producer()
            async with client.consumer("g", "orders") as consumer:
                await world.until(lambda: len(consumer.partitions) == 4)
                found: list[bytes] = []

                async def take() -> None:
                    async for message in consumer:
                        found.append(message.data)

                taking = asyncio.create_task(take())
                for n in range(20):
                    await producer.send("orders", b"before %d" % n)
                await world.until(lambda: len(set(found)) == 20)
                leader = world.cluster.leader()
                assert leader is not None
                await world.cluster.end(leader)
                for n in range(20):
                    await producer.send("orders", b"after %d" % n)
                await world.until(lambda: len(set(found)) == 40)
                taking.cancel()
                await asyncio.gather(taking, return_exceptions=True)

    run(scene())
