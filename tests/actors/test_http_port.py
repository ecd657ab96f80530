"""The HTTP port and who does not wish it well."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from waltz_ray.actors.http_port import HttpLimits, HttpPort
from waltz_ray.net.tls import ServerTls, client_context
from waltz_ray.security.certificates import make_certificates
from waltz_ray.wire.http import HttpRequest, HttpResponse

LIMITS = HttpLimits(connections=8, connections_per_peer=6, request_ms=300, untaken_ms=300)


def answer(request: HttpRequest) -> HttpResponse:
    return HttpResponse(200, b"x" * (32 << 20)) if request.path == "/long" else HttpResponse(200, request.path.encode())


@pytest.fixture
def port() -> Iterator[HttpPort]:
    port = HttpPort("127.0.0.1", 0, answer, LIMITS)
    yield port
    port.close()


def connect(port: HttpPort) -> socket.socket:
    made = socket.create_connection((port.endpoint.host, port.endpoint.port), timeout=10)
    made.settimeout(10)
    return made


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def ended(connection: socket.socket) -> bytes:
    """Everything up to the end, however that comes."""
    told = b""
    try:
        while piece := connection.recv(65536):
            told += piece
    except ConnectionResetError:
        pass
    return told


def get(port: HttpPort, path: str, method: str = "GET") -> bytes:
    with closing(connect(port)) as connection:
        connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return ended(connection)


def test_requests_are_answered(port: HttpPort) -> None:
    with urlopen(f"http://{port.endpoint}/abc", timeout=10) as told:
        assert (told.status, told.read()) == (200, b"/abc")
    with urlopen(Request(f"http://{port.endpoint}/abc", method="HEAD"), timeout=10) as told:
        assert (told.headers["Content-Length"], told.read()) == ("4", b"")
    assert get(port, "/abc", "POST").startswith(b"HTTP/1.1 405 ")
    assert get(port, "/abc", "DELETE").endswith(b"only GET and HEAD are served here\n")


def test_who_says_it_slowly_is_cut_off_and_others_are_served(port: HttpPort) -> None:
    with closing(connect(port)) as slow:
        begun = time.monotonic()
        for character in b"GET /slow HTTP/1.1\r\nX: ":
            slow.sendall(bytes([character]))
        assert get(port, "/quick").endswith(b"/quick")
        assert ended(slow) == b""
        assert time.monotonic() - begun < 5


def test_a_flood_of_connections_is_bounded_and_over_when_it_ends(port: HttpPort) -> None:
    with ExitStack() as stack:
        open_ = [stack.enter_context(closing(connect(port))) for _ in range(LIMITS.connections_per_peer)]
        until(lambda: port.open == len(open_))
        for _ in range(200):
            with closing(connect(port)) as refused:
                assert ended(refused) == b""
        assert port.open == LIMITS.connections_per_peer
        for each in open_:
            assert ended(each) == b""  # they never said anything
    until(lambda: port.open == 0)
    assert get(port, "/after").endswith(b"/after")


def test_a_long_line_and_what_is_no_http(port: HttpPort) -> None:
    for data in (b"G" * 100_000, b"GET /" + b"a" * 9000, b"\x16\x03\x01\x00\x00\r\n\r\n"):
        with closing(connect(port)) as connection:
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(data)
            assert ended(connection)[:13] in (b"HTTP/1.1 400 ", b"")  # reset, if not all was read
    assert get(port, "/after").endswith(b"/after")


def test_who_does_not_take_the_answer_is_cut_off(port: HttpPort, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with closing(connect(port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(b"GET /long HTTP/1.1\r\n\r\n")
        until(lambda: port.open == 1)
        until(lambda: port.open == 0)
    assert "has taken nothing" in caplog.text
    assert get(port, "/after").endswith(b"/after")


def test_a_port_that_is_taken_is_an_error(port: HttpPort) -> None:
    with pytest.raises(OSError, match="in use"):
        HttpPort("127.0.0.1", port.endpoint.port, answer)


def test_it_takes_tls_beside_plain_connections(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["127.0.0.1"], [], 2)
    tls = ServerTls(str(tmp_path / "server.pem"), str(tmp_path / "server.key"))
    port = HttpPort("127.0.0.1", 0, answer, LIMITS, tls)
    silent = connect(port)
    try:
        assert get(port, "/plain").endswith(b"/plain")
        url = f"https://{port.endpoint}/encrypted"
        with urlopen(url, timeout=10, context=client_context(str(tmp_path / "authority.pem"))) as told:
            assert told.read() == b"/encrypted"
    finally:
        port.close()
        silent.close()
