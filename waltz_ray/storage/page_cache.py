"""How much of the log stays in the kernel's page cache: what was written last, up to a bound.

Nobody asks a replica for most of what it writes: feeds are served from the servers' memory, and who catches up reads
old records once, in long pieces. Left alone the log would fill the memory of its node, push out what Ray and Spark have
there, and take pages that were never used before, which on a virtual machine cost ten times a recycled one
(docs/performance.md, "The page cache"). So what is further back than the bound is given up, as writing goes on. Apache
BookKeeper does so with its journal (``journalRemoveFromPageCache``).

It is advice and changes no file: the kernel drops pages that are on the disk and keeps the others. Nothing is believed
to be durable for it, and a failed write-back is told by the next ``fdatasync``, as always.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque

from waltz_ray.storage.disk import Disk

__all__ = ["PageCache"]

_PIECE_BYTES = 4 << 20


class _Piece:
    """Bytes [start, end) of a file that were written one behind the other."""

    __slots__ = ("end", "path", "start")

    def __init__(self, path: str, start: int) -> None:
        self.path, self.start, self.end = path, start, start


class PageCache:
    """Of one storage directory. ``most_bytes``: what stays of all files together; 0 = all, as the kernel likes."""

    def __init__(self, disk: Disk, most_bytes: int) -> None:
        self._disk = disk
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._pieces: deque[_Piece] = deque()  # in the order in which they were begun
        self._newest: dict[str, _Piece] = {}  # of each file
        self._bytes = 0

    def written(self, path: str, start: int, size_bytes: int) -> None:
        """So many bytes were written into a file from ``start`` on. Any thread."""
        if not self._most_bytes:
            return
        with self._lock:
            piece = self._newest.get(path)
            if piece is None or piece.end != start or piece.end - piece.start >= _PIECE_BYTES:
                piece = self._newest[path] = _Piece(path, start)
                self._pieces.append(piece)
            piece.end += size_bytes
            self._bytes += size_bytes
            given_up = self._taken_out() if self._bytes > self._most_bytes else ()
        for one in given_up:
            self._give_up(one)

    def _taken_out(self) -> list[_Piece]:
        """The oldest pieces, as many as are too much."""
        taken: list[_Piece] = []
        while self._bytes > self._most_bytes:
            piece = self._pieces.popleft()
            if self._newest[piece.path] is piece:
                del self._newest[piece.path]
            self._bytes -= piece.end - piece.start
            taken.append(piece)
        return taken

    def _give_up(self, piece: _Piece) -> None:
        """By its name: whoever has written it may have closed or removed it meanwhile. From a piece earlier on: the
        kernel keeps a folio that lies across the beginning of a range."""
        start = max(0, piece.start - _PIECE_BYTES)
        with contextlib.suppress(OSError):  # the file has gone, or there is no handle to spare; it was only advice
            handle = self._disk.open(piece.path, "read")
            try:
                self._disk.unneeded(handle, piece.end - start, start)
            finally:
                self._disk.close(handle)
