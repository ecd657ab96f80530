"""A request of HTTP, cut off a stream of any pieces, and what is none."""

from __future__ import annotations

import pytest

from waltz_ray.errors import WireError
from waltz_ray.wire.http import HEAD_BYTES, HttpFramer, HttpRequest, HttpResponse, encode_response, token_in

REQUEST = b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_request_in_pieces(size: int) -> None:
    framer, found = HttpFramer(), list[HttpRequest]()
    for start in range(0, len(REQUEST), size):
        assert framer.ready is bool(found)
        found += framer.feed(REQUEST[start : start + size])
    framer.eof()
    assert (found, framer.ready) == ([HttpRequest("GET", "/metrics")], True)


def test_what_follows_is_let_go() -> None:
    framer = HttpFramer()
    assert len(framer.feed(REQUEST * 3)) == 1
    assert framer.feed(b"\x00" * 100_000) == []


def test_lines_may_end_as_people_type_them() -> None:
    assert HttpFramer().feed(b"HEAD / HTTP/1.0\n\n") == [HttpRequest("HEAD", "/")]


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00 a hello of TLS\r\n\r\n",
        b"GET http://elsewhere/ HTTP/1.1\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/2\r\n\r\n",
        b"get / HTTP/1.1\r\n\r\n",
        b"GET /" + b"a" * 2048 + b" HTTP/1.1\r\n\r\n",
        b"GET /\xc3\xa4 HTTP/1.1\r\n\r\n",
        b"\r\n\r\n",
    ],
)
def test_what_is_no_request(data: bytes) -> None:
    with pytest.raises(WireError, match="no request"):
        HttpFramer().feed(data)


@pytest.mark.parametrize("piece", [1, 512, 1 << 20])
def test_a_head_without_end_is_kept_up_to_a_limit(piece: int) -> None:
    framer = HttpFramer()
    for _ in range((HEAD_BYTES if piece < HEAD_BYTES else 0) // piece):
        assert framer.feed(b"a" * piece) == []
    with pytest.raises(WireError, match=f"longer than {HEAD_BYTES}"):
        framer.feed(b"a" * piece)
    assert len(framer._head) == HEAD_BYTES + 1


def test_the_end_inside_a_request() -> None:
    framer = HttpFramer()
    framer.eof()
    framer.feed(b"GET / HT")
    with pytest.raises(WireError, match="inside"):
        framer.eof()


@pytest.mark.parametrize(
    "header", ["Authorization: Bearer abc", "authorization:Bearer abc ", "AUTHORIZATION:  Bearer abc"]
)
def test_who_asks_is_read_of_its_header_and_of_no_other(header: str) -> None:
    data = f"GET / HTTP/1.1\r\nX-Authorization: no\r\n{header}\r\nProxy-Authorization: no\r\n\r\n".encode()
    assert HttpFramer().feed(data) == [HttpRequest("GET", "/", "Bearer abc")]
    assert HttpFramer().feed(data.replace(header.encode(), b"Host: Authorization: x")) == [HttpRequest("GET", "/")]


@pytest.mark.parametrize(
    ("authorization", "token"),
    [
        ("Bearer a-b_c", "a-b_c"),
        ("bearer   x", "x"),
        ("Basic OnRva2Vu", "token"),
        ("Basic YW5uOnRva2Vu", "token"),
        ("Basic YW5uOnRvOmtlbg==", "to:ken"),
        ("Basic YW5u", None),
        ("Basic !!!", None),
        ("Basic /////w==", None),
        ("Basic \xe4", None),
        ("Bearer", None),
        ("Bearer a b", None),
        ("Digest a", None),
        ("", None),
    ],
)
def test_the_token_that_is_shown(authorization: str, token: str | None) -> None:
    assert token_in(authorization) == token


def test_an_answer_that_asks_who_it_is() -> None:
    told = encode_response(HttpResponse(401, b"", challenge='Basic realm="r"'))
    assert told.startswith(b"HTTP/1.1 401 Unauthorized\r\n")
    assert b'\r\nWWW-Authenticate: Basic realm="r"\r\n' in told


def test_an_answer() -> None:
    response = HttpResponse(503, b"no\n")
    told = encode_response(response)
    assert told.startswith(b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n")
    assert told.endswith(b"\r\n\r\nno\n")
    assert b"Content-Length: 3\r\n" in told
    assert encode_response(response, with_body=False) == told[:-3]
