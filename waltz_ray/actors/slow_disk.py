"""Whether a disk is slow, told from its syncs: from those that have ended, and from the ones that do not end."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

__all__ = ["SlowDisk"]

_SLOW_S = 0.2
"""A sync that takes longer is slow (docs/operations.md, "WaltzSlowSync")."""
_LOOKED_AT = 16  # syncs: one slow one is none, as any disk has
_FEWEST = 4
_REMEMBERED_S = 60.0
_STUCK_S = 2.0


class SlowDisk:
    """For any number of threads. ``clock`` in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._under_way: dict[object, float] = {}  # since when
        self._ended: deque[tuple[float, float]] = deque(maxlen=_LOOKED_AT)  # when, how long it took

    def begins(self) -> object:
        """A sync begins; ``ends`` is given what is returned here."""
        sync = object()
        with self._lock:
            self._under_way[sync] = self._clock()
        return sync

    def ends(self, sync: object) -> float:
        """How long it took, in seconds."""
        now_s = self._clock()
        with self._lock:
            took_s = now_s - self._under_way.pop(sync)
            self._ended.append((now_s, took_s))
        return took_s

    def told(self) -> str:
        """One line for people while the disk is slow, "" else."""
        now_s = self._clock()
        with self._lock:
            stuck_s = now_s - min(self._under_way.values(), default=now_s)
            took = sorted(took_s for at_s, took_s in self._ended if now_s - at_s < _REMEMBERED_S)
        if stuck_s >= _STUCK_S:
            return f"its disk is slow: a sync has not ended for {stuck_s:.0f} s"
        middle = took[len(took) // 2] if len(took) >= _FEWEST else 0.0
        return f"its disk is slow: a sync takes {1000 * middle:.0f} ms" if middle > _SLOW_S else ""
