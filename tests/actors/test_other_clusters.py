"""Addresses are used again: a client that only knows one may come to a server of another cluster."""

from __future__ import annotations

import pytest

from tests.actors.bench_server import GENERATION, Door, bench_server, open_with
from tests.actors.test_feed_pace import in_loop, until
from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.client import ErrorMessage, FeedMode, Mount, Mounted
from waltz_ray.wire.codec import encode_client
from waltz_ray.wire.framing import MAGIC_CLIENT, Hello, encode_frame, encode_hello, meaning_cluster

MOUNT = Mount(ReqId(7, GENERATION, 0, 0), 0, FeedMode.OWN, 1 << 20)


@in_loop
async def test_who_means_another_cluster_is_told_and_not_served() -> None:
    """Its partitions have the same numbers and may be of the same generation: it would append to the wrong log."""
    server = bench_server(bench=open_with(1))
    door = Door(server).greet(meaning_cluster("a client", "00000000-0000-0000-0000-000000000005"))
    [error] = door.told()
    assert isinstance(error, ErrorMessage)
    assert "is a server of cluster 'c', and not of the one that is meant" in error.message
    assert str(server.info.cluster_key) not in error.message, "whoever it is need not know it"
    assert door.wire.ended
    assert not server.connections


@in_loop
async def test_a_mount_in_one_piece_with_such_a_hello_is_not_done() -> None:
    server = bench_server(bench=open_with(1))
    door = Door(server)
    hello = encode_hello(Hello((5,), meaning_cluster("a client", "another")))
    door.connection.data_received(hello + encode_frame(MAGIC_CLIENT, 5, *encode_client(5, MOUNT)))
    assert isinstance(door.told()[-1], ErrorMessage)
    assert server.drivers[0].machine.subscribers == 0


@pytest.mark.parametrize("version", [0, 4, 5])
@in_loop
async def test_who_means_this_cluster_or_does_not_say_is_served(version: int) -> None:
    """The original's clients do not say."""
    server = bench_server(bench=open_with(1))
    for message in ("Waltz client", "", meaning_cluster("a client", str(server.info.cluster_key))):
        door = Door(server, version).greet(message)
        assert not door.wire.ended
        assert door.connection.connection_id in server.connections
    if version == 5:
        door.send(MOUNT)
        await until(lambda: any(isinstance(each, Mounted) for each in door.told()))


@in_loop
async def test_an_old_client_that_says_another_cluster_is_closed_without_a_word() -> None:
    door = Door(bench_server(bench=open_with(1)), 4).greet(meaning_cluster("a client", "another"))
    assert door.told() == []
    assert door.wire.ended
