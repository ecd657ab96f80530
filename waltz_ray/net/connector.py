"""Opening a connection, and what the socket of every connection is told.

A machine that vanishes sends nothing any more, not even a reset: without keep-alive probes the other side would hold
its connection, and its place among the limits, for ever.
"""

from __future__ import annotations

import asyncio
import errno
import re
import socket
import ssl
from collections.abc import Callable
from typing import Protocol, TypeVar

from waltz_ray import compat
from waltz_ray.errors import shortage

__all__ = ["Opening", "connect", "connect_blocking", "keep_alive"]

_IDLE_S, _INTERVAL_S, _PROBES = 5, 2, 3  # a vanished machine is noticed in 11 s
_UNTAKEN_MS = 10_000


class _Options(Protocol):
    """As much of a socket as is needed here."""

    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


class Opening(asyncio.Protocol):
    """One side of a connection that is to be opened: it can be given up, before and after it is."""

    def abort(self, why: str | Exception) -> None:
        """Close at once, dropping what is unsent; if it is not connected yet, as soon as it is."""
        raise NotImplementedError


P = TypeVar("P", bound=Opening)


def keep_alive(sock: _Options | None) -> None:
    """Small messages leave at once, and a peer that vanished is noticed within 11 s. None: it is no socket."""
    if sock is None:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    _set(sock, "TCP_KEEPIDLE", _IDLE_S)
    _set(sock, "TCP_KEEPINTVL", _INTERVAL_S)
    _set(sock, "TCP_KEEPCNT", _PROBES)


def _set(sock: _Options, option: str, value: int) -> None:
    if hasattr(socket, option):  # not every system has all of them
        sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _opened(sock: _Options, untaken_ms: int = _UNTAKEN_MS) -> None:
    """Who opened a connection gives it up when nothing of what it sends is taken: it can open another one.

    Who accepted it may not: how long a peer may take nothing is a limit of its own there (docs/wire.md, "Limits").
    """
    keep_alive(sock)
    _set(sock, "TCP_USER_TIMEOUT", untaken_ms)


async def connect(
    make: Callable[[], P],
    host: str,
    port: int,
    timeout_s: float | None,
    tls: ssl.SSLContext | None = None,
    untaken_ms: int = _UNTAKEN_MS,
) -> P:
    """What ``make`` returned, connected, in the running loop. ``OSError`` if that fails or takes ``timeout_s``.

    ``timeout_s`` None: the caller limits the time, of several connections together. After ``untaken_ms`` in which the
    peer takes nothing of what it is sent the kernel ends the connection.

    However it fails, whatever was made is aborted: no connection is left that nobody waits for.
    """
    made: list[P] = []

    def protocol() -> P:
        made.append(make())
        return made[-1]

    loop = asyncio.get_running_loop()
    try:
        # Not wait_for: cancelled at the wrong moment it loses a connection that has just been made.
        async with compat.timeout(timeout_s):
            transport, _ = await loop.create_connection(protocol, host, port, ssl=tls)
    except BaseException as error:
        for one in made:
            one.abort("given up while it was being opened")
        if isinstance(error, OSError):
            raise _named(error, host, port, timeout_s) from error
        if isinstance(error, RuntimeError | MemoryError):  # no thread can be started that looks up a name, or no memory
            raise OSError(errno.ENOMEM, f"no connection to {host}:{port}: {shortage(error)}") from error
        raise
    try:
        _opened(transport.get_extra_info("socket"), untaken_ms)
    except (OSError, ValueError) as error:  # uvloop: the handle of a socket that is closed already is negative
        made[-1].abort("closed as soon as it was open")
        raise ConnectionResetError(f"{host}:{port} closed the connection as soon as it was open") from error
    return made[-1]


def connect_blocking(host: str, port: int, timeout_s: float, tls: ssl.SSLContext | None = None) -> socket.socket:
    """A connected socket, whose calls take ``timeout_s`` at the most. ``OSError`` if it cannot be had."""
    try:
        connection = socket.create_connection((host, port), timeout_s)
        try:
            _opened(connection)
            return connection if tls is None else tls.wrap_socket(connection, server_hostname=host)
        except BaseException:
            connection.close()
            raise
    except OSError as error:
        raise _named(error, host, port, timeout_s) from error


def _named(error: OSError, host: str, port: int, timeout_s: float | None) -> OSError:
    """The same error, of the class its number has; it says who could not be reached."""
    if isinstance(error, TimeoutError) and timeout_s is not None:
        return TimeoutError(f"no connection to {host}:{port} within {timeout_s:g} s")
    what = f"no connection to {host}:{port}: {error.strerror or error}"
    if isinstance(error, ssl.SSLError):  # its numbers are not those of the system
        plain = error.reason == "WRONG_VERSION_NUMBER"
        return ConnectionError(f"{what}; what listens there speaks no TLS" if plain else what)
    number = error.errno or _common_number(str(error))
    return OSError(what) if number is None else OSError(number, what)


def _common_number(text: str) -> int | None:
    """A loop tells of a host with several addresses only the text of what each of them met."""
    numbers = {int(number) for number in re.findall(r"\[Errno (\d+)\]", text)}
    return numbers.pop() if len(numbers) == 1 else None
