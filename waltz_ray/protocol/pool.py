"""Memory that the partitions of one server share."""

from __future__ import annotations

__all__ = ["Pool"]


class Pool:
    """``limit_bytes`` for all; each of the ``sharers`` always has its equal share, and more while there is room."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.sharers = 1

    def has_room(self, own_bytes: int, more_bytes: int) -> bool:
        """Whether one that has ``own_bytes`` may take ``more_bytes``. One that has nothing always may."""
        within_share = own_bytes + more_bytes <= self.limit_bytes // self.sharers
        return not own_bytes or within_share or self.used_bytes + more_bytes <= self.limit_bytes
