"""A disk that knows what was opened through it, so that a start that failed leaves nothing open."""

from __future__ import annotations

import contextlib
from typing import cast

from waltz_ray.storage.disk import Disk, Mode

__all__ = ["OwnHandles"]

_PASSED_ON = [name for name in vars(Disk) if not name.startswith("_") and name not in ("open", "close", "lock")]


class OwnHandles:
    """``disk`` is the same disk, for one attempt to open a store; ``close_all`` closes whatever that left behind.

    A store whose construction failed half-way has files open, and the directory's lock with them, that nobody can
    reach any more. A process that looks again for hours would run out of handles.
    """

    def __init__(self, disk: Disk) -> None:
        self._inner = disk
        self._open: set[int] = set()
        for name in _PASSED_ON:
            setattr(self, name, getattr(disk, name))
        self.disk = cast(Disk, self)

    def open(self, path: str, mode: Mode) -> int:
        handle = self._inner.open(path, mode)
        self._open.add(handle)
        return handle

    def lock(self, path: str, shared: bool) -> int:
        handle = self._inner.lock(path, shared)
        self._open.add(handle)
        return handle

    def close(self, handle: int) -> None:
        self._open.discard(handle)
        self._inner.close(handle)

    def close_all(self) -> None:
        """Idempotent. What cannot be closed properly is closed all the same: the kernel gives the number back."""
        while self._open:
            with contextlib.suppress(OSError):
                self._inner.close(self._open.pop())
