"""What cuts a connection's bytes into frames. Ours is here; every other protocol brings its own."""

from __future__ import annotations

from typing import Protocol, TypeVar

from waltz_ray.errors import WireError
from waltz_ray.wire.framing import Frame, FrameDecoder, Hello, decode_hello, negotiate

__all__ = ["Framer", "GreetedFramer"]

F = TypeVar("F")


class Framer(Protocol[F]):
    """Cuts one connection's bytes into frames; after a ``WireError`` only closing the connection helps."""

    @property
    def ready(self) -> bool:
        """The peer has said what has to come first (HELLO, the first request): it is no longer waited for."""

    def feed(self, data: bytes) -> list[F]:
        """The frames that ``data``, the next piece, completes. ``WireError`` if it is not this protocol."""

    def eof(self) -> None:
        """The stream has ended: ``WireError`` if it ended inside a frame."""


class GreetedFramer:
    """Ours: HELLO, then frames of ``magic`` in the highest version that both sides know. Frames are payloads.

    What comes in one piece with the HELLO is cut before anybody can know what was agreed on. It is checked here, so
    nobody is handed a frame of another version or magic.
    """

    def __init__(self, magic: int, versions: tuple[int, ...], max_frame_bytes: int) -> None:
        self.ready = False
        self.version = -1
        """Agreed on; -1 before the peer's HELLO."""
        self.hello = Hello((), "")
        """The peer's."""
        self._magic = magic
        self._versions = versions
        self._decoder = FrameDecoder(max_frame_bytes, greeted=False)
        self._error: WireError | None = None

    def feed(self, data: bytes) -> list[memoryview]:
        """Payloads that ``data`` completes, HELLO and keep-alives left out."""
        if self._error is not None:
            raise self._error
        frames = self._decoder.feed(data)
        if not self.ready and frames:
            try:
                frames = self._greet(frames)
            except WireError as error:
                self._error = error
                raise
        return [frame[2] for frame in frames]  # by number: it costs half as much as by name

    def eof(self) -> None:
        if self._error is None:
            self._decoder.eof()

    def _greet(self, frames: list[Frame]) -> list[Frame]:
        self.hello = decode_hello(frames[0].payload)
        self.version = negotiate(self._versions, self.hello.versions)
        self._decoder.expect(self._magic, self.version)
        for magic, version, payload in frames[1:]:
            self._decoder.check(magic, version, len(payload))
        self.ready = True
        return frames[1:]
