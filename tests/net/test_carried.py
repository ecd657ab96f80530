"""What the kernel says of a connection."""

from __future__ import annotations

import socket
from contextlib import closing

from tests.cluster.harness import wait_until
from waltz_ray.net.carried import Carried, carried


def test_what_was_sent_received_and_acknowledged_is_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
    with closing(near), closing(far):
        first = carried(near)
        assert first is not None
        near.sendall(b"x" * 1000)
        assert far.recv(2000, socket.MSG_WAITALL | socket.MSG_DONTWAIT) is not None
        far.sendall(b"y" * 10)
        assert near.recv(10) == b"y" * 10

        def counted() -> bool:
            now = carried(near)
            assert now is not None
            return now == Carried(0, first.acknowledged_bytes + 1000, first.received_bytes + 10)

        wait_until(counted, "all of it is acknowledged")


def test_nothing_is_known_of_what_is_no_connection_or_is_closed() -> None:
    assert carried(None) is None
    sock = socket.socket()
    sock.close()
    assert carried(sock) is None
    assert carried(_OfAClosedTransport()) is None
    with closing(socket.socket(socket.AF_UNIX)) as local:
        assert carried(local) is None


class _OfAClosedTransport:
    """The socket that uvloop gives for one."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        raise ValueError("negative file descriptor")
