"""The proxy with which tests break the network between two processes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.net.cutting_proxy import CuttingProxy, Way
from waltz_ray.protocol.ids import Endpoint

SOON_S = 0.15
"""In which nothing must come where nothing is to come."""


class _Peers:
    """``connect``: the two ends of a connection through the proxy."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.settimeout(5)
        self.proxy = CuttingProxy(Endpoint("127.0.0.1", int(self.listening.getsockname()[1])))

    def connect(self) -> tuple[socket.socket, socket.socket]:
        near = socket.create_connection(self.proxy.endpoint, 5)
        far, _ = self.listening.accept()
        far.settimeout(5)
        return near, far


@pytest.fixture
def peers() -> Iterator[_Peers]:
    made = _Peers()
    with made.proxy, made.listening:
        yield made


def silent(end: socket.socket) -> None:
    """Nothing comes there, and it is not closed."""
    end.settimeout(SOON_S)
    with pytest.raises(TimeoutError):
        end.recv(10)
    end.settimeout(5)


def gone(end: socket.socket) -> None:
    """It was reset."""
    with pytest.raises(ConnectionError):
        end.recv(10)


def test_bytes_go_through_both_ways_and_so_does_the_end(peers: _Peers) -> None:
    near, far = peers.connect()
    with closing(near), closing(far):
        near.sendall(b"there")
        assert far.recv(10) == b"there"
        far.sendall(b"back")
        assert near.recv(10) == b"back"
        data = bytes(range(256)) * 4096
        sender = threading.Thread(target=near.sendall, args=(data,))
        sender.start()
        got = bytearray()
        while len(got) < len(data):
            got += far.recv(1 << 20)
        sender.join()
        assert got == data
        assert peers.proxy.connections == 1
        near.close()
        with contextlib.suppress(ConnectionError):  # closed or reset: the end has come
            assert far.recv(10) == b""


@pytest.mark.parametrize("lost", list(Way))
def test_one_way_loss_is_one_way_and_what_was_lost_comes_later(peers: _Peers, lost: Way) -> None:
    near, far = peers.connect()
    with closing(near), closing(far):
        peers.proxy.lose(lost)
        (mute, deaf) = (near, far) if lost is Way.THERE else (far, near)
        mute.sendall(b"lost")
        silent(deaf)
        deaf.sendall(b"heard")
        assert mute.recv(10) == b"heard"
        peers.proxy.heal()
        assert deaf.recv(10) == b"lost"


def test_a_stalled_connection_is_open_and_silent_and_goes_on(peers: _Peers) -> None:
    near, far = peers.connect()
    with closing(near), closing(far):
        peers.proxy.stall()
        near.sendall(b"a")
        far.sendall(b"b")
        silent(near)
        silent(far)
        peers.proxy.heal()
        assert (near.recv(10), far.recv(10)) == (b"b", b"a")


def test_a_stall_holds_for_connections_that_come_later(peers: _Peers) -> None:
    peers.proxy.stall()
    near, far = peers.connect()
    with closing(near), closing(far):
        near.sendall(b"a")
        silent(far)
        peers.proxy.heal()
        assert far.recv(10) == b"a"


def test_a_cut_resets_all_and_refuses_new_ones_until_it_heals(peers: _Peers) -> None:
    near, far = peers.connect()
    with closing(near), closing(far):
        peers.proxy.cut()
        gone(near)
        gone(far)
        with pytest.raises(ConnectionError), closing(socket.create_connection(peers.proxy.endpoint, 5)) as refused:
            refused.recv(1)
        peers.proxy.heal()
    near, far = peers.connect()
    with closing(near), closing(far):
        near.sendall(b"again")
        assert far.recv(10) == b"again"


def test_half_open_connections_never_come_back_and_new_ones_work(peers: _Peers) -> None:
    near, far = peers.connect()
    with closing(near), closing(far):
        peers.proxy.forget()
        near.sendall(b"a")
        silent(far)
        far.close()
        silent(near)
        peers.proxy.heal()
        silent(near)
        near_2, far_2 = peers.connect()
        with closing(near_2), closing(far_2):
            near_2.sendall(b"new")
            assert far_2.recv(10) == b"new"


def test_a_delay_delays_each_way_and_keeps_the_order(peers: _Peers) -> None:
    near, far = peers.connect()
    with closing(near), closing(far):
        peers.proxy.delay(0.2)
        begin_s = time.monotonic()
        near.sendall(b"a")
        near.sendall(b"b")
        far.settimeout(5)
        got = far.recv(1)
        assert time.monotonic() - begin_s >= 0.2
        far.sendall(b"c")
        assert near.recv(1) == b"c"
        assert time.monotonic() - begin_s >= 0.4
        assert got + far.recv(1) == b"ab"


def test_nobody_at_the_target_ends_the_connection_and_another_target_may_be_given(peers: _Peers) -> None:
    target, peers.proxy.target = peers.proxy.target, Endpoint("127.0.0.1", 1)
    with pytest.raises(ConnectionError), closing(socket.create_connection(peers.proxy.endpoint, 5)) as end:
        end.recv(10)
    peers.proxy.target = target
    near, far = peers.connect()
    with closing(near), closing(far):
        near.sendall(b"a")
        assert far.recv(1) == b"a"
