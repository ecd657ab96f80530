"""A ZooKeeper client in a process without handles, threads or memory: nothing of it stays, and no session is given up
for good."""

from __future__ import annotations

import errno
import os
import socket
import threading
from typing import Any

import pytest
from kazoo.client import KazooClient

from tests.coordination.conftest import Seen
from waltz_ray.coordination.zookeeper import ConnectionState, KazooZooKeeper
from waltz_ray.errors import ZooKeeperUnreachable

THREADS = 5  # two of kazoo's handler, its connection's, and two of ours


@pytest.mark.parametrize("allowed", range(THREADS))
def test_a_client_that_lacks_a_thread_leaves_none(
    zookeeper_server: str, monkeypatch: pytest.MonkeyPatch, allowed: int
) -> None:
    start, before, left = threading.Thread.start, threading.active_count(), [allowed]

    def scarce(thread: threading.Thread) -> None:
        if not left[0]:
            raise RuntimeError("can't start new thread")
        left[0] -= 1
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", scarce)
        with pytest.raises(ZooKeeperUnreachable, match="can't start new thread"):
            KazooZooKeeper(zookeeper_server)
    assert threading.active_count() == before
    KazooZooKeeper(zookeeper_server).close()


def test_a_client_that_lacks_a_handle_leaves_no_thread(zookeeper_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socketpair", _no_handles)
        with pytest.raises(ZooKeeperUnreachable, match="Too many open files"):
            KazooZooKeeper(zookeeper_server)
    assert threading.active_count() == before


def _no_handles(*arguments: object, **options: object) -> Any:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def _no_memory(*arguments: object, **options: object) -> Any:
    raise MemoryError


@pytest.mark.parametrize("scarce", [_no_handles, _no_memory])
def test_a_client_that_cannot_connect_again_for_a_while_does_so_later(
    zookeeper_server: str, monkeypatch: pytest.MonkeyPatch, scarce: Any
) -> None:
    """Kazoo's thread would end with what it did not expect, and with it every session that there could be."""
    seen = Seen[ConnectionState]()
    failed = threading.Event()
    zookeeper = KazooZooKeeper(zookeeper_server)
    try:
        zookeeper.on_state(seen)

        def told(*arguments: object, **options: object) -> Any:
            failed.set()
            return scarce()

        with monkeypatch.context() as patch:
            patch.setattr("kazoo.protocol.connection.socket.getaddrinfo", told)
            _drop(zookeeper._client)
            assert failed.wait(20)
        seen.until(lambda state: state is ConnectionState.CONNECTED)
        assert zookeeper.exists("/") is not None
    finally:
        zookeeper.close()


def _drop(client: KazooClient) -> None:
    """The connection, not the session."""
    client._connection._socket.shutdown(socket.SHUT_RDWR)
