"""Writes that wait for their second copy, and, on the other side, what a secondary is asked. Pure."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Mapping

from waltz_ray.kv.keeper_types import Answer, AskSecondary, KeeperLimits, Serving, WantFolded
from waltz_ray.kv.lines import PendingWrite
from waltz_ray.kv.messages import Ack, FailCode
from waltz_ray.kv.orders import Orders
from waltz_ray.kv.routing import partition_of
from waltz_ray.kv.rules import Outcome
from waltz_ray.kv.state import KvState

__all__ = ["AskedForCopies", "SecondCopies"]


class _Unconfirmed:
    """A committed write whose client waits for the second copy."""

    def __init__(self, write: PendingWrite, outcome: Outcome, until_ms: int) -> None:
        self.write = write
        self.outcome = outcome
        self.until_ms = until_ms
        self.asked: int | None = None


class SecondCopies:
    """``ended`` is told how a write has ended, once."""

    def __init__(
        self, orders: Orders, serving: Serving, limits: KeeperLimits, ended: Callable[[PendingWrite, Outcome], None]
    ) -> None:
        self._orders = orders
        self._serving = serving
        self._limits = limits
        self._ended = ended
        self._unconfirmed: dict[int, _Unconfirmed] = {}
        self.expected = limits.backups
        """The cluster is to have secondaries."""

    def __len__(self) -> int:
        return len(self._unconfirmed)

    def confirm(self, write: PendingWrite, outcome: Outcome) -> None:
        """The write is committed: it has ended, or waits until its secondary has it."""
        if not write.call.fullwait or not self.expected:
            self._ended(write, outcome)
            return
        number = self._orders.number()
        self._unconfirmed[number] = _Unconfirmed(write, outcome, self._orders.now_ms + self._limits.fullwait_ms)
        self._ask(number)

    def answered(self, number: int, has: bool) -> None:
        """A secondary has it, or cannot be asked."""
        waits = self._unconfirmed.get(number)
        if waits is None:
            return  # its time was over
        if has:
            del self._unconfirmed[number]
            self._ended(waits.write, waits.outcome)
        else:
            waits.asked = None  # asked again when time has passed, or when there is another one

    def rearranged(self) -> None:
        """There may be another secondary to ask."""
        for number in list(self._unconfirmed):
            self._ask(number)

    def time_passed(self) -> None:
        """Tell those who have waited too long that it is committed all the same."""
        for number, waits in list(self._unconfirmed.items()):
            if waits.until_ms <= self._orders.now_ms:
                del self._unconfirmed[number]
                text = "it is committed, but no second copy was confirmed in time"
                self._ended(waits.write, Outcome(FailCode.NOT_REPLICATED, waits.outcome.version, text))
            elif waits.asked is None:
                self._ask(number)

    def _ask(self, number: int) -> None:
        waits = self._unconfirmed[number]
        actor = self._serving.secondary(waits.write.key_hash)
        if actor is not None and actor != waits.asked:
            waits.asked = actor
            partition = partition_of(waits.write.key_hash, self._orders.partitions)
            self._orders.effects.append(AskSecondary(number, actor, partition, waits.outcome.version))


class AskedForCopies:
    """Primaries that ask whether this actor, their secondary, has a transaction: answered once it has, or when no
    primary waits any more: whoever asks for what never comes is not to be kept for ever."""

    def __init__(self, orders: Orders, states: Mapping[int, KvState], limits: KeeperLimits) -> None:
        self._orders = orders
        self._states = states
        self._limits = limits
        # partition -> heap of (ID, token, when that was asked)
        self._waiting: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self._looked_ms = 0

    def asked(self, token: int, partition: int, transaction_id: int) -> None:
        """``SecondaryHas``."""
        state = self._states.get(partition)
        if state is None:
            self._orders.fail(token, FailCode.NOT_READY, f"partition {partition} is not kept here")
        elif state.mark >= transaction_id:
            self._orders.effects.append(Answer(token, Ack()))
        elif len(self._waiting[partition]) >= self._limits.waiting:
            self._orders.fail(token, FailCode.TOO_MANY, "too many wait for this partition")
        else:
            heapq.heappush(self._waiting[partition], (transaction_id, token, self._orders.now_ms))
            self._orders.effects.append(WantFolded(partition, transaction_id))

    def folded(self, partition: int, mark: int) -> None:
        """The partition's state has gone on."""
        waiting = self._waiting[partition]
        while waiting and waiting[0][0] <= mark:
            self._orders.effects.append(Answer(heapq.heappop(waiting)[1], Ack()))

    def time_passed(self) -> None:
        """Tell those who have waited as long as a primary does; ten times in that time, for there may be many."""
        fullwait_ms, now_ms = self._limits.fullwait_ms, self._orders.now_ms
        if now_ms < self._looked_ms + fullwait_ms // 10:
            return
        self._looked_ms = now_ms
        for partition, waiting in self._waiting.items():
            over = [token for _, token, asked_ms in waiting if asked_ms + fullwait_ms <= now_ms]
            if over:
                self._waiting[partition] = [one for one in waiting if one[2] + fullwait_ms > now_ms]
                heapq.heapify(self._waiting[partition])
            for token in over:
                self._orders.fail(token, FailCode.NOT_READY, "it has not come here in time")
