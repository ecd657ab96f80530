"""How far a TCP connection has come, as the kernel counts it: what tells a slow line from a dead one."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple, Protocol

__all__ = ["Carried", "carried"]

# struct tcp_info of Linux, which only ever grows at its end: packets under way, bytes acknowledged, bytes received.
_UNACKNOWLEDGED, _BYTES = struct.Struct("=24xI"), struct.Struct("=120xQQ")


class Carried(NamedTuple):
    """Of one connection. ``under_way``: packets that the other host has not acknowledged."""

    under_way: int
    acknowledged_bytes: int
    received_bytes: int


class _Asked(Protocol):
    """As much of a socket as is needed here."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


def carried(sock: _Asked | None) -> Carried | None:
    """Of this socket, None where that is not known: it is closed, no TCP socket, or this is not Linux."""
    option = getattr(socket, "TCP_INFO", None)
    if sock is None or option is None:
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, option, _BYTES.size)
    except (OSError, ValueError):  # of a transport that has been closed uvloop gives a socket without a descriptor
        return None
    if len(info) < _BYTES.size:
        return None
    return Carried(*_UNACKNOWLEDGED.unpack_from(info), *_BYTES.unpack(info))
