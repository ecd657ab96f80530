"""What a partition server measures of the way of appends: by stage, a turn or batch at a time, never a record.

Of all turns of a server one a millisecond is measured at the most. What is counted is counted always. Together that
costs a twentieth of a turn with a single append, and little of a large one (docs/metrics.md, "Cost").

| stage | from | to |
|---|---|---|
| queue | the first append of a turn was handed over | the turn began |
| lock | the turn began | its locks were checked, and its records made |
| replicate | these went to the replicas | one replica's acknowledgement (each counts) |
| commit | these went to the replicas | a quorum had acknowledged them |
| feed | the commit | the first subscriber's connection was handed them |
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

from waltz_ray.protocol.messages.client import AppendedBatch, LockFailureBatch, Mounted, Rejected
from waltz_ray.protocol.messages.original import MountState
from waltz_ray.protocol.partition.events import ServerMessage
from waltz_ray.protocol.partition.state import Stage
from waltz_ray.runtime.histogram import LATENCY_S, SIZES, Histogram
from waltz_ray.runtime.status import ServerMeasures

__all__ = ["AppendStages", "Measures"]

_INTERVAL_S = 0.001
_MOST_BATCHES = 256
"""Batches of a partition that are remembered for acknowledgements and subscribers that come late."""


class Measures:
    """Of all partitions of a server. ``clock``: monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.queue, self.lock, self.replicate, self.commit, self.feed = (Histogram(LATENCY_S) for _ in range(5))
        self.batch_records, self.batch_bytes = Histogram(SIZES), Histogram(SIZES)
        self.recovery = Histogram(LATENCY_S)
        self.refused: Counter[str] = Counter()
        self.lock_failures = self.records = self.record_bytes = 0
        self._last = -_INTERVAL_S

    def due(self, now: float) -> bool:
        """Whether a turn that is asked for ``now`` is to be measured."""
        if now - self._last < _INTERVAL_S:
            return False
        self._last = now
        return True

    def told(self, message: ServerMessage) -> None:
        """A client is told ``message``: refusals are counted."""
        kind = type(message)
        if kind is Rejected:
            assert isinstance(message, Rejected)
            self.refused[message.code.name.lower()] += len(message.sequence_numbers)
        elif kind is LockFailureBatch:
            assert isinstance(message, LockFailureBatch)
            self.lock_failures += len(message.sequence_numbers)
        elif kind is Mounted:
            assert isinstance(message, Mounted)
            if message.state is not MountState.READY:
                self.refused[f"mount_{message.state.name.lower()}"] += 1

    def view(self) -> ServerMeasures:
        """As they stand."""
        stages = {name: getattr(self, name).view() for name in ("queue", "lock", "replicate", "commit", "feed")}
        return ServerMeasures(
            stages=stages,
            batch_records=self.batch_records.view(),
            batch_bytes=self.batch_bytes.view(),
            recovery=self.recovery.view(),
            refused=dict(self.refused),
            lock_failures=self.lock_failures,
            records=self.records,
            record_bytes=self.record_bytes,
        )


class AppendStages:
    """Where the appends of one partition are. Told by its driver what happens, in the order in which it does."""

    def __init__(self, measures: Measures) -> None:
        self._measures, self._clock = measures, measures.clock
        self._arrived: float | None = None
        self._turn: float | None = None  # when it began, of one that is measured
        self._in_turn = False
        self._sent: OrderedDict[int, float] = OrderedDict()  # last ID of a batch -> when it went to the replicas
        self.waiting: deque[tuple[int, float]] = deque()
        """The same, of those that are not committed."""
        self._unfed: deque[tuple[int, float]] = deque(maxlen=_MOST_BATCHES)  # when they were
        self._stage = Stage.IDLE
        self._opening: float | None = None

    def arrived(self) -> None:
        """Something has come that ends in a turn."""
        now = self._clock()
        self._arrived = now if self._measures.due(now) else None

    def turn_began(self) -> None:
        """The turn of what has come begins."""
        self._in_turn = True
        if self._arrived is not None:
            self._turn = self._clock()
            self._measures.queue.observe(self._turn - self._arrived)
            self._arrived = None

    def turn_ended(self) -> None:
        """What goes to replicas from here on is copies."""
        self._turn, self._in_turn = None, False

    def sent(self, last_id: int, records: int, size_bytes: int) -> None:
        """A batch goes to the replicas; one outside of a turn is a copy."""
        measures = self._measures
        if self._in_turn:
            measures.records += records
            measures.record_bytes += size_bytes
        if self._turn is None:
            return
        now = self._clock()
        measures.lock.observe(now - self._turn)
        measures.batch_records.observe(records)
        measures.batch_bytes.observe(size_bytes)
        self._turn = now  # another batch of the same turn takes its time from here
        self._sent[last_id] = now
        self.waiting.append((last_id, now))
        if len(self._sent) > _MOST_BATCHES:
            self._sent.popitem(last=False)

    def acknowledged(self, last_id: int) -> None:
        """A replica has everything up to ``last_id`` on its disk."""
        sent = self._sent.get(last_id)
        if sent is not None:
            self._measures.replicate.observe(self._clock() - sent)

    def committed(self, mark: int, subscribers: int) -> None:
        """The high-water mark is ``mark``, and ``subscribers`` are there to be told."""
        waiting = self.waiting
        if not waiting or waiting[0][0] > mark:
            return
        now, observe = self._clock(), self._measures.commit.observe
        while waiting and waiting[0][0] <= mark:
            last_id, sent = waiting.popleft()
            observe(now - sent)
            if subscribers:
                self._unfed.append((last_id, now))

    def fed(self, last_id: int, mark: int) -> None:
        """A subscriber has been handed everything up to ``last_id``; ``mark`` is the high-water mark, which
        may have moved in this very step."""
        if self.waiting:
            self.committed(mark, 1)
        unfed = self._unfed
        if not unfed or unfed[0][0] > last_id:
            return
        now, observe = self._clock(), self._measures.feed.observe
        while unfed and unfed[0][0] <= last_id:
            observe(now - unfed.popleft()[1])

    def told(self, message: ServerMessage) -> None:
        """A client is told ``message``."""
        if type(message) is AppendedBatch:
            self.fed(message.high_water_mark, message.high_water_mark)
        else:
            self._measures.told(message)

    def stage(self, stage: Stage) -> None:
        """How far the next session is: from the first look at the roster until it is open is a recovery."""
        if stage is self._stage:
            return
        self._stage = stage
        if stage is Stage.IDLE:
            self._forget()
        elif stage is Stage.OPEN and self._opening is not None:
            self._measures.recovery.observe(self._clock() - self._opening)
            self._opening = None
        elif self._opening is None:
            self._opening = self._clock()

    def _forget(self) -> None:
        """The partition is another server's: its numbers may be given again."""
        self._sent.clear()
        self.waiting.clear()
        self._unfed.clear()
        self._arrived = self._opening = None
