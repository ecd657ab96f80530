"""How fast a server copies logs to replicas that are behind: no faster than ``ServerConfig.copy_bytes_per_s``.

Only what is read from disks that others wait for counts, and only once a session is published: before that everybody
waits for the copy. One for all partitions of a server, in its loop.
"""

from __future__ import annotations

import asyncio

__all__ = ["CopyPace"]

_BURST_S = 1.0
"""So much of the rate may be had at once, when there was no copy for so long."""


class CopyPace:
    """``rate`` in bytes a second; 0: as fast as it goes."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._done_s = 0.0  # of the loop: when all that was copied so far would be done at this rate

    async def wait(self) -> None:
        """Until the next piece may be read."""
        pause_s = self.pause_s(asyncio.get_running_loop().time())
        if pause_s > 0:
            await asyncio.sleep(pause_s)

    def pause_s(self, now_s: float) -> float:
        """For how long the next piece has to wait."""
        return max(0.0, self._done_s - now_s - _BURST_S) if self._rate else 0.0

    def copied(self, size_bytes: int, now_s: float) -> None:
        """So much was read."""
        if self._rate:
            self._done_s = max(self._done_s, now_s) + size_bytes / self._rate
