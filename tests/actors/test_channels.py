"""Several clients over one connection (docs/wire.md, "Channels"), as the server has them."""

from __future__ import annotations

import asyncio

import pytest

from tests.actors.bench_server import GENERATION, Door, bench_server, open_with
from tests.actors.bench_turns import Willing, append_of
from tests.actors.test_client_limits import large, quiet
from tests.actors.test_feed_pace import in_loop, until
from waltz_ray.actors.client_peer import CLIENTS_OF_A_CONNECTION
from waltz_ray.actors.server import Server
from waltz_ray.config import ServerConfig
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.client import (
    AppendedBatch,
    ChannelClosed,
    ErrorMessage,
    FeedMode,
    HindranceRequest,
    InChannel,
    Mount,
    Mounted,
    Unmount,
)
from waltz_ray.wire.channel_codec import channel_head
from waltz_ray.wire.codec import ClientMessage, decode_client, encode_client


def channel(number: int, message: ClientMessage) -> InChannel:
    return InChannel(number, memoryview(b"".join(encode_client(5, message))))


def mount(client_id: int, feed: FeedMode = FeedMode.OWN) -> Mount:
    return Mount(ReqId(client_id, GENERATION, 0, 0), 0, feed, 1 << 20)


def told(door: Door, number: int) -> list[ClientMessage]:
    """In the channel; 0: in none."""
    if not number:
        return [message for message in door.told() if not isinstance(message, InChannel)]
    those = [message for message in door.told() if isinstance(message, InChannel) and message.channel == number]
    return [decode_client(5, message.message) for message in those]


def serving() -> Server:
    server = bench_server(bench=open_with(1))
    for replica_id in range(3):
        server.links[replica_id] = Willing(server, replica_id)  # type: ignore[assignment]
    return server


@in_loop
async def test_each_client_is_told_of_its_own() -> None:
    server = serving()
    door = Door(server).greet()
    door.send(mount(1), channel(7, mount(2)), channel(9, mount(3)))
    await until(lambda: all(told(door, number) for number in (0, 7, 9)))
    for number, client_id in ((0, 1), (7, 2), (9, 3)):
        [mounted] = [message for message in told(door, number) if isinstance(message, Mounted)]
        assert mounted.req_id.client_id == client_id
    door.send(channel(7, append_of(2, 11)), append_of(1, 12), channel(9, append_of(3, 13)))

    def fates(number: int) -> list[int]:
        batches = [message for message in told(door, number) if isinstance(message, AppendedBatch)]
        return [sequence for batch in batches for sequence in batch.sequence_numbers.tolist()]

    await until(lambda: fates(0) and fates(7) and fates(9))
    assert (fates(0), fates(7), fates(9)) == ([12], [11], [13])


@in_loop
async def test_a_channel_that_is_closed_leaves_nothing() -> None:
    server = serving()
    door = Door(server).greet()
    door.send(mount(1), channel(7, mount(2)))
    await until(lambda: told(door, 7))
    assert (len(server.connections), server.drivers[0].machine.subscribers) == (2, 2)
    door.send(ChannelClosed(7), ChannelClosed(8))
    assert (len(server.connections), server.drivers[0].machine.subscribers) == (1, 1)
    door.send(channel(7, mount(3)))
    await until(lambda: len(told(door, 7)) == 2)
    door.connection.connection_lost(None)
    assert (server.connections, server.drivers[0].machine.subscribers) == ({}, 0)


@in_loop
async def test_feeds_in_channels_wait_for_a_peer_that_takes_nothing() -> None:
    server = bench_server(bench=open_with(40, records_each=500))
    door = Door(server, taking=False).greet()
    door.connection.pause_writing()
    door.send(channel(1, mount(2, FeedMode.RECORDS)), channel(2, mount(3, FeedMode.HEADERS)))
    await quiet(server)
    assert door.wire.unsent < 1000
    door.connection.resume_writing()
    await quiet(server)
    assert door.wire.unsent > 100_000


@in_loop
async def test_a_peer_that_takes_nothing_is_sent_a_few_megabytes_whatever_the_credit_of_its_channels() -> None:
    server = large(ServerConfig(join_grace_ms=0, client_unsent_bytes=4 << 20))
    door = Door(server, taking=False).greet()
    door.send(channel(1, Mount(ReqId(2, GENERATION, 0, 0), 0, FeedMode.RECORDS, 1 << 60)))
    await quiet(server)
    assert door.wire.unsent < 6 << 20
    assert not door.wire.ended


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([channel(1, HindranceRequest(1, 0))], "must not send HindranceRequest in a channel"),
        ([channel(1, ErrorMessage("mine"))], "must not send ErrorMessage in a channel"),
        ([channel(1, Unmount(99, 2))], "partition 99 does not exist"),
        ([channel(1, mount(2)), channel(1, mount(3))], "a channel is one client's"),
        ([channel(1, channel(2, mount(2)))], "does not belong in a channel"),
        ([InChannel(1, memoryview(b"\xff"))], "message type 255 is unknown"),
        ([channel(n + 1, mount(n)) for n in range(CLIENTS_OF_A_CONNECTION + 1)], "more than 256 channels"),
    ],
)
@in_loop
async def test_what_breaks_the_protocol_is_named_and_ends_the_connection(
    messages: list[ClientMessage], why: str
) -> None:
    server = bench_server(bench=open_with(1))
    door = Door(server).greet()
    door.send(*messages)
    await until(lambda: door.wire.ended)  # many messages are some turns' work
    assert door.wire.ended == "closed"
    [error] = [message for message in told(door, 0) if isinstance(message, ErrorMessage)]
    assert why in error.message
    await asyncio.sleep(0)
    assert server.connections == {}
    assert server.drivers[0].machine.subscribers == 0


def test_a_head_is_what_the_message_begins_with() -> None:
    assert b"".join(encode_client(5, InChannel(7, memoryview(b"x")))) == channel_head(7) + b"x"
