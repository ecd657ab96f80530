"""Frames over a blocking socket: for the threads at a disk, for Spark's workers, for the command line.

No threads, no event loop. Every error says who the peer is.
"""

from __future__ import annotations

import socket
import ssl
import time
from types import TracebackType

from waltz_ray.errors import AuthenticationFailed, WireError
from waltz_ray.net.connector import connect_blocking
from waltz_ray.net.handshake import Prove, handshake_of
from waltz_ray.net.tls import peer_channel
from waltz_ray.wire.authentication import AUTHENTICATION_VERSION
from waltz_ray.wire.framing import (
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    HELLO_VERSION,
    MAGIC_AUTHENTICATION,
    MAGIC_HELLO,
    MAX_HELLO_BYTES,
    Hello,
    decode_hello,
    encode_frame,
    encode_hello,
    negotiate,
    stranger,
)

__all__ = ["BlockingStream", "TurnBuffer"]

_FIRST_BUFFER_BYTES = MAX_HELLO_BYTES + FRAME_HEADER_BYTES
_BUFFER_BYTES = 4 * 1024 * 1024
_TLS_SEND_BYTES = 256 * 1024  # the time-out of a send through TLS is that of all that it is given

BytesLike = bytes | bytearray | memoryview


class TurnBuffer:
    """A receive buffer that hands out whole payloads as views of itself.

    ``room()`` is where the next bytes go. It is small at first and doubles whenever it has been filled: up to
    ``buffer_bytes``, and for a frame that is longer up to that, so a long frame is never mistaken for the end of the
    stream. When a long frame is done its room is given up. Views from ``frames`` are valid until ``room``.
    """

    def __init__(self, max_frame_bytes: int, buffer_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._most_bytes = buffer_bytes
        self._buffer = memoryview(bytearray(min(buffer_bytes, _FIRST_BUFFER_BYTES)))
        self._filled = False  # to the end, by what came last
        self._start = self._end = 0
        self._wanted = FRAME_HEADER_BYTES  # the size of the frame at _start, as far as it is known

    def room(self) -> memoryview:
        """The free part, never empty."""
        held, size = self._end - self._start, len(self._buffer)
        if self._filled and size < max(self._most_bytes, self._wanted):
            size = min(2 * size, max(self._most_bytes, self._wanted))
        elif size > self._most_bytes >= self._wanted and held < self._most_bytes:
            size = self._most_bytes
        if size != len(self._buffer):
            other = memoryview(bytearray(size))
            other[:held] = self._buffer[self._start : self._end]
            self._buffer, self._start, self._end = other, 0, held
        elif self._start:
            self._buffer[:held] = self._buffer[self._start : self._end]
            self._start, self._end = 0, held
        return self._buffer[self._end :]

    def received(self, count: int) -> None:
        """``count`` bytes have been put into ``room()``."""
        self._end += count
        self._filled = self._end == len(self._buffer)

    def frames(self, magic: int, version: int, most_bytes: int) -> list[memoryview]:
        """Complete payloads, keep-alives left out, up to the one that reaches ``most_bytes``.

        WireError if a header is not of this protocol.
        """
        payloads: list[memoryview] = []
        stop = self._start + most_bytes
        while not payloads or self._start < stop:
            self._wanted = FRAME_HEADER_BYTES
            if self._end - self._start < FRAME_HEADER_BYTES:
                break
            found_magic, found_version, length = FRAME_HEADER.unpack_from(self._buffer, self._start)
            self._check(found_magic, found_version, length, magic, version)
            self._wanted = FRAME_HEADER_BYTES + length
            if self._end - self._start < self._wanted:
                break
            if length:
                payloads.append(self._buffer[self._start + FRAME_HEADER_BYTES : self._start + self._wanted])
            self._start += self._wanted
        return payloads

    def _check(self, found_magic: int, found_version: int, length: int, magic: int, version: int) -> None:
        if found_magic != magic or found_version != version:
            raise WireError(
                f"expected a frame {chr(magic)!r} version {version}, got magic 0x{found_magic:02x} "
                f"version {found_version}; {stranger(found_magic)}"
            )
        most = MAX_HELLO_BYTES if magic in (MAGIC_HELLO, MAGIC_AUTHENTICATION) else self._max_frame_bytes
        if not 0 <= length <= most:
            raise WireError(f"a frame of {length} bytes is impossible here, the limit is {most}")

    def eof(self) -> None:
        """The stream has ended: WireError if it ended inside a frame."""
        if self._end > self._start:
            raise WireError(f"the peer closed the connection inside a frame, {self._end - self._start} bytes into it")


class BlockingStream:
    """Frames of ``magic`` over a connected socket, in the highest version that both sides know. One thread at a time.

    ``greet`` before anything else. ``greeting`` says who this is, for the peer's log; ``peer`` is who that is.
    """

    def __init__(
        self,
        connection: socket.socket,
        peer: str,
        magic: int,
        versions: tuple[int, ...],
        max_frame_bytes: int,
        greeting: str,
        buffer_bytes: int = _BUFFER_BYTES,
    ) -> None:
        self.peer = peer
        self.version = -1
        """Agreed on; -1 before the peer's HELLO."""
        self.hello = Hello((), "")
        """The peer's."""
        self.send_timeout_s: float | None = None
        """Through TLS: how long a piece of what is sent may take, whatever the time-out of receiving is. Without it the
        kernel keeps such a time (SO_SNDTIMEO)."""
        self._limit_s: float | None = None
        self._socket = connection
        self._tls = connection if isinstance(connection, ssl.SSLSocket) else None
        self._magic = magic
        self._versions = versions
        self._greeting = greeting
        self._buffer = TurnBuffer(max_frame_bytes, buffer_bytes)

    @classmethod
    def open(
        cls,
        host: str,
        port: int,
        magic: int,
        versions: tuple[int, ...],
        max_frame_bytes: int,
        greeting: str,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
        prove: Prove | None = None,
    ) -> BlockingStream:
        """A new connection, greeted within ``timeout_s`` seconds once it is made. OSError, WireError."""
        connection = connect_blocking(host, port, timeout_s, tls)
        stream = cls(connection, f"{host}:{port}", magic, versions, max_frame_bytes, greeting)
        try:
            if not stream.greet(timeout_s, prove):
                raise ConnectionResetError(f"{stream.peer} closed the connection before its HELLO")
            stream.settimeout(timeout_s)
        except BaseException:
            stream.close()
            raise
        return stream

    def greet(self, timeout_s: float, prove: Prove | None = None) -> bool:
        """Exchange HELLOs, and what has to be proved; False if the peer has gone without a word.

        TimeoutError if it takes too long. The socket's time-out is none afterwards.
        """
        deadline = time.monotonic() + timeout_s
        try:
            self.send_all(encode_hello(Hello(self._versions, self._greeting)))
            hello = self._first(MAGIC_HELLO, HELLO_VERSION, deadline)
            if hello is None:
                return False
            try:
                self.hello = decode_hello(hello)
                self.version = negotiate(self._versions, self.hello.versions)
            except WireError as error:
                raise WireError(f"{self.peer}: {error}") from None
            if prove is not None:
                self._authenticate(prove, deadline)
        except TimeoutError as error:
            missing = "no HELLO" if self.version < 0 else "it has not proved who it is"
            raise TimeoutError(f"{self.peer}: timed out, {missing} for {timeout_s:g} s") from error
        self._socket.settimeout(None)
        return True

    def _authenticate(self, prove: Prove, deadline: float) -> None:
        """WireError if the peer cannot prove what it has to, or says so of this side."""
        handshake = handshake_of(prove, peer_channel(self._tls))
        answer = handshake.begin()
        while True:
            if answer is not None:
                self.send_all(encode_frame(MAGIC_AUTHENTICATION, AUTHENTICATION_VERSION, answer))
            if handshake.failure:
                raise AuthenticationFailed(f"{self.peer}: {handshake.failure}")
            if handshake.done:
                return
            payload = self._first(MAGIC_AUTHENTICATION, AUTHENTICATION_VERSION, deadline)
            if payload is None:
                raise AuthenticationFailed(f"{self.peer} closed the connection before it was proved who is who")
            try:
                answer = handshake.take(payload)
            except WireError as error:
                raise AuthenticationFailed(f"{self.peer}: {error}") from None

    def _first(self, magic: int, version: int, deadline: float) -> memoryview | None:
        """The next payload of those before the first message, until the deadline; None: the peer has closed."""
        while not (payloads := self._frames(magic, version, most_bytes=1)):
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            if not self._receive():
                return None
        return payloads[0]

    def settimeout(self, timeout_s: float) -> None:
        """Limit each of the following sends, and each wait for a payload, to that many seconds."""
        self._limit_s = max(0.001, timeout_s)
        self._socket.settimeout(self._limit_s)

    def turn(self, most_bytes: int) -> list[memoryview]:
        """Payloads that have come, about ``most_bytes`` of them; waits for at least one. [] if the peer has closed.

        They are views of the receive buffer: the next call makes them invalid. TimeoutError: see ``settimeout``.
        """
        payloads = self._frames(self._magic, self.version, most_bytes)
        if payloads:
            return payloads
        end_s = None if self._limit_s is None else time.monotonic() + self._limit_s
        while self._receive() and not (payloads := self._frames(self._magic, self.version, most_bytes)):
            if end_s is not None:  # pieces and keep-alives do not prolong it
                self._socket.settimeout(max(0.001, end_s - time.monotonic()))
        if end_s is not None:
            self._socket.settimeout(self._limit_s)
        return payloads

    def receive(self) -> bytes:
        """The next payload, a copy. ConnectionResetError if the peer has closed instead."""
        payloads = self.turn(most_bytes=1)
        if not payloads:
            raise ConnectionResetError(f"{self.peer} closed the connection")
        return bytes(payloads[0])

    def send(self, *parts: BytesLike) -> None:
        """One frame with this payload."""
        self.send_all(encode_frame(self._magic, self.version, *parts))

    def send_all(self, data: BytesLike) -> None:
        """Whole frames. TimeoutError if the peer does not take them."""
        try:
            if self._tls is None:
                self._socket.sendall(data)
            else:
                self._send_encrypted(self._tls, memoryview(data).cast("B"))
        except (TimeoutError, BlockingIOError) as error:  # the latter where the kernel keeps the time (SO_SNDTIMEO)
            raise TimeoutError(f"{self.peer}: timed out, it does not take what it is sent") from error
        except OSError as error:
            raise self._named(error) from error

    def _send_encrypted(self, connection: ssl.SSLSocket, data: memoryview) -> None:
        timeout_s = connection.gettimeout()
        if self.send_timeout_s is not None:
            connection.settimeout(self.send_timeout_s)
        for first in range(0, len(data), _TLS_SEND_BYTES):
            connection.sendall(data[first : first + _TLS_SEND_BYTES])
        connection.settimeout(timeout_s)  # after a failure nothing more is received

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> BlockingStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _frames(self, magic: int, version: int, most_bytes: int) -> list[memoryview]:
        try:
            return self._buffer.frames(magic, version, most_bytes)
        except WireError as error:
            raise WireError(f"{self.peer}: {error}") from None

    def _receive(self) -> bool:
        """Some bytes more; False if the peer has closed, between two frames."""
        try:
            room = self._buffer.room()
            count = self._socket.recv_into(room)
            if self._tls is not None and 0 < count < len(room):
                count += _waiting(self._tls, room[count:])
        except TimeoutError as error:
            raise TimeoutError(f"{self.peer}: timed out, it says nothing, or nothing whole") from error
        except OSError as error:
            raise self._named(error) from error
        if count:
            self._buffer.received(count)
            return True
        try:
            self._buffer.eof()
        except WireError as error:
            raise WireError(f"{self.peer}: {error}") from None
        return False

    def _named(self, error: OSError) -> OSError:
        what = f"{self.peer}: {error.strerror or error}"
        if isinstance(error, ssl.SSLError):  # its numbers are not those of the system
            return ConnectionError(what)
        return OSError(what) if error.errno is None else OSError(error.errno, what)


def _waiting(connection: ssl.SSLSocket, room: memoryview) -> int:
    """Take what else has come, for which nothing is waited: TLS gives 16 KiB at a time, and a turn is worth more."""
    timeout_s, count = connection.gettimeout(), 0
    connection.settimeout(0)
    try:
        while count < len(room) and (more := connection.recv_into(room[count:])):
            count += more
    except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
        pass  # that is all
    finally:
        connection.settimeout(timeout_s)
    return count
