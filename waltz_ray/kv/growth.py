"""How far each partition's log is ahead of its projection, and how much more it may grow while it is compacted. Pure.

A section that is due is begun some time later, and takes a while. Whoever overwrites everything again and again could
write several times what is alive meanwhile; so writes that find no more room wait in ``Orders`` until the snapshot has
ended (``compaction.room_bytes``). Nothing else waits: no lock, no read, no expiry.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque

__all__ = ["LogGrowth"]


class LogGrowth:
    """In bytes of items; what others append, as long as it is not folded, is not known here."""

    def __init__(self) -> None:
        self._ahead: Counter[int] = Counter()
        self._unfolded: dict[int, deque[tuple[int, int]]] = defaultdict(deque)  # (version, bytes), committed
        self._room: dict[int, int] = {}

    def ahead_bytes(self, partition: int) -> int:
        """Ordered here, and not folded as far as is known."""
        return self._ahead[partition]

    def ordered(self, partition: int, size: int) -> None:
        """So much is on its way to the log."""
        self._ahead[partition] += size
        if partition in self._room:
            self._room[partition] -= size

    def committed(self, partition: int, size: int, version: int) -> None:
        """It is in the log."""
        self._unfolded[partition].append((version, size))

    def dropped(self, partition: int, size: int) -> None:
        """It is not, or nobody knows: then the fold will say so."""
        self._ahead[partition] -= size

    def folded(self, partition: int, mark: int) -> None:
        """The projection has it up to there."""
        unfolded = self._unfolded[partition]
        while unfolded and unfolded[0][0] <= mark:
            self._ahead[partition] -= unfolded.popleft()[1]

    def bound(self, partition: int, room_bytes: int | None) -> None:
        """From now on it may grow by so much; None: by any amount."""
        if room_bytes is None:
            self._room.pop(partition, None)
        else:
            self._room[partition] = room_bytes

    def is_full(self, partition: int) -> bool:
        """Are writes to wait?"""
        return self._room.get(partition, 1) <= 0
