"""As much of HTTP/1.1 as is served: one GET or HEAD a connection, its answer, and the end. Pure.

A request is its first line and who says it (the header Authorization); what other headers say is not looked at, and a
body is not waited for. What is too long, or no HTTP, is a WireError, after which only closing the connection helps.
"""

from __future__ import annotations

import base64
import binascii
import re

from waltz_ray.errors import WireError
from waltz_ray.protocol.value import value

__all__ = ["HEAD_BYTES", "HttpFramer", "HttpRequest", "HttpResponse", "encode_response", "token_in"]

HEAD_BYTES = 8 * 1024
"""The most that a request may have until its empty line."""

_LINE = re.compile(rb"([A-Z]{1,16}) (/[!-~]{0,2047}) HTTP/1\.[01]")
_END = re.compile(rb"\r?\n\r?\n")
_AUTHORIZATION = re.compile(rb"\nauthorization:[ \t]*([^\r\n]*)", re.IGNORECASE)
_SCHEME = re.compile(r"(bearer|basic) +(\S+)", re.IGNORECASE)
_TITLES = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    503: "Service Unavailable",
}


@value()
class HttpRequest:
    """``path``: without what follows a question mark. ``authorization``: that header; "" = there is none."""

    method: str
    path: str
    authorization: str = ""


@value()
class HttpResponse:
    """``kind``: what the body is, as the header Content-Type says it. ``challenge``: how who asks has to say who he is,
    as WWW-Authenticate says it, which a 401 must have."""

    status: int
    body: bytes
    kind: str = "text/plain; charset=utf-8"
    challenge: str = ""


class HttpFramer:
    """Cuts one connection's only request off its bytes; what comes behind it is let go."""

    def __init__(self) -> None:
        self.ready = False
        """The request has come."""
        self._head = bytearray()

    def feed(self, data: bytes) -> list[HttpRequest]:
        """The request, once its head is whole. WireError if it is none, or too long."""
        if self.ready:
            return []
        looked = max(0, len(self._head) - 3)
        self._head += data[: HEAD_BYTES + 1 - len(self._head)]
        end = _END.search(self._head, looked)
        if end is None:
            if len(self._head) > HEAD_BYTES:
                raise WireError(f"a request's head is longer than {HEAD_BYTES} bytes")
            return []
        head = bytes(self._head[: end.start()])
        line = head.split(b"\n", 1)[0].rstrip(b"\r")
        found = _LINE.fullmatch(line)
        if found is None:
            raise WireError(f"no request of HTTP/1.1: {line[:80]!r}")
        self.ready = True
        self._head.clear()
        said = _AUTHORIZATION.search(head)
        authorization = "" if said is None else said[1].decode("latin-1").strip()
        return [HttpRequest(found[1].decode(), found[2].decode().split("?", 1)[0], authorization)]

    def eof(self) -> None:
        """WireError if the stream ended inside a request."""
        if self._head:
            raise WireError("the connection ended inside a request")


def token_in(authorization: str) -> str | None:
    """The token that a header Authorization shows: of ``Bearer``, or in place of the password of ``Basic``, whose user
    may be anything. None: it shows none."""
    found = _SCHEME.fullmatch(authorization)
    if found is None:
        return None
    if found[1].lower() == "bearer":
        return found[2]
    try:
        _, colon, password = base64.b64decode(found[2].encode("ascii"), validate=True).decode().partition(":")
    except (binascii.Error, UnicodeError):
        return None
    return password if colon else None


def encode_response(response: HttpResponse, with_body: bool = True) -> bytes:
    """The bytes of an answer, the last on its connection. It may not be kept, framed, or taken for another kind."""
    challenge = f"WWW-Authenticate: {response.challenge}\r\n" if response.challenge else ""
    head = (
        f"HTTP/1.1 {response.status} {_TITLES[response.status]}\r\n"
        f"Content-Type: {response.kind}\r\n"
        f"Content-Length: {len(response.body)}\r\n"
        f"{challenge}"
        "Connection: close\r\n"
        "Cache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        "X-Frame-Options: DENY\r\n"
        "Content-Security-Policy: default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
        "connect-src 'self'\r\n"
        "\r\n"
    )
    return head.encode() + (response.body if with_body else b"")
