"""What layers on the log are told of their appends: by calls, not by futures that somebody waits for."""

from __future__ import annotations

from collections.abc import Callable

from waltz_ray.errors import LockConflict

__all__ = ["AppendFates"]


class AppendFates:
    """A ``Fate`` of one append: ``committed(ID)``, ``refused(conflicting ID)`` or ``lost(why)``, once."""

    __slots__ = ("_committed", "_lost", "_refused", "_told")

    def __init__(
        self, committed: Callable[[int], None], refused: Callable[[int], None], lost: Callable[[str], None]
    ) -> None:
        self._committed = committed
        self._refused = refused
        self._lost = lost
        self._told = False

    def done(self) -> bool:
        return self._told

    def set_result(self, result: int) -> None:
        self._told = True
        self._committed(int(result))

    def set_exception(self, exception: BaseException) -> None:
        self._told = True
        if isinstance(exception, LockConflict):
            self._refused(exception.transaction_id)
        else:
            self._lost(str(exception))
