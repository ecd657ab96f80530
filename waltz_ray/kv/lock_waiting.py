"""Who waits for locks that others have: who waits longest has it next, and nobody waits longer than he wanted. Pure."""

from __future__ import annotations

from collections.abc import Callable

from waltz_ray.kv.keeper_types import KeeperLimits
from waltz_ray.kv.lines import Line, LineKey, PendingWrite
from waltz_ray.kv.messages import FailCode
from waltz_ray.kv.orders import Orders
from waltz_ray.kv.rules import Acquire, Outcome, is_free

__all__ = ["LockWaiting"]


class LockWaiting:
    """``end`` is told of those that cannot wait, or need not any more."""

    def __init__(self, orders: Orders, limits: KeeperLimits, end: Callable[[PendingWrite, Outcome], None]) -> None:
        self._orders = orders
        self._limits = limits
        self._end = end
        self._lines: dict[LineKey, Line] = {}  # that have waiters, and that had some a moment ago

    def __len__(self) -> int:
        return sum(len(line.waiting) for line in self._lines.values())

    def wait(self, line: Line, write: PendingWrite) -> None:
        """The lock is somebody else's."""
        if len(line.waiting) >= self._limits.waiting:
            self._end(write, Outcome(FailCode.TOO_MANY, text="too many wait for this lock"))
        else:
            line.waiting.append(write)
            self._lines[line.key] = line

    def may_be_free(self, line: Line) -> None:
        """Who waits longest comes next, before what has come meanwhile."""
        for write in line.waiting:
            if is_free(line.lock(_wanted(write).name), self._orders.now_ms):
                line.waiting.remove(write)
                line.queue.appendleft(write)
                return

    def time_passed(self) -> list[Line]:
        """Who has waited long enough is decided for the last time; lines that may have something to decide now."""
        lines = self._with_waiters()
        for line in lines:
            for write in [write for write in line.waiting if _wanted(write).until_ms <= self._orders.now_ms]:
                line.waiting.remove(write)
                line.queue.append(write)
            self.may_be_free(line)
        return lines

    def left(self, connection: int, outcome: Outcome) -> list[Line]:
        """Who waits over that connection ends so; the lines in which somebody waited."""
        lines = self._with_waiters()
        for line in lines:
            for write in [write for write in line.waiting if write.call.connection == connection]:
                line.waiting.remove(write)
                self._end(write, outcome)
        return lines

    def _with_waiters(self) -> list[Line]:
        self._lines = {key: line for key, line in self._lines.items() if line.waiting}
        return [*self._lines.values()]


def _wanted(write: PendingWrite) -> Acquire:
    """The lock that a waiting write waits for."""
    assert isinstance(write.what, Acquire)
    return write.what
