"""Answers of ZooKeeper that were changed on their way, or are another's: they end a connection, and nothing more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kazoo.protocol.serialization import ReplyHeader
from kazoo.protocol.states import KazooState

from tests.coordination.conftest import Seen
from waltz_ray.coordination.zookeeper import ConnectionState, KazooZooKeeper
from waltz_ray.errors import ZooKeeperUnreachable

Answer = tuple[ReplyHeader, bytes, int]

CHANGED: dict[str, Callable[[ReplyHeader, bytes, int], Answer]] = {
    "of another request": lambda header, data, at: (header._replace(xid=header.xid ^ 4), data, at),
    "an error that there is not": lambda header, data, at: (header._replace(err=-7777), data, at),
    "too short": lambda header, data, at: (header, data[:at], at),
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_an_answer_that_cannot_be_ends_no_more_than_the_connection(
    zookeeper_server: str, monkeypatch: pytest.MonkeyPatch, change: Callable[[ReplyHeader, bytes, int], Answer]
) -> None:
    """Kazoo's thread would end with what it did not expect, and with it every session that there could be."""
    zookeeper = KazooZooKeeper(zookeeper_server, session_timeout_ms=3000)
    try:
        connection = zookeeper._client._connection
        read, seen = connection._read_header, Seen[ConnectionState]()
        zookeeper.on_state(seen)

        def changed(timeout: float) -> Any:
            answer = read(timeout)
            return change(*answer) if answer[0].xid > 0 else answer

        with monkeypatch.context() as patch:
            patch.setattr(connection, "_read_header", changed)
            with pytest.raises(ZooKeeperUnreachable):
                zookeeper.exists("/")
        if change is not CHANGED["too short"]:  # which is known to be of that request alone
            seen.until(lambda state: state is ConnectionState.CONNECTED)
        assert zookeeper.exists("/") is not None
        assert connection._connection_routine.is_alive()
    finally:
        zookeeper.close()


def test_a_watch_is_read_again_where_there_was_no_answer_and_the_connection_is_there(
    zookeeper_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after this process was stopped for longer than a call waits: no reconnect follows that would have it read."""
    zookeeper, other = (KazooZooKeeper(zookeeper_server, session_timeout_ms=10_000) for _ in range(2))
    try:
        path = other.create("/waltz-read-again.", b"before", sequence=True)
        data, states = Seen[tuple[bytes | None, int]](), Seen[ConnectionState]()
        zookeeper.on_state(states)
        zookeeper.watch_data(path, lambda *now: data(now))
        data.until(lambda now: now == (b"before", 0))
        connection = zookeeper._client._connection
        read, changes = connection._read_header, [CHANGED["too short"]]

        def changed(timeout: float) -> Any:
            answer = read(timeout)
            return changes.pop()(*answer) if changes and answer[0].xid > 0 else answer

        monkeypatch.setattr(connection, "_read_header", changed)
        other.set(path, b"after", 0)
        data.until(lambda now: now == (b"after", 1))
        assert changes == []
        assert states.waiting() == [], "the connection was there all the time"
    finally:
        zookeeper.close()
        other.close()


def test_who_could_not_do_what_a_new_connection_asks_for_is_told_of_it_again(zookeeper_server: str) -> None:
    zookeeper = KazooZooKeeper(zookeeper_server, session_timeout_ms=10_000)
    try:
        told, failures = Seen[ConnectionState](), [ZooKeeperUnreachable("no answer in time")]

        def hear(state: ConnectionState) -> None:
            if failures:
                raise failures.pop()
            told(state)

        zookeeper.on_state(hear)
        zookeeper._on_kazoo_state(KazooState.CONNECTED)
        told.until(lambda state: state is ConnectionState.CONNECTED)
        assert failures == []
    finally:
        zookeeper.close()
