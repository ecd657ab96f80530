"""Flushes: answered when everything that was proposed before them has its fate."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Container
from itertools import chain

from waltz_ray.protocol.ids import ReqId
from waltz_ray.protocol.messages.client import NotReady
from waltz_ray.protocol.messages.original import FlushResponse
from waltz_ray.protocol.partition.events import Effect, SendMessage
from waltz_ray.protocol.partition.intake import Intake
from waltz_ray.protocol.partition.state import PartitionState
from waltz_ray.protocol.value import value

__all__ = ["Flushes"]

_MOST = 64  # of one connection at a time; a client has one


@value()
class _Flush:
    connection_id: int
    req_id: ReqId


class Flushes:
    """The flushes that have no answer yet. Methods return the effects."""

    def __init__(self, state: PartitionState, intake: Intake) -> None:
        self._state = state
        self._intake = intake
        self._behind: deque[tuple[int, _Flush]] = deque()  # until so many arrivals are admitted
        self._held: deque[tuple[int, _Flush]] = deque()  # until so high an ID is committed
        self._of: Counter[int] = Counter()  # both, by connection: of each one that asks, or ends, all others may wait

    @property
    def held(self) -> int:
        """How many wait for a commit."""
        return len(self._held)

    def flush(self, connection_id: int, req_id: ReqId) -> list[Effect]:
        """A client asks to be told when all that was proposed so far has its fate."""
        flush = _Flush(connection_id, req_id)
        if self._state.log is None or self._of[connection_id] >= _MOST:
            return [SendMessage(connection_id, NotReady(self._state.partition_id, self._state.generation))]
        self._of[connection_id] += 1
        if not self._intake.is_waiting:
            return self._hold(flush)
        self._behind.append((self._intake.come, flush))
        return []

    def hold_due(self) -> list[Effect]:
        """Hold those before which everything is admitted."""
        effects: list[Effect] = []
        while self._behind and self._behind[0][0] <= self._intake.admitted:
            effects += self._hold(self._behind.popleft()[1])
        return effects

    def _hold(self, flush: _Flush) -> list[Effect]:
        """Everything that came before it has its ID: it waits for the last of these."""
        assert self._state.log is not None
        last_before = self._state.log.next_id - 1
        if last_before <= self._state.high_water_mark:
            return self._answer(flush)
        self._held.append((last_before, flush))
        return []

    def committed(self) -> list[Effect]:
        """The log's mark has moved."""
        effects: list[Effect] = []
        while self._held and self._held[0][0] <= self._state.high_water_mark:
            effects += self._answer(self._held.popleft()[1])
        return effects

    def _answer(self, flush: _Flush) -> list[Effect]:
        """Everything that its connection sent before has its fate, or is told it now."""
        response = FlushResponse(flush.req_id, self._state.high_water_mark)
        self._of[flush.connection_id] -= 1
        if not self._of[flush.connection_id]:
            del self._of[flush.connection_id]
        return [*self._intake.settle(flush.connection_id), SendMessage(flush.connection_id, response)]

    def forget_connection(self, connection_id: int) -> None:
        """Nobody is there any more to be answered."""
        if not self._of.pop(connection_id, 0):
            return
        self._held = deque(each for each in self._held if each[1].connection_id != connection_id)
        self._behind = deque(each for each in self._behind if each[1].connection_id != connection_id)

    def log_lost(self, told: Container[int]) -> list[Effect]:
        """``told``: connections that hear it with their mounts. Others, which have none, hear it here."""
        connections = dict.fromkeys(flush.connection_id for _, flush in chain(self._held, self._behind))
        self._of.clear()
        self._held.clear()
        self._behind.clear()
        not_ready = NotReady(self._state.partition_id, self._state.generation)
        return [SendMessage(connection_id, not_ready) for connection_id in connections if connection_id not in told]
