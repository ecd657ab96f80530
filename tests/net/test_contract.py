"""What every user of ``waltz_ray.net`` does with what a peer can do to it. The same for all (``users.py``)."""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import Callable, Iterator

import pytest

from tests.net.users import HOST, USERS, User
from waltz_ray.wire.framing import MAGIC_CLIENT, MAGIC_REPLICA, Hello, encode_frame, encode_hello, frame_header

Made = Callable[..., User]


@pytest.fixture(params=USERS, ids=lambda kind: str(kind.__name__))
def made(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Made]:
    caplog.set_level(logging.INFO)
    users: list[User] = []

    def make(first_s: float = 20.0) -> User:
        users.append(request.param(caplog, monkeypatch, first_s))
        return users[-1]

    yield make
    for user in users:
        user.close()


@pytest.fixture
def user(made: Made) -> User:
    return made()


def refused(user: User, peer: socket.socket, *words: str) -> None:
    """It lets go, and says who and what."""
    told = user.ended(peer)
    for word in (f"{HOST}:{user.port}", *words):
        assert word in told, told


# ---- pieces ------------------------------------------------------------------------------------------------------


def test_every_byte_in_a_piece_of_its_own(user: User) -> None:
    peer = user.connected()
    keep_alive = frame_header(user.magic, user.version, 0)
    for byte in user.greeting(peer) + user.frame(1) + keep_alive + user.frame(2):
        peer.sendall(bytes([byte]))
    user.handled(peer, 2)


def test_many_frames_in_one_piece(user: User) -> None:
    peer = user.connected()
    peer.sendall(user.greeting(peer) + b"".join(map(user.frame, range(1, 301))))
    user.handled(peer, 300)


# ---- what is wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("together", [True, False], ids=["with the HELLO", "later"])
@pytest.mark.parametrize("wrong", ["version", "magic"])
def test_another_version_or_magic_is_refused(user: User, together: bool, wrong: str) -> None:
    peer = user.connected()
    other = MAGIC_CLIENT if user.magic == MAGIC_REPLICA else MAGIC_REPLICA
    bad = encode_frame(user.magic, 3, b"x") if wrong == "version" else encode_frame(other, 1, b"x")
    if together:
        peer.sendall(user.greeting(peer) + user.frame(1) + bad)
    else:
        peer.sendall(user.greeting(peer) + user.frame(1))
        user.handled(peer, 1)
        peer.sendall(bad)
    refused(user, peer, wrong)


def test_no_version_in_common_is_refused(user: User) -> None:
    peer = user.connected()
    peer.sendall(encode_hello(Hello((77,), "from the future")))
    refused(user, peer, "no common version", "77")


def test_something_else_than_hello_is_refused(user: User) -> None:
    peer = user.connected()
    peer.sendall(user.frame(1))
    refused(user, peer, "magic")


@pytest.mark.parametrize("length", [-1, None], ids=["negative", "too long"])
def test_an_impossible_length_is_refused_before_it_has_come(user: User, length: int | None) -> None:
    peer = user.connected()
    announced = user.limit + 1 if length is None else length
    peer.sendall(user.greeting(peer) + struct.pack(">Bhi", user.magic, user.version, announced))
    refused(user, peer, str(announced))


def test_a_long_hello_is_refused(user: User) -> None:
    peer = user.connected()
    peer.sendall(frame_header(ord("H"), 0, 60_000))
    refused(user, peer, "60000", "4096")


# ---- who goes, and who stays and says nothing ---------------------------------------------------------------------


def test_closed_inside_a_frame(user: User) -> None:
    peer = user.connected()
    peer.sendall(user.greeting(peer) + user.frame(1))
    user.handled(peer, 1)
    peer.sendall(user.frame(2)[:-1])
    peer.shutdown(socket.SHUT_WR)
    refused(user, peer, "inside a frame")


def test_who_says_nothing_is_not_waited_for(made: Made) -> None:
    user = made(first_s=0.05)
    peer = user.connected()
    refused(user, peer, "no HELLO for")


def test_who_takes_nothing_is_noticed(user: User) -> None:
    peer = user.connected()
    peer.sendall(user.greeting(peer) + user.frame(1))
    user.handled(peer, 1)
    user.unread(peer)


def test_who_has_vanished_will_be_noticed(user: User) -> None:
    """Half-open: no byte comes any more, not even a reset. The kernel asks from time to time."""
    peer = user.connected()
    peer.sendall(user.greeting(peer) + user.frame(1))
    user.handled(peer, 1)
    tcp = socket.IPPROTO_TCP
    for own in user.sockets():
        assert own.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        probes = [own.getsockopt(tcp, name) for name in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)]
        assert probes == [5, 2, 3]
        assert own.getsockopt(tcp, socket.TCP_NODELAY) == 1
