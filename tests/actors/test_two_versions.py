"""Two releases on one cluster, as a rolling upgrade has them for some minutes: who speaks one version more or less.

The replica's protocol has one version at the moment, 2; the next release is imagined: it speaks 3, too.
"""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import Iterator, Sequence

import pytest

from tests.actors.listening import Listening
from tests.actors.replica_client import ReplicaPeer
from tests.security.keys import doorkeeper, keyring
from waltz_ray.actors import replica_endpoint, replica_link
from waltz_ray.actors.replica_endpoint import ReplicaEndpoint
from waltz_ray.actors.replica_link import ReplicaLink
from waltz_ray.config import ServerConfig
from waltz_ray.net.outgoing import Outgoing
from waltz_ray.protocol.ids import Endpoint
from waltz_ray.protocol.messages.replica import ReplicaReply, ReplicaRequest, State, StateReply
from waltz_ray.protocol.partition.events import SessionConfirmed
from waltz_ray.protocol.pool import Pool
from waltz_ray.protocol.session_types import ReplicaAvailable, SessionEvent
from waltz_ray.wire import framing
from waltz_ray.wire.framing import MAGIC_REPLICA, Hello, encode_hello
from waltz_ray.wire.replica_codec import REPLICA_VERSIONS

NEXT = (*REPLICA_VERSIONS, 3)
BEFORE = (1,)


@pytest.fixture
def asked() -> list[ReplicaRequest]:
    return []


@pytest.fixture
def endpoint(asked: list[ReplicaRequest]) -> Iterator[Endpoint]:
    def answer(requests: Sequence[ReplicaRequest], connection: object) -> list[ReplicaReply]:
        asked.extend(requests)
        return [StateReply(1, 2, 0, -1, -1, -1, False) for _ in requests]

    replica = ReplicaEndpoint(answer, doorkeeper(), name="replica/0", on_fatal=lambda message: None)
    replica.start()
    yield replica.endpoint
    replica.stop()


@pytest.fixture
def the_next_release_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {**framing.KNOWN_VERSIONS, MAGIC_REPLICA: frozenset(NEXT)}
    monkeypatch.setattr(framing, "KNOWN_VERSIONS", known)


def test_a_server_of_the_next_release_speaks_as_this_replica_does(
    endpoint: Endpoint, the_next_release_is_known: None
) -> None:
    peer = ReplicaPeer(endpoint, versions=NEXT)
    try:
        assert isinstance(peer.ask(State(1, 2)), StateReply)
        peer.send(State(1, 2))
        assert peer.next_frame().version == 2
    finally:
        peer.socket.close()


def test_a_replica_of_the_next_release_speaks_as_this_server_does(
    monkeypatch: pytest.MonkeyPatch, the_next_release_is_known: None, asked: list[ReplicaRequest], endpoint: Endpoint
) -> None:
    monkeypatch.setattr(replica_endpoint, "REPLICA_VERSIONS", NEXT)
    old, new = ReplicaPeer(endpoint), ReplicaPeer(endpoint, versions=REPLICA_VERSIONS)
    try:
        for peer in (old, new):
            peer.send(State(1, 2))
            assert peer.next_frame().version == 2
        assert len(asked) == 2
    finally:
        old.socket.close()
        new.socket.close()


@pytest.mark.parametrize("newer", ["server", "replica"])
def test_a_servers_link_is_up_whoever_is_newer(
    newer: str, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, the_next_release_is_known: None
) -> None:
    monkeypatch.setattr(replica_link if newer == "server" else replica_endpoint, "REPLICA_VERSIONS", NEXT)

    async def run() -> None:
        heard: asyncio.Queue[SessionEvent | SessionConfirmed] = asyncio.Queue()
        drivers = Listening(lambda _, event: heard.put_nowait(event), 0)
        link = ReplicaLink(0, uuid.uuid4(), ServerConfig(), drivers, Outgoing(), Pool(1 << 20), keyring())
        link.move_to(endpoint)
        try:
            event = await asyncio.wait_for(heard.get(), 20)
            assert isinstance(event, ReplicaAvailable)
            assert link.up
        finally:
            await link.close()

    asyncio.run(run())


def test_a_server_of_a_release_that_is_given_up_is_told_so_and_asks_nothing(
    endpoint: Endpoint, asked: list[ReplicaRequest], caplog: pytest.LogCaptureFixture
) -> None:
    good = ReplicaPeer(endpoint)
    try:
        with socket.create_connection(endpoint, timeout=20) as old:
            old.sendall(encode_hello(Hello(BEFORE, "the release before")))
            while old.recv(1 << 16):  # the replica's own HELLO, and the end
                pass
        assert isinstance(good.ask(State(1, 2)), StateReply), "the others go on"
        assert len(asked) == 1
        assert "no common version: we speak [2], the peer speaks [1]" in caplog.text
    finally:
        good.socket.close()
