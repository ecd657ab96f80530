"""Who waits for locks that others have: who waits longest has it next, and nobody waits longer than he wanted. Pure.

Time alone changes something in a line when somebody has waited long enough, or a lease is over: until then most lines
are passed over, for there may be a hundred thousand. Some are looked at all the same each time, in turn: a lock may
have been given back by a write of which nobody here knew the fate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from waltz_ray.kv.keeper_types import KeeperLimits
from waltz_ray.kv.lines import NOT_DUE, Line, LineKey, PendingWrite
from waltz_ray.kv.messages import FailCode
from waltz_ray.kv.model import LockHeld
from waltz_ray.kv.orders import Orders
from waltz_ray.kv.rules import Acquire, Outcome, is_free

__all__ = ["LockWaiting"]

_IN_TURN = 256  # lines that are looked at each time, whatever the time


class LockWaiting:
    """``end`` is told of those that cannot wait, or need not any more."""

    def __init__(self, orders: Orders, limits: KeeperLimits, end: Callable[[PendingWrite, Outcome], None]) -> None:
        self._orders = orders
        self._limits = limits
        self._end = end
        self._lines: dict[LineKey, Line] = {}  # that have waiters, and that had some a moment ago
        self._next = 0  # whose turn it is, of the lines
        self._of: Counter[int] = Counter()  # how many wait over a connection

    def __len__(self) -> int:
        return self._of.total()

    def wait(self, line: Line, write: PendingWrite) -> None:
        """The lock is somebody else's."""
        if len(line.waiting) >= self._limits.waiting:
            self._end(write, Outcome(FailCode.TOO_MANY, text="too many wait for this lock"))
            return
        line.waiting.append(write)
        self._of[write.call.connection] += 1
        wanted = _wanted(write)
        self._lines[line.key] = line
        line.due_ms = min(line.due_ms, wanted.until_ms, _free_at_ms(line.lock(wanted.name)))

    def may_be_free(self, line: Line) -> None:
        """Who waits longest comes next, before what has come meanwhile."""
        looked_at: set[bytes] = set()
        for write in line.waiting:
            name = _wanted(write).name
            if name in looked_at:
                continue
            looked_at.add(name)
            lock = line.lock(name)
            if is_free(lock, self._orders.now_ms):
                self._take(line, write)
                line.queue.appendleft(write)
                line.due_ms = 0  # who has it then, and for how long, is to be seen
                return
            line.due_ms = min(line.due_ms, _free_at_ms(lock))

    def time_passed(self) -> list[Line]:
        """Who has waited long enough is decided for the last time; lines that may have something to decide now."""
        now_ms, every, lines = self._orders.now_ms, self._with_waiters(), list[Line]()
        first, self._next = self._next, (self._next + _IN_TURN) % max(1, len(every))
        for index, line in enumerate(every):
            due = line.due_ms <= now_ms
            if not due and (index - first) % len(every) >= _IN_TURN:
                continue
            lines.append(line)
            if due:
                for write in [write for write in line.waiting if _wanted(write).until_ms <= now_ms]:
                    self._take(line, write)
                    line.queue.append(write)
                line.due_ms = min((_wanted(write).until_ms for write in line.waiting), default=NOT_DUE)
            self.may_be_free(line)
        return lines

    def left(self, connection: int, outcome: Outcome) -> list[Line]:
        """Who waits over that connection ends so; the lines in which somebody waited."""
        if connection not in self._of:
            return []
        lines = self._with_waiters()
        for line in lines:
            for write in [write for write in line.waiting if write.call.connection == connection]:
                self._take(line, write)
                self._end(write, outcome)
        return lines

    def wait_no_more(self, line: Line) -> None:
        """All of them are to be decided."""
        for write in list(line.waiting):
            self._take(line, write)
            line.queue.append(write)

    def _take(self, line: Line, write: PendingWrite) -> None:
        """It waits no more."""
        line.waiting.remove(write)
        connection = write.call.connection
        self._of[connection] -= 1
        if not self._of[connection]:
            del self._of[connection]

    def _with_waiters(self) -> list[Line]:
        for key in [key for key, line in self._lines.items() if not line.waiting]:
            self._lines.pop(key).due_ms = NOT_DUE
        return [*self._lines.values()]


def _wanted(write: PendingWrite) -> Acquire:
    """The lock that a waiting write waits for."""
    assert isinstance(write.what, Acquire)
    return write.what


def _free_at_ms(lock: LockHeld | None) -> int:
    """When its lease is over."""
    if lock is None:
        return 0
    return lock.deadline_ms or NOT_DUE
