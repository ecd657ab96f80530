"""Frames: how messages are cut out of a TCP stream, and the HELLO that begins one.

A frame is ``byte magic | short version | int length | payload``. Length 0 is a keep-alive. The first frame of each
side is HELLO (magic ``H``, version 0): ``int n | short[n] versions | string message``; the highest version that
both sides know is used from then on. Where the two sides have to prove something to each other that follows (magic
``A``, version 1), and nothing else until it is done.

Nothing is believed before it is checked: a wrong magic, an unknown version or an impossible length is an error as
soon as it has arrived, before any of the payload is waited for. Room is made for what has arrived, never for what a
header announces.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from waltz_ray.errors import WireError
from waltz_ray.protocol.value import value
from waltz_ray.wire.primitives import BytesLike

__all__ = [
    "FRAME_HEADER",
    "FRAME_HEADER_BYTES",
    "HELLO_VERSION",
    "KNOWN_VERSIONS",
    "MAX_HELLO_BYTES",
    "MAGIC_AUTHENTICATION",
    "MAGIC_CLIENT",
    "MAGIC_HELLO",
    "MAGIC_REPLICA",
    "Frame",
    "FrameDecoder",
    "GreetedDecoder",
    "Hello",
    "cluster_meant",
    "decode_hello",
    "encode_frame",
    "encode_hello",
    "frame_header",
    "meaning_cluster",
    "negotiate",
    "stranger",
]

MAGIC_HELLO = 0x48  # 'H'
MAGIC_CLIENT = 0x4C  # 'L'
MAGIC_REPLICA = 0x52  # 'R'
MAGIC_AUTHENTICATION = 0x41  # 'A'

HELLO_VERSION = 0
KNOWN_VERSIONS: dict[int, frozenset[int]] = {
    MAGIC_HELLO: frozenset((HELLO_VERSION,)),
    MAGIC_CLIENT: frozenset(range(6)),
    MAGIC_REPLICA: frozenset((2,)),
    MAGIC_AUTHENTICATION: frozenset((1,)),
}

MAX_HELLO_BYTES = 4096
"""Of a HELLO's payload: what somebody may send before it has said who it is."""

_TLS_HANDSHAKE = 0x16
_MOST_NAMED = 16  # versions of a peer, in a message
FRAME_HEADER = struct.Struct(">Bhi")
FRAME_HEADER_BYTES = FRAME_HEADER.size  # 7
_INT = struct.Struct(">i")
_MAX_FRAME_BYTES = (1 << 31) - 1


def frame_header(magic: int, version: int, length: int) -> bytes:
    """The 7 bytes before a payload of ``length`` bytes."""
    if length > _MAX_FRAME_BYTES:
        raise WireError(f"a payload of {length} bytes does not fit in a frame; send it in smaller batches")
    return FRAME_HEADER.pack(magic, version, length)


def encode_frame(magic: int, version: int, *parts: BytesLike) -> bytes:
    """One frame of the payload that ``parts`` make together. Without parts: a keep-alive."""
    return b"".join((frame_header(magic, version, sum(map(len, parts))), *parts))


def stranger(magic: int) -> str:
    """Who may have sent a first byte that is none of ours, for the log."""
    if magic == _TLS_HANDSHAKE:
        return (
            "it is a TLS client, and this port speaks the plain protocol: connect without TLS, or put something in "
            "front that ends TLS; the servers of a cluster may have a certificate (docs/security.md)"
        )
    return "is this the right port?"


class Frame(NamedTuple):
    """One frame as it came. ``payload`` is read-only and never changes."""

    magic: int
    version: int
    payload: memoryview


class _Decoder:
    """Cuts a stream into frames.

    ``max_frame_bytes`` limits a payload. Until ``expect`` is called every version this code knows is let through,
    because a peer may send its first messages right behind its HELLO; the connection checks that a HELLO came first.
    ``greeted=False``: the first frame has to be a HELLO, and any other is refused at its header.
    After an error the decoder stays broken: the stream has lost its beat, only closing it helps.
    """

    def __init__(self, max_frame_bytes: int, greeted: bool = True) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._greeted = greeted
        self._versions = KNOWN_VERSIONS
        self._header = b""  # the beginning of a header, when a piece ended inside one
        self._magic = self._version = 0  # of the payload that is being gathered
        self.unfinished: bytearray | None = None
        """What has come of a payload that did not come whole."""
        self._length = 0  # of the whole of it
        self._broken: str | None = None
        self._unchecked: set[tuple[int, int]] | None = None  # magic and version of keep-alives, until it is agreed on

    def expect(self, magic: int, version: int) -> None:
        """From now on only frames of this magic and version are right (call it once HELLO has been agreed on).

        One that has begun is looked at again: its header was let through when nothing was agreed on. If it is none of
        these, the next ``feed`` is a WireError.
        """
        self._versions = {magic: frozenset((version,))}
        try:
            if self.unfinished is not None:
                self._check(self._magic, self._version, self._length)
            elif self._header:
                self._check_magic(self._header[0])
        except WireError as error:
            self._fail(error)

    def eof(self) -> None:
        """The stream has ended: ``WireError`` if it ended inside a frame."""
        if self._broken is not None:
            raise WireError(self._broken)
        if self.unfinished is not None:
            raise WireError(
                f"the peer closed the connection inside a frame: "
                f"{len(self.unfinished)} of {self._length} payload bytes had come"
            )
        if self._header:
            raise WireError(
                f"the peer closed the connection inside a frame header: "
                f"{len(self._header)} of {FRAME_HEADER_BYTES} bytes had come"
            )

    def _feed(self, data: memoryview, shared: bool) -> list[Frame]:
        frames: list[Frame] = []
        position, end = 0, len(data)
        if self.unfinished is not None:
            position = self._fill(data, 0, frames)
        while position < end:
            if self._header or end - position < FRAME_HEADER_BYTES:
                taken = FRAME_HEADER_BYTES - len(self._header)
                self._header += bytes(data[position : position + taken])
                position += min(taken, end - position)
                if len(self._header) < FRAME_HEADER_BYTES:
                    self._check_magic(self._header[0])
                    break
                magic, version, length = FRAME_HEADER.unpack(self._header)
                self._header = b""
            else:
                magic, version, length = FRAME_HEADER.unpack_from(data, position)
                position += FRAME_HEADER_BYTES
            if version not in self._versions.get(magic, ()) or not 0 <= length <= self.max_frame_bytes:
                self._check(magic, version, length)
            if magic == MAGIC_HELLO or not self._greeted:
                self._check_hello(magic, length)
            if not length:
                if self._unchecked is not None:
                    self._unchecked.add((magic, version))
                continue
            if length <= end - position:
                payload = data[position : position + length]
                frames.append(Frame(magic, version, payload if shared else memoryview(bytes(payload))))
                position += length
            else:
                self._magic, self._version, self._length = magic, version, length
                self.unfinished = bytearray()
                position = self._fill(data, position, frames)
        return frames

    def _fill(self, data: memoryview, position: int, frames: list[Frame]) -> int:
        """Put what belongs to the unfinished payload into it; the position after that."""
        assert self.unfinished is not None
        taken = min(self._length - len(self.unfinished), len(data) - position)
        self.unfinished += data[position : position + taken]
        if len(self.unfinished) == self._length:
            frames.append(Frame(self._magic, self._version, memoryview(self.unfinished).toreadonly()))
            self.unfinished = None
        return position + taken

    def _fail(self, error: WireError) -> None:
        self._broken = str(error)
        self.unfinished = None

    def _check_hello(self, magic: int, length: int) -> None:
        if magic != MAGIC_HELLO:
            raise WireError(f"the first frame must be a HELLO, not one with magic {magic:#04x}")
        if length > MAX_HELLO_BYTES:
            raise WireError(f"a HELLO of {length} bytes, the limit is {MAX_HELLO_BYTES}")
        self._greeted = True

    def _check_magic(self, magic: int) -> frozenset[int]:
        versions = self._versions.get(magic)
        if versions is None:
            wanted = ", ".join(f"0x{known:02X} '{chr(known)}'" for known in self._versions)
            raise WireError(f"frame magic 0x{magic:02X} is not one of ours here ({wanted}); {stranger(magic)}")
        return versions

    def _check(self, magic: int, version: int, length: int) -> None:
        versions = self._check_magic(magic)
        if version not in versions:
            raise WireError(
                f"frame of magic '{chr(magic)}' has version {version}, this connection speaks {sorted(versions)}"
            )
        if length < 0:
            raise WireError(f"frame of magic '{chr(magic)}' has the impossible length {length}")
        if length > self.max_frame_bytes:
            raise WireError(
                f"frame of magic '{chr(magic)}' has {length} bytes, the limit is {self.max_frame_bytes}; "
                f"send smaller batches or raise the limit on this side"
            )


class FrameDecoder(_Decoder):
    """Cuts a stream into frames of any kind."""

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """The frames that ``data`` completes, keep-alives left out.

        Payloads are slices of ``bytes``, and copies of anything else: that may be a buffer that is used again.
        ``WireError`` as soon as a header is wrong; frames before it in the same piece are dropped with it.
        """
        if self._broken is not None:
            raise WireError(self._broken)
        try:
            return self._feed(memoryview(data), shared=data.__class__ is bytes)
        except WireError as error:
            self._fail(error)
            raise


@value()
class Hello:
    """The first frame of each side: the versions it can speak, and who it is, for the other side's log."""

    versions: tuple[int, ...]
    message: str


_CLUSTER = " cluster="


def meaning_cluster(message: str, cluster_key: str) -> str:
    """A HELLO's ``message`` that also says which cluster its sender means, by its key; "": it does not know."""
    return f"{message}{_CLUSTER}{cluster_key}" if cluster_key else message


def cluster_meant(message: str) -> str:
    """The key of the cluster that is meant by who sent this in its HELLO, "": it does not say."""
    return message.rpartition(_CLUSTER)[2] if _CLUSTER in message else ""


def encode_hello(hello: Hello) -> bytes:
    """A whole HELLO frame."""
    text = hello.message.encode()
    count = len(hello.versions)
    head = struct.pack(f">i{count}hi", count, *hello.versions, len(text))
    return encode_frame(MAGIC_HELLO, HELLO_VERSION, head, text)


def decode_hello(payload: BytesLike) -> Hello:
    """The payload of a HELLO frame; a null message reads as an empty one."""
    view = memoryview(payload)
    (count,) = _INT.unpack_from(view) if len(view) >= 4 else (-1,)
    text_start = 8 + 2 * count
    if count < 0 or text_start > len(view):
        raise WireError(f"HELLO of {len(view)} bytes is cut short or has the impossible count {count}")
    versions = struct.unpack_from(f">{count}h", view, 4)
    (length,) = _INT.unpack_from(view, text_start - 4)
    if length < -1 or max(length, 0) != len(view) - text_start:
        raise WireError(f"HELLO says its message has {length} bytes, {len(view) - text_start} are there")
    try:
        return Hello(versions, str(view[text_start:], "utf-8"))
    except UnicodeDecodeError as error:
        raise WireError(f"HELLO's message is not UTF-8: {error.reason}") from None


def negotiate(ours: Iterable[int], theirs: Iterable[int]) -> int:
    """The highest version that both sides know. ``WireError`` names both sets if there is none."""
    our_set, their_set = set(ours), set(theirs)
    if not our_set & their_set:
        named = str(sorted(their_set)[:_MOST_NAMED])
        more = f" and {len(their_set) - _MOST_NAMED} more" if len(their_set) > _MOST_NAMED else ""
        raise WireError(f"no common version: we speak {sorted(our_set)}, the peer speaks {named}{more}")
    return max(our_set & their_set)


class GreetedDecoder(_Decoder):
    """Cuts a stream into HELLO and then payloads of ``magic``, in the highest version that both sides know.

    What comes in one piece with the HELLO is cut before anybody can know what was agreed on. It is checked here, so
    nobody is handed a frame of another version or magic.
    """

    def __init__(
        self, magic: int, versions: tuple[int, ...], max_frame_bytes: int, authenticates: bool = False
    ) -> None:
        """``authenticates``: behind HELLO come frames of authentication, until ``admit`` is called."""
        super().__init__(max_frame_bytes, greeted=False)
        self.ready = False
        """HELLO has come, and whatever has to be proved has been."""
        self.authenticating = False
        """HELLO has come, ``admit`` has not been called: what ``feed`` returns is of authentication."""
        self.version = -1
        """Agreed on; -1 before the peer's HELLO."""
        self.hello = Hello((), "")
        """The peer's."""
        self._wanted = magic
        self._ours = versions
        self._authenticates = authenticates
        self._unchecked = set()
        self._max_later = max_frame_bytes

    def admit(self) -> None:
        """All is proved: from now on frames of the protocol are right, and none else."""
        self.ready, self.authenticating = True, False
        self.max_frame_bytes = self._max_later
        self.expect(self._wanted, self.version)

    def feed(self, data: bytes) -> list[memoryview]:
        """The payloads that ``data`` completes, HELLO and keep-alives left out. Else as ``FrameDecoder.feed``."""
        if self._broken is not None:
            raise WireError(self._broken)
        try:
            frames = self._feed(memoryview(data), shared=True)
            if frames and self.version < 0:
                frames = self._greet(frames)
        except WireError as error:
            self._fail(error)
            raise
        return [frame[2] for frame in frames]  # by number: it costs half as much as by name

    def _greet(self, frames: list[Frame]) -> list[Frame]:
        self.hello = decode_hello(frames[0].payload)
        self.version = negotiate(self._ours, self.hello.versions)
        if self._authenticates:
            self.authenticating, self.max_frame_bytes = True, MAX_HELLO_BYTES
            self.expect(MAGIC_AUTHENTICATION, max(KNOWN_VERSIONS[MAGIC_AUTHENTICATION]))
        else:
            self.admit()
        keep_alives, self._unchecked = self._unchecked or (), None
        for magic, version in keep_alives:
            self._check(magic, version, 0)
        for magic, version, payload in frames[1:]:
            self._check(magic, version, len(payload))
        if self._broken is not None:
            raise WireError(self._broken)
        return frames[1:]
